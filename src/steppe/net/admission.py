"""Admits connections: greetings are read in one thread, and only clients that greet properly get through.

A connection is pending until it has shown the token or, if there is none, has greeted. Pending and admitted connections
have limits of their own, so nobody without the token can take the place of an admitted one. A pending connection costs
a socket and a few kilobytes at most, no thread, and is cut if its greeting is not complete in time, however slowly it
is sent. If there are too many, the newest is accepted and the oldest one of the address that has most of them is cut.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from steppe.errors import reason_of
from steppe.net.hello import Greeting, PeerRefused, check_hello
from steppe.net.messagepack import Malformed, pack, unpack_small
from steppe.net.protocol import HEADER, LONGEST_ERROR, Message
from steppe.net.rated_log import RatedLog

GREETING_LIMIT = 4096
"""The longest greeting, in bytes: the name of the protocol, its version and the token."""
ACCEPTED_AT_ONCE = 16
"""How many connections are accepted before greetings are read again: an admitted one makes room for the next."""
END_SECONDS = 1.0
"""How long a refused client may take to read the reason."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdmissionLimits:
    """How many connections there may be at once, and how long a greeting may take."""

    connections: int = 256
    connections_per_address: int = 192
    pending: int = 256
    pending_per_address: int = 64
    greeting_seconds: float = 10.0
    """From the connection to the end of the greeting, encryption included."""


class AdmittedConnection:
    """A connection that has greeted: a blocking socket that counts against the limits until `leave`."""

    def __init__(self, sock: socket.socket, peer: tuple[str, int], leave: Callable[[], None]) -> None:
        self.sock, self.peer = sock, peer
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        """Stops counting it; may be called again. The caller closes the socket."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class Admission:
    """Accepts connections of a listening socket, reads their greetings and hands on those admitted, in one thread.

    `welcome` gets each `AdmittedConnection`; it must return at once. Call `leave` when the connection ends.
    """

    def __init__(
        self,
        listener: socket.socket,
        greeting: Greeting,
        tls: ssl.SSLContext | None,
        welcome: Callable[[AdmittedConnection], None],
        limits: AdmissionLimits | None = None,
    ) -> None:
        self._listener, self._greeting, self._tls, self._welcome = listener, greeting, tls, welcome
        self._limits = limits or AdmissionLimits()
        self._pending: dict[PendingConnection, None] = {}
        """Oldest first."""
        self._pending_per_address: Counter[str] = Counter()
        self._admitted_per_address: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._waking, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        for sock in (listener, self._woken):
            self._selector.register(sock, selectors.EVENT_READ)
        self._refusals = RatedLog(log)

    def serve(self) -> None:
        """Admits connections until `stop`; then closes the listening socket and cuts all pending connections."""
        try:
            while True:
                sources = self._read_all(self._timeout())
                self._cut_overdue()
                self._refusals.flush()
                if self._listener in sources:
                    self._accept()
                if self._woken in sources:
                    # Clients that have greeted already are handed on, and learn that the server ends.
                    self._read_all(0.0)
                    return
        finally:
            for connection in list(self._pending):
                self._cut(connection)
            self._refusals.flush(at_once=True)
            self._selector.close()
            self._listener.close()
            self._waking.close()
            self._woken.close()

    def stop(self) -> None:
        """Makes `serve` return; called from another thread or a signal handler, also after it has returned."""
        with contextlib.suppress(OSError):
            self._waking.send(b"s")

    def _read_all(self, seconds: float | None) -> list[Any]:
        """Waits for data and reads from the pending connections; returns the sockets that were ready."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.data in self._pending:
                self._continue_greeting(key.data)
        return [key.fileobj for key, _ in ready]

    def _timeout(self) -> float | None:
        times = [connection.deadline for connection in self._pending]
        if (due := self._refusals.due) is not None:
            times.append(due)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, peer = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # No file descriptor is left, so a pending connection is cut to free one.
                self._refusals.warning("a connection could not be taken: %s", reason_of(error))
                if self._pending:
                    self._cut(next(iter(self._pending)))
                else:
                    time.sleep(0.05)
                return
            self._add(sock, (str(peer[0]), int(peer[1])))

    def _add(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        address = network_of(peer[0])
        if self._pending_per_address[address] >= self._limits.pending_per_address:
            self._make_room(address)
        elif len(self._pending) >= self._limits.pending:
            self._make_room(self._pending_per_address.most_common(1)[0][0])
        try:
            sock.setblocking(False)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = PendingConnection(
                sock, peer, address, time.monotonic() + self._limits.greeting_seconds, self._tls is not None
            )
            self._selector.register(sock, selectors.EVENT_READ, connection)
        except (OSError, ValueError) as error:
            self._refusals.warning("%s: no connection: %s", peer[0], error)
            sock.close()
            return
        self._pending[connection] = None
        self._pending_per_address[address] += 1

    def _make_room(self, address: str) -> None:
        oldest = next(connection for connection in self._pending if connection.address == address)
        self._refusals.warning("%s: cut before it had greeted, to make room for others", oldest.peer[0])
        self._cut(oldest)

    def _cut_overdue(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._pending if each.deadline <= now]:
            if not connection.is_refused:
                self._refusals.warning(
                    "%s: has not greeted within %g s", connection.peer[0], self._limits.greeting_seconds
                )
            self._cut(connection)

    def _continue_greeting(self, connection: PendingConnection) -> None:
        """Continues a greeting of which more has arrived."""
        try:
            body = connection.advance()
            if body is None:
                self._selector.modify(connection.sock, connection.events, connection)
                return
            check_hello(unpack_small(body), self._greeting)
            self._admit(connection)
        except Malformed as error:
            self._refuse(connection, "protocol", f"the {self._greeting.them} {error}")
        except PeerRefused as error:
            self._refuse(connection, error.kind, str(error))
        except (OSError, EOFError) as error:
            if not connection.is_refused:
                self._refusals.info("%s: gone before it had greeted (%s)", connection.peer[0], _reason(error))
            self._cut(connection)

    def _admit(self, connection: PendingConnection) -> None:
        address, limits = connection.address, self._limits
        with self._lock:
            count, of_address = self._admitted_per_address.total(), self._admitted_per_address[address]
            is_full = count >= limits.connections or of_address >= limits.connections_per_address
            self._admitted_per_address[address] += not is_full
        if is_full:
            # No reason is sent: a client with the token tries again later, as after any broken connection.
            self._refusals.warning(
                "%s: has greeted, but there are %d connections already, %d of that address",
                *(connection.peer[0], count, of_address),
            )
            self._cut(connection)
            return
        self._forget(connection)
        admitted = AdmittedConnection(connection.sock, connection.peer, lambda: self._uncount(address))
        try:
            connection.sock.setblocking(True)
            self._welcome(admitted)
        except Exception as error:
            # For example, no thread can be started: the other connections are still served.
            self._refusals.warning("%s: a connection could not be served: %s", connection.peer[0], error)
            admitted.leave()
            connection.sock.close()

    def _uncount(self, address: str) -> None:
        with self._lock:
            self._admitted_per_address[address] -= 1
            if not self._admitted_per_address[address]:
                del self._admitted_per_address[address]

    def _refuse(self, connection: PendingConnection, kind: str, sentence: str) -> None:
        """Sends the reason, if that is possible at once, and waits a moment for the client to close.

        Closing a socket with unread bytes could destroy what was sent.
        """
        self._refusals.warning("%s: %s", connection.peer[0], sentence)
        error = {"op": "error", "kind": kind, "message": sentence[:LONGEST_ERROR], "version": self._greeting.version}
        try:
            connection.refuse(error)
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
        except (OSError, ValueError):
            self._cut(connection)

    def _cut(self, connection: PendingConnection) -> None:
        self._forget(connection)
        with contextlib.suppress(OSError):
            connection.sock.close()

    def _forget(self, connection: PendingConnection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        if connection in self._pending:
            del self._pending[connection]
            self._pending_per_address[connection.address] -= 1
            if not self._pending_per_address[connection.address]:
                del self._pending_per_address[connection.address]


class PendingConnection:
    """A connection whose greeting is not complete; no method blocks."""

    def __init__(
        self, sock: socket.socket, peer: tuple[str, int], address: str, deadline: float, is_encrypted: bool
    ) -> None:
        self.sock, self.peer, self.address, self.deadline = sock, peer, address, deadline
        self.is_refused = False
        self.events = selectors.EVENT_READ
        """The events to wait for next."""
        self._handshake = is_encrypted
        self._received = bytearray()

    def advance(self) -> bytes | None:
        """Reads what has arrived; returns the body of the greeting once it is complete."""
        self.events = selectors.EVENT_READ
        try:
            if self._handshake:
                self.sock.do_handshake()  # type: ignore[attr-defined]
                self._handshake = False
            if self.is_refused:
                # Whatever still arrives is discarded, for END_SECONDS.
                if not socket.socket.recv(self.sock, 65536):
                    raise EOFError
                return None
            while True:
                part = self.sock.recv(HEADER.size + GREETING_LIMIT + 1 - len(self._received))
                if not part:
                    raise EOFError
                self._received += part
                if (body := self._body()) is not None:
                    return body
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
            return None

    def refuse(self, error: Message) -> None:
        """Sends the error and ends the sending side."""
        body = pack(error)
        self.is_refused, self.deadline = True, time.monotonic() + END_SECONDS
        self.sock.send(HEADER.pack(len(body)) + body)
        # The method of an encrypted socket would continue unencrypted.
        socket.socket.shutdown(self.sock, socket.SHUT_WR)

    def _body(self) -> bytes | None:
        if len(self._received) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._received)
        if length > GREETING_LIMIT:
            raise Malformed(f"announced a message of {length:,} bytes where at most {GREETING_LIMIT:,} make sense")
        if len(self._received) > HEADER.size + length:
            raise Malformed("sent a message before it was its turn")
        return bytes(self._received[HEADER.size :]) if len(self._received) == HEADER.size + length else None


def network_of(host: str) -> str:
    """The network whose connections are counted together: an IPv4 address, or the /64 that an IPv6 subscriber gets."""
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _reason(error: OSError | EOFError) -> str:
    return reason_of(error) if isinstance(error, OSError) else "it was closed"
