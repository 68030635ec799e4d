"""A persistent HTTP connection to an endpoint, which reconnects after a failure."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any, NamedTuple

from steppe.errors import UserError
from steppe.net.local_tokens import token_of_peer
from steppe.serve.clients._base import EndpointAccess, EndpointAway, EndpointFault, EpisodeLost, reason_of

BUSY = {408, 425, 429, 502, 503, 504}
"""Statuses that mean: not now."""
UNKNOWN = (404, 410)
"""Statuses that mean: no such thing, or no longer."""
MAX_BODY_BYTES = 1 << 28


class ReceivedReply(NamedTuple):
    """A received reply; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class ClientConnection:
    """A connection for one thread; a failure that may pass raises `EndpointAway`, others an error with the way out."""

    def __init__(self, access: EndpointAccess) -> None:
        self._access, self._prefix = access, access.address.prefix
        self._tls = access.tls()
        self._connection: http.client.HTTPConnection | None = None
        self._identity = _bearer(access.token)

    def ask(self, method: str, path: str, message: Any = None) -> dict[str, Any]:
        """Sends JSON and returns the JSON object that comes back."""
        body = None if message is None else encoded(message)
        return self.parsed(self.send(method, path, body, {"Content-Type": "application/json"} if body else {}))

    def listed(self, method: str, path: str) -> list[dict[str, Any]]:
        """Sends an empty request and returns the objects of the JSON list that comes back."""
        reply = self.send(method, path, b"{}", {"Content-Type": "application/json"})
        try:
            data = json.loads(reply.body)
        except (ValueError, RecursionError):
            data = None
        return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []

    def tell(self, path: str, message: Any) -> None:
        """Sends feedback; raises `EpisodeLost` if the endpoint no longer knows what it is for."""
        try:
            self.ask("POST", path, message)
        except _Unknown as error:
            raise EpisodeLost(str(error)) from None

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> ReceivedReply:
        """Sends one request; a refusal raises an error with the endpoint's own sentence."""
        reply = self._exchange(method, self._prefix + path, body, headers)
        if reply.status < 300:
            return reply
        raise self._refusal(reply, path)

    def parsed(self, reply: ReceivedReply) -> dict[str, Any]:
        """The JSON object of a reply; an empty body counts as an empty object."""
        try:
            data = json.loads(reply.body) if reply.body else {}
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise EndpointFault(f"{self._access.url} did not answer with a JSON object; is it an endpoint?")
        return data

    def close(self) -> None:
        """Disconnects; the next request connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _exchange(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> ReceivedReply:
        was_sent = False
        try:
            if self._connection is None:
                self._connection = self._connect()
            # From here on it is unknown how much of the message arrived.
            was_sent = True
            self._connection.request(method, path, body, self._identity | headers)
            response = self._connection.getresponse()
            data = response.read(MAX_BODY_BYTES)
            if response.will_close:
                self.close()
            return ReceivedReply(response.status, {name.lower(): value for name, value in response.getheaders()}, data)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise UserError(
                f"the certificate of {self._access.url} is not trusted ({error.verify_message}); name the file of its "
                "authority by --tls-ca"
            ) from None
        except TimeoutError:
            self.close()
            raise EndpointAway(f"no answer within {self._access.timeout:g} s", was_sent=was_sent) from None
        except http.client.BadStatusLine as error:
            self.close()
            # A reply that was cut off is not the user's mistake.
            if isinstance(error, http.client.RemoteDisconnected) or "HTTP/1.1".startswith(str(error).strip()[:8]):
                raise EndpointAway(reason_of(error), was_sent=was_sent) from None
            raise UserError(
                f"the server at {self._access.url} does not speak HTTP; give the endpoint's HTTP port, or --protocol "
                "v2-grpc for its gRPC port"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise EndpointAway(reason_of(error), was_sent=was_sent) from None
        except BaseException:
            # After Ctrl-C in the middle of an answer, the rest of it must not be read as the next one.
            self.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        access = self._access
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = _InOnePiece(access.address.host, access.address.port, timeout=access.timeout)
        else:
            connection = _Encrypted(access.address.host, access.address.port, timeout=access.timeout, context=self._tls)
        connection.connect()
        # Each message fits into one packet: waiting to fill it would cost 40 ms a step.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if access.token is None:
            # The endpoint may have restarted with another token.
            self._identity = _bearer(token_of_peer(connection.sock))
        return connection

    def _refusal(self, reply: ReceivedReply, path: str) -> Exception:
        words, url = _words(reply), self._access.url
        if reply.status in BUSY:
            # The endpoint read the message and says that it did nothing with it.
            return EndpointAway(words, pause=_seconds(reply.headers.get("retry-after")))
        if reply.status in (401, 403):
            have = "another token" if self._access.token else "its token"
            return UserError(f"{url} refused access ({words}); give {have} by --token-file or STEPPE_SERVE_TOKEN")
        if reply.status in UNKNOWN:
            return _Unknown(f"{url} has no {path} ({words}); check --url, --protocol and --model")
        if reply.status < 500:
            return UserError(f"{url} refused what it was sent: {words}")
        return EndpointFault(f"{url} had an internal error ({reply.status}): {words}; see its log")


class _InOnePiece(http.client.HTTPConnection):
    """Sends head and body in one packet: two would wake the other side twice."""

    _pieces: list[bytes] | None = None

    def request(self, *args: Any, **more: Any) -> None:
        """Sends one request."""
        self._pieces = []
        try:
            super().request(*args, **more)
            whole = b"".join(self._pieces)
        finally:
            self._pieces = None
        self.send(whole)

    def send(self, data: Any) -> None:
        """Collects the pieces of a request."""
        if self._pieces is None:
            super().send(data)
        else:
            self._pieces.append(data)


class _Encrypted(_InOnePiece, http.client.HTTPSConnection):
    """The same with TLS."""


class _Unknown(UserError):
    """The endpoint does not have what was asked for."""


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def encoded(message: Any) -> bytes:
    """A message as compact JSON."""
    return json.dumps(message, separators=(",", ":")).encode()


def _words(reply: ReceivedReply) -> str:
    """The sentence of a refusal, wherever the endpoint has put it."""
    try:
        data = json.loads(reply.body)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        status = data.get("status")
        for words in (data.get("error"), status.get("info") if isinstance(status, dict) else None, data.get("detail")):
            if isinstance(words, str) and words:
                return words
    return http.client.responses.get(reply.status, f"status {reply.status}").lower()


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds <= 60 else None
