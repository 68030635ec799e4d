"""The client of a store: how it is set up, and what its errors mean, for each kind of URL."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from steppe.errors import MissingExtra, UserError

GOOGLE = ("gs", "gcs")
IN_EXTRA = ("s3", "s3a", *GOOGLE)
"""The kinds of URL that the packages of the extra `storage` are for."""
GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"
NO_CREDENTIALS = ("Credential", "TokenRetrieval", "RefreshError", "InvalidClientTokenId", "SSOToken")
"""Parts of the names of the errors that cloud libraries raise where they find none."""
CONNECT_SECONDS, ANSWER_SECONDS, REQUEST_SECONDS = 20.0, 60.0, 600.0
"""How long a connection may take, an answer to what was sent, and a request with all that it sends."""

Kind = Literal["no credentials", "denied", "no bucket", "passing"]


class Meaning(NamedTuple):
    """What an error means, and in which words the store has said it."""

    kind: Kind
    clause: str
    is_final: bool = True


class WayOut(NamedTuple):
    """What a user can do, in the words of the store's cloud."""

    sign_in: str
    rights: str
    bucket: str


ANY = WayOut(
    "name a Secret that has them in kubernetes.env_from_secrets, or a ServiceAccount that needs none in "
    "kubernetes.service_account",
    "its credentials must be allowed to read, write, list and delete objects there",
    "make it first",
)
AT_GOOGLE = WayOut(
    "mount a Secret that has the key file of a service account by kubernetes.volumes and kubernetes.volume_mounts, and "
    f"give the file's path in kubernetes.env as {GOOGLE_KEY}; or name a ServiceAccount with workload identity in "
    "kubernetes.service_account",
    "grant its service account the role Storage Object User (roles/storage.objectUser) on the bucket, or correct its "
    "name: Google says the same of one that is not there",
    "make it first (gcloud storage buckets create)",
)


def open_client(url: str) -> tuple[Any, str]:
    """fsspec's client for a URL, and the path in it; the store itself is not asked yet."""
    kind = kind_of(url)
    # Listings must be what is there now, and a client that has lost its connection must not come back.
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
        raise UserError(f"results cannot be stored in {url}: {plain(error)}") from error
    except ValueError as error:
        if meaning_of(error).kind == "no credentials":
            raise
        raise UserError(f"results cannot be stored in {url}: {plain(error)}") from error


def kind_of(url: str) -> str:
    """What a URL begins with."""
    return url.partition("://")[0]


def way_out(url: str) -> WayOut:
    """What can be done about errors of this store."""
    return AT_GOOGLE if kind_of(url) in GOOGLE else ANY


def meaning_of(error: Exception) -> Meaning:
    """What went wrong; an error that may pass by itself is not final."""
    causes = list(_causes(error))
    names = " ".join(base.__name__ for each in causes for base in type(each).__mro__)
    code = getattr(error, "code", None)
    if any(part in names for part in NO_CREDENTIALS) or code == 401:
        # A sign-in that is out of order for a while, and a cloud's identity that a new Pod does not have yet.
        may_pass = any(getattr(each, "retryable", False) for each in causes)
        is_new = "DefaultCredentialsError" in names and GOOGLE_KEY not in os.environ
        return Meaning("no credentials", plain(_said_of_sign_in(causes)), not (may_pass or is_new))
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and str(error).startswith("Forbidden: ")):
        # gcsfs puts the address before what Google says.
        return Meaning("denied", plain(str(error).split("\n", 1)[-1]))
    if isinstance(error, FileNotFoundError):
        return Meaning("no bucket", "there is no such bucket")
    if isinstance(error, TimeoutError) and not str(error):
        return Meaning("passing", "it does not answer", is_final=False)
    return Meaning("passing", plain(error), is_final=False)


def plain(error: Exception | str) -> str:
    """A clause without its full stop."""
    return " ".join((str(error) or type(error).__name__).split()).rstrip(".")


def _google_client(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """By plain HTTPS: gcsfs's other client asks by gRPC too, and waits for a minute each time where that is barred."""
    import aiohttp
    from fsspec.config import conf
    from gcsfs.core import GCSFileSystem

    log = logging.getLogger("gcsfs")
    if log.level == logging.NOTSET:
        # What goes wrong is told in a sentence, not by a traceback for each attempt.
        log.setLevel(logging.CRITICAL)
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS)
    options |= {
        # Without this, one whose key file is not found would go on as nobody.
        "token": "google_default",
        # And without this, a request that is never answered would wait for ever.
        "requests_timeout": timeout,
        "session_kwargs": {"trust_env": True},
    }
    set_by_user = {**conf.get("gcs", {}), **conf.get("gs", {})}
    client = GCSFileSystem(**(options | set_by_user))
    try:
        # Later, gcsfs would offer a key that is not accepted again and again, for half a minute.
        client.credentials.maybe_refresh()
    except Exception as error:
        if meaning_of(error).is_final:
            raise
    return client, str(GCSFileSystem._strip_protocol(url))


def _said_of_sign_in(causes: list[BaseException]) -> str:
    """gcsfs only says that Google refused a sign-in; the cause says why, and then has its own insides behind it."""
    for each in causes:
        if type(each).__module__.startswith("google.auth") and each.args:
            return str(each.args[0])
    return str(causes[0]) or type(causes[0]).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
