"""How whoever listens lets somebody in: encryption, the name and version of the protocol, the token."""

from __future__ import annotations

import hmac
import socket
import ssl
from typing import Any

from steppe.envs.remote.packing import Malformed
from steppe.envs.remote.protocol import Channel, Disconnected, Message
from steppe.errors import reason_of


class Refused(Exception):
    """Who asks is not let in, or does not get it; `kind` is a word of the protocol."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def encrypted(sock: socket.socket, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    """The connection as messages go over it; a `Disconnected` where no encryption comes about in so many seconds."""
    sock.settimeout(seconds)
    try:
        return sock if tls is None else tls.wrap_socket(sock, server_side=True)
    except OSError as error:
        raise Disconnected(f"no encrypted connection: {reason_of(error)}") from None


def heard_hello(channel: Channel, seconds: float, protocol: tuple[str, int], token: str | None, me: str) -> Message:
    """The first message, once it names the same protocol (name, version) and the token; `me` is who says no."""
    name, version = protocol
    hello = channel.receive(seconds)
    if hello["op"] != "hello" or hello.get("protocol") != name:
        raise Malformed(f'did not begin with "hello" of the protocol "{name}"')
    if hello.get("version") != version:
        raise Refused("version", f"this {me} speaks version {version} of the protocol")
    if token is not None:
        _check_token(hello.get("token"), token, me)
    return hello


def _check_token(given: Any, token: str, me: str) -> None:
    if given is None:
        raise Refused("token", "a token is needed and none was given")
    # In constant time, so that no letter of it can be found by measuring.
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), token.encode()):
        raise Refused("token", f"it is not the one this {me} was given")
