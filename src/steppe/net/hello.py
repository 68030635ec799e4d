"""The greeting that admits a client: the name and version of the protocol, and the token."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

from steppe.net.messagepack import Malformed


@dataclass(frozen=True)
class Greeting:
    """The expected first message of a client."""

    protocol: str
    version: int
    token: str | None
    me: str
    """The refusing side in error messages: server or learner."""
    them: str
    """The greeting side in error messages: client or worker."""


class PeerRefused(Exception):
    """A client is not admitted, or its request is not granted; `kind` is a word of the protocol."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def check_hello(hello: Any, wanted: Greeting) -> None:
    """Raises unless the first message names the same protocol and version, and the token if there is one."""
    if not isinstance(hello, dict) or hello.get("op") != "hello" or hello.get("protocol") != wanted.protocol:
        raise Malformed(f'did not begin with "hello" of the protocol "{wanted.protocol}"')
    version = hello.get("version")
    if type(version) is not int or version != wanted.version:
        raise PeerRefused("version", f"this {wanted.me} speaks version {wanted.version} of the protocol")
    if wanted.token is not None:
        _check_token(hello.get("token"), wanted.token, wanted.me)


def _check_token(given: Any, token: str, me: str) -> None:
    if given is None:
        raise PeerRefused("token", "a token is needed and none was given")
    # In constant time, so that timing reveals no letter of it.
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), token.encode()):
        raise PeerRefused("token", f"it is not the one this {me} was given")
