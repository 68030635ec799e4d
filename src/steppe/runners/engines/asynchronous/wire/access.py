"""Who may talk to a learner, and encryption: tokens and certificates, which are never written to disk."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from steppe.errors import UserError, reason_of
from steppe.net.credentials import server_tls, server_token
from steppe.runners.engines.asynchronous.wire.protocol import TOKEN_VARIABLE

File = str | Path | None


@dataclass(frozen=True)
class LearnerAccess:
    """The learner's token and TLS settings."""

    token: str | None = None
    tls: ssl.SSLContext | None = None


def access_from(token_file: File, tls_cert: File, tls_key: File) -> LearnerAccess:
    """A learner's access from files, the token also from the variable STEPPE_LEARNER_TOKEN."""
    return LearnerAccess(server_token(token_file, TOKEN_VARIABLE), server_tls(tls_cert, tls_key))


def trust_in(file: File) -> ssl.SSLContext | None:
    """TLS settings that trust the certificates in a file; None without a file."""
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot read the certificates in {file}: {reason_of(error)}") from None


def trust_only(certificate: str) -> ssl.SSLContext:
    """TLS settings that trust exactly the learner's certificate (PEM), whatever name it is for."""
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False
    return context
