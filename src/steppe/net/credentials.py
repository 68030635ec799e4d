"""Tokens and certificates, read from files or the environment, never from a spec, and never logged."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from steppe.errors import UserError, reason_of
from steppe.specs.running.connections import RemoteSettings

TOKEN_VARIABLE = "STEPPE_ENV_TOKEN"
SHORTEST_TOKEN = 16
LONGEST_TOKEN = 2048
"""In bytes; a whole greeting has at most 4,096."""


def read_token(file: str | Path | None, variable: str = TOKEN_VARIABLE) -> str | None:
    """The token in a file, else in the variable, else None."""
    if file is None:
        return os.environ.get(variable, "").strip() or None
    try:
        token = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UserError(f"cannot read the token in {file}: {reason.lower()}; check the path") from None
    if not token:
        raise UserError(f"the token file {file} is empty; write at least {SHORTEST_TOKEN} random characters into it")
    return token


def server_token(file: str | Path | None, variable: str = TOKEN_VARIABLE) -> str | None:
    """As `read_token`, but refuses tokens that are too long, or so short that they could be guessed."""
    token = read_token(file, variable)
    if token is not None and len(token.encode()) > LONGEST_TOKEN:
        raise UserError(
            f"the token{f' in {file}' if file else ''} has {len(token.encode()):,} bytes; use at most {LONGEST_TOKEN}, "
            "such as from: openssl rand -hex 32"
        )
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UserError(
            f"the token{f' in {file}' if file else ''} has only {len(token)} characters; use at least "
            f"{SHORTEST_TOKEN}, such as from: openssl rand -hex 32"
        )
    return token


def server_tls(cert: str | Path | None, key: str | Path | None) -> ssl.SSLContext | None:
    """The TLS context of a server; None without files."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UserError("TLS needs both the certificate and its key; give --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot use the certificate {cert} with the key {key}: {reason_of(error)}") from None
    return context


def client_tls(settings: RemoteSettings) -> ssl.SSLContext | None:
    """The TLS context of a client, which checks the server's certificate; None unless the settings ask for TLS."""
    if not settings.tls and settings.tls_ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=settings.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot read the certificates in {settings.tls_ca}: {reason_of(error)}") from None
