"""Lets connections in: strangers are heard in one thread, and only who greets properly becomes a member.

A stranger is a connection that has not shown the token yet or, if there is none, has not greeted yet. Strangers and
members have places of their own, so nobody without the token can take a member's place. A stranger costs a socket and
at most a few kilobytes, no thread, and is cut when its greeting is not complete in time, however it drips. When the
strangers' places are full, the newest one is let in and the oldest one is cut, of the address that has the most.
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
from steppe.net.hello import Greeting, Refused, check_hello
from steppe.net.messagepack import Malformed, pack, unpack_small
from steppe.net.protocol import HEADER, LONGEST_ERROR, Message
from steppe.net.rated_log import RatedLog

GREETING_LIMIT = 4096
"""The longest greeting, in bytes: the name of the protocol, its version and the token."""
ACCEPTED_AT_ONCE = 16
"""How many connections are taken before strangers are heard again: who has greeted leaves its place to the next."""
END_SECONDS = 1.0
"""How long somebody who was refused may take to read why."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How many connections there may be at once, and how long a greeting may take."""

    members: int = 256
    members_of_address: int = 192
    strangers: int = 256
    strangers_of_address: int = 64
    seconds: float = 10.0
    """From the connection to the end of the greeting, encryption included."""


class Member:
    """A connection that has greeted: a blocking socket, and the place that it takes until `leave`."""

    def __init__(self, sock: socket.socket, peer: tuple[str, int], leave: Callable[[], None]) -> None:
        self.sock, self.peer = sock, peer
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        """Gives the place back; may be called again. Closing the socket is up to whoever has it."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class Admission:
    """Takes connections of a listening socket, hears their greetings and hands on members, in one thread.

    `welcome` gets each `Member`; it must return at once, and `leave` must be called when its connection is over.
    """

    def __init__(
        self,
        listener: socket.socket,
        greeting: Greeting,
        tls: ssl.SSLContext | None,
        welcome: Callable[[Member], None],
        limits: Limits | None = None,
    ) -> None:
        self._listener, self._greeting, self._tls, self._welcome = listener, greeting, tls, welcome
        self._limits = limits or Limits()
        self._strangers: dict[Stranger, None] = {}
        """In the order in which they came."""
        self._strangers_of: Counter[str] = Counter()
        self._members_of: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._waking, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        for sock in (listener, self._woken):
            self._selector.register(sock, selectors.EVENT_READ)
        self._refusals = RatedLog(log)

    def serve(self) -> None:
        """Lets connections in until `stop`; then closes the listening socket and cuts all strangers."""
        try:
            while True:
                sources = self._hear_all(self._seconds_to_wait())
                self._cut_late()
                self._refusals.flush()
                if self._listener in sources:
                    self._accept()
                if self._woken in sources:
                    # Who has come and greeted already is handed on, and hears that it is over.
                    self._hear_all(0.0)
                    return
        finally:
            for stranger in list(self._strangers):
                self._cut(stranger)
            self._refusals.flush(at_once=True)
            self._selector.close()
            self._listener.close()
            self._waking.close()
            self._woken.close()

    def stop(self) -> None:
        """Lets `serve` return; called from another thread or a signal handler, also when it has returned."""
        with contextlib.suppress(OSError):
            self._waking.send(b"s")

    def _hear_all(self, seconds: float | None) -> list[Any]:
        """Waits until something comes, and hears all strangers who have spoken; the sockets that were ready."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.data in self._strangers:
                self._hear(key.data)
        return [key.fileobj for key, _ in ready]

    def _seconds_to_wait(self) -> float | None:
        times = [stranger.deadline for stranger in self._strangers]
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
                # There are no more file descriptors: a stranger's is the one that is missed least.
                self._refusals.warning("a connection could not be taken: %s", reason_of(error))
                if self._strangers:
                    self._cut(next(iter(self._strangers)))
                else:
                    time.sleep(0.05)
                return
            self._take(sock, (str(peer[0]), int(peer[1])))

    def _take(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        address = network_of(peer[0])
        if self._strangers_of[address] >= self._limits.strangers_of_address:
            self._make_room(address)
        elif len(self._strangers) >= self._limits.strangers:
            self._make_room(self._strangers_of.most_common(1)[0][0])
        try:
            sock.setblocking(False)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            stranger = Stranger(sock, peer, address, time.monotonic() + self._limits.seconds, self._tls is not None)
            self._selector.register(sock, selectors.EVENT_READ, stranger)
        except (OSError, ValueError) as error:
            self._refusals.warning("%s: no connection: %s", peer[0], error)
            sock.close()
            return
        self._strangers[stranger] = None
        self._strangers_of[address] += 1

    def _make_room(self, address: str) -> None:
        oldest = next(stranger for stranger in self._strangers if stranger.address == address)
        self._refusals.warning("%s: cut before it had greeted, to make room for others", oldest.peer[0])
        self._cut(oldest)

    def _cut_late(self) -> None:
        now = time.monotonic()
        for stranger in [each for each in self._strangers if each.deadline <= now]:
            if not stranger.is_refused:
                self._refusals.warning("%s: has not greeted within %g s", stranger.peer[0], self._limits.seconds)
            self._cut(stranger)

    def _hear(self, stranger: Stranger) -> None:
        """Goes on with a stranger from whom something has come."""
        try:
            body = stranger.advance()
            if body is None:
                self._selector.modify(stranger.sock, stranger.events, stranger)
                return
            check_hello(unpack_small(body), self._greeting)
            self._admit(stranger)
        except Malformed as error:
            self._refuse(stranger, "protocol", f"the {self._greeting.them} {error}")
        except Refused as error:
            self._refuse(stranger, error.kind, str(error))
        except (OSError, EOFError) as error:
            if not stranger.is_refused:
                self._refusals.info("%s: gone before it had greeted (%s)", stranger.peer[0], _reason(error))
            self._cut(stranger)

    def _admit(self, stranger: Stranger) -> None:
        address, limits = stranger.address, self._limits
        with self._lock:
            count, of_address = self._members_of.total(), self._members_of[address]
            is_full = count >= limits.members or of_address >= limits.members_of_address
            self._members_of[address] += not is_full
        if is_full:
            # Without a word: whoever has the token comes again after a while, as after any broken connection.
            self._refusals.warning(
                "%s: has greeted, but there are %d connections already, %d of that address",
                *(stranger.peer[0], count, of_address),
            )
            self._cut(stranger)
            return
        self._forget(stranger)
        member = Member(stranger.sock, stranger.peer, lambda: self._give_back(address))
        try:
            stranger.sock.setblocking(True)
            self._welcome(member)
        except Exception as error:
            # No thread can be started, say: one connection less, and others are served on.
            self._refusals.warning("%s: a connection could not be served: %s", stranger.peer[0], error)
            member.leave()
            stranger.sock.close()

    def _give_back(self, address: str) -> None:
        with self._lock:
            self._members_of[address] -= 1
            if not self._members_of[address]:
                del self._members_of[address]

    def _refuse(self, stranger: Stranger, kind: str, sentence: str) -> None:
        """Says why, if that can be sent at once, and waits a moment for the other's end.

        Closing with unread bytes could destroy what was sent.
        """
        self._refusals.warning("%s: %s", stranger.peer[0], sentence)
        error = {"op": "error", "kind": kind, "message": sentence[:LONGEST_ERROR], "version": self._greeting.version}
        try:
            stranger.refuse(error)
            self._selector.modify(stranger.sock, selectors.EVENT_READ, stranger)
        except (OSError, ValueError):
            self._cut(stranger)

    def _cut(self, stranger: Stranger) -> None:
        self._forget(stranger)
        with contextlib.suppress(OSError):
            stranger.sock.close()

    def _forget(self, stranger: Stranger) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stranger.sock)
        if stranger in self._strangers:
            del self._strangers[stranger]
            self._strangers_of[stranger.address] -= 1
            if not self._strangers_of[stranger.address]:
                del self._strangers_of[stranger.address]


class Stranger:
    """A connection on its way to the end of its greeting; nothing here waits."""

    def __init__(
        self, sock: socket.socket, peer: tuple[str, int], address: str, deadline: float, is_encrypted: bool
    ) -> None:
        self.sock, self.peer, self.address, self.deadline = sock, peer, address, deadline
        self.is_refused = False
        self.events = selectors.EVENT_READ
        """What it waits for next."""
        self._handshake = is_encrypted
        self._received = bytearray()

    def advance(self) -> bytes | None:
        """Reads what has come; the greeting's body once it is complete."""
        self.events = selectors.EVENT_READ
        try:
            if self._handshake:
                self.sock.do_handshake()  # type: ignore[attr-defined]
                self._handshake = False
            if self.is_refused:
                # However much still comes, for END_SECONDS.
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
        """Says why, and that this was all."""
        body = pack(error)
        self.is_refused, self.deadline = True, time.monotonic() + END_SECONDS
        self.sock.send(HEADER.pack(len(body)) + body)
        # Not the method of an encrypted socket, which would go on in the clear.
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
    """Whose connections are counted together: an IPv4 address, or the 64 bits of IPv6 that one subscriber gets."""
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
