"""The fsspec client of object storage: its settings and the meaning of its errors, for each kind of URL."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from steppe.errors import MissingExtra, UserError, clause

GOOGLE = ("gs", "gcs")
IN_EXTRA = ("s3", "s3a", *GOOGLE)
"""The kinds of URL that need the packages of the extra `storage`."""
GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"
NO_CREDENTIALS = ("Credential", "TokenRetrieval", "RefreshError", "InvalidClientTokenId", "SSOToken")
"""Parts of the names of the errors that cloud libraries raise without valid credentials."""
CONNECT_SECONDS, ANSWER_SECONDS, REQUEST_SECONDS = 20.0, 60.0, 600.0
"""How long connecting, waiting for an answer, and a whole request with its body may take."""

Kind = Literal["no credentials", "denied", "no bucket", "passing"]


class ErrorMeaning(NamedTuple):
    """The kind of an error, and the store's own words for it."""

    kind: Kind
    clause: str
    is_final: bool = True


class Remedies(NamedTuple):
    """The remedy for each kind of error, in the terms of the store's cloud."""

    sign_in: str
    rights: str
    bucket: str


ANY_CLOUD = Remedies(
    "name a Secret that has them in kubernetes.env_from_secrets, or a ServiceAccount that needs none in "
    "kubernetes.service_account",
    "its credentials must be allowed to read, write, list and delete objects there",
    "make it first",
)
GOOGLE_CLOUD = Remedies(
    "mount a Secret that has the key file of a service account by kubernetes.volumes and kubernetes.volume_mounts, and "
    f"give the file's path in kubernetes.env as {GOOGLE_KEY}; or name a ServiceAccount with workload identity in "
    "kubernetes.service_account",
    "grant its service account the role Storage Object User (roles/storage.objectUser) on the bucket, or correct its "
    "name: Google says the same of one that is not there",
    "make it first (gcloud storage buckets create)",
)


def open_client(url: str) -> tuple[Any, str]:
    """(fsspec's client for a URL, the path in it); no request is sent to the store yet."""
    kind = kind_of(url)
    # Listings must be up to date, and a client that has lost its connection must not be reused.
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        if kind in GOOGLE:
            return _google_client(url, options)
        from fsspec.core import url_to_fs

        client, root = url_to_fs(url, **options)
        return client, str(root)
    except ImportError as error:
        if kind in IN_EXTRA or "fsspec" in str(error):
            what = f"storing results in {kind}:// from an image without it (steppe image build --extras storage)"
            raise MissingExtra(what, "storage") from error
        raise UserError(f"results cannot be stored in {url}: {clause(error)}") from error
    except ValueError as error:
        if meaning_of(error).kind == "no credentials":
            raise
        raise UserError(f"results cannot be stored in {url}: {clause(error)}") from error


def kind_of(url: str) -> str:
    """The scheme of a URL."""
    return url.partition("://")[0]


def remedies_for(url: str) -> Remedies:
    """The remedies for errors of this store."""
    return GOOGLE_CLOUD if kind_of(url) in GOOGLE else ANY_CLOUD


def meaning_of(error: Exception) -> ErrorMeaning:
    """The meaning of an error; an error that may pass by itself is not final."""
    causes = list(_causes(error))
    names = " ".join(base.__name__ for each in causes for base in type(each).__mro__)
    code = getattr(error, "code", None)
    if any(part in names for part in NO_CREDENTIALS) or code == 401:
        # A sign-in service may be down for a while, and a new Pod may not have its cloud identity yet.
        may_pass = any(getattr(each, "retryable", False) for each in causes)
        is_new = "DefaultCredentialsError" in names and GOOGLE_KEY not in os.environ
        return ErrorMeaning("no credentials", clause(_sign_in_failure(causes)), not (may_pass or is_new))
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and str(error).startswith("Forbidden: ")):
        # gcsfs puts the address before Google's message.
        return ErrorMeaning("denied", clause(str(error).split("\n", 1)[-1]))
    if isinstance(error, FileNotFoundError):
        return ErrorMeaning("no bucket", "there is no such bucket")
    if isinstance(error, TimeoutError) and not str(error):
        return ErrorMeaning("passing", "it does not answer", is_final=False)
    return ErrorMeaning("passing", clause(error), is_final=False)


def _google_client(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """A client that uses HTTPS only: the default one also tries gRPC, and waits a minute if that is blocked."""
    import aiohttp
    from fsspec.config import conf
    from gcsfs.core import GCSFileSystem

    log = logging.getLogger("gcsfs")
    if log.level == logging.NOTSET:
        # Errors are reported in a sentence, not by a traceback for each attempt.
        log.setLevel(logging.CRITICAL)
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS)
    options |= {
        # Without this, gcsfs would go on anonymously if the key file is missing.
        "token": "google_default",
        # Without this, a request that is never answered would wait for ever.
        "requests_timeout": timeout,
        "session_kwargs": {"trust_env": True},
    }
    set_by_user = {**conf.get("gcs", {}), **conf.get("gs", {})}
    client = GCSFileSystem(**(options | set_by_user))
    try:
        # Later, gcsfs would retry a rejected key for half a minute.
        client.credentials.maybe_refresh()
    except Exception as error:
        if meaning_of(error).is_final:
            raise
    return client, str(GCSFileSystem._strip_protocol(url))


def _sign_in_failure(causes: list[BaseException]) -> str:
    """The reason why a sign-in failed: gcsfs only reports that it did, and the cause has the reason first."""
    for each in causes:
        if type(each).__module__.startswith("google.auth") and each.args:
            return str(each.args[0])
    return str(causes[0]) or type(causes[0]).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
