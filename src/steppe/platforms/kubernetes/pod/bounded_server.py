"""A TCP server for short HTTP requests that strangers cannot exhaust: few threads and connections, and a deadline.

One thread reads all requests without blocking, and checks a request's token as soon as its head has arrived. Only
complete requests with a valid token reach the other threads.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

THREADS = 16
"""How many requests are answered at once."""
MOST_WAITING = 512
"""How many complete requests may wait for one of these threads."""
MOST_STRANGERS = 256
"""How many connections may be open without a complete request with a valid token."""
REQUEST_SECONDS = 10.0
"""How long a request, head and body, may take to arrive."""
LARGEST_HEAD, LARGEST_BODY = 16_384, 4096
BLOCK = 1 << 16
_HEAD_END = b"\r\n\r\n"

Address = tuple[str, int]


@dataclass(eq=False)
class PendingRequest:
    """A connection with the bytes that have arrived so far."""

    connection: socket.socket
    address: Address
    deadline: float
    data: bytearray = field(default_factory=bytearray)
    length: int | None = None
    """The length of head and body together; None until the head has arrived."""
    right: str = ""
    """The right that its token gives, as returned by `right_of`."""
    is_refused: bool = False
    """Whether it was refused, and is only open until the other side has read that."""


class BoundedServer:
    """Listens from `open` until `close`."""

    def __init__(
        self,
        right_of: Callable[[str], str],
        token_header: str,
        answer: Callable[[PendingRequest], None],
        seconds: float,
    ) -> None:
        """`right_of` returns the right that a token gives, empty for none; `answer` runs in a thread of its own.

        `seconds` is how long a request may take to arrive.
        """
        self._right_of, self._answer, self._seconds = right_of, answer, seconds
        self._token_header = token_header.lower().encode()
        self._strangers: dict[socket.socket, PendingRequest] = {}
        self._waiting: queue.Queue[PendingRequest | None] = queue.Queue(MOST_WAITING)
        self._selector = selectors.DefaultSelector()
        self._is_closed = False
        self._waker, self._woken = socket.socketpair()
        self._threads: list[threading.Thread] = []

    def open(self, address: Address) -> int:
        """Starts listening; returns the port."""
        self._listener = socket.create_server(address, backlog=128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        reader = threading.Thread(target=self._read_all, name="status-server", daemon=True)
        answering = (
            threading.Thread(target=self._answer_all, name="status-answer", daemon=True) for _ in range(THREADS)
        )
        self._threads = [reader, *answering]
        for thread in self._threads:
            thread.start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stops listening; requests that are being answered are still answered."""
        if self._threads and not self._is_closed:
            self._is_closed = True
            self._waker.send(b"x")
            self._threads[0].join()
            for each in (self._waker, self._woken):
                each.close()
            for _ in range(THREADS):
                with contextlib.suppress(queue.Full):
                    self._waiting.put_nowait(None)

    def _read_all(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(self._time_left()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, PendingRequest):
                    self._read(key.data)
            now = time.monotonic()
            # The first is the oldest, and all have the same time.
            while self._strangers and (oldest := next(iter(self._strangers.values()))).deadline <= now:
                self._drop(oldest)
        for request in list(self._strangers.values()):
            self._drop(request)
        self._selector.close()
        self._listener.close()

    def _time_left(self) -> float | None:
        oldest = next(iter(self._strangers.values()), None)
        return None if oldest is None else max(0.0, oldest.deadline - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:
            # The process may be out of file descriptors.
            self._drop_one()
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._drop_one()
        connection.setblocking(False)
        request = PendingRequest(connection, address, time.monotonic() + self._seconds)
        self._strangers[connection] = request
        self._selector.register(connection, selectors.EVENT_READ, request)

    def _drop_one(self) -> None:
        """Drops the oldest connection of the address with the most connections."""
        if self._strangers:
            counts = Counter(request.address[0] for request in self._strangers.values())
            most = counts.most_common(1)[0][0]
            self._drop(next(request for request in self._strangers.values() if request.address[0] == most))

    def _read(self, request: PendingRequest) -> None:
        if self._strangers.get(request.connection) is not request:
            # It was dropped for another that was accepted in the same round.
            return
        try:
            block = request.connection.recv(BLOCK)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        if not block:
            self._drop(request)
        elif not request.is_refused:
            request.data += block
            self._examine(request)

    def _examine(self, request: PendingRequest) -> None:
        """Refuses a request, enqueues it if it is complete, or waits for the rest."""
        if request.length is None:
            end = request.data.find(_HEAD_END, 0, LARGEST_HEAD)
            if end < 0:
                if len(request.data) >= LARGEST_HEAD:
                    self._refuse(request, "431 PendingRequest Header Fields Too Large", "the head is too long")
                return
            headers = _headers(bytes(request.data[:end]))
            request.right = self._right_of(headers.get(self._token_header, b"").decode("latin-1"))
            if not request.right:
                self._refuse(request, "401 Unauthorized", "the token is missing or wrong")
                return
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or len(length) > 9 or int(length) > LARGEST_BODY:
                self._refuse(request, "413 Content Too Large", f"a body has {LARGEST_BODY} bytes at most")
                return
            request.length = end + len(_HEAD_END) + int(length)
        if len(request.data) >= request.length:
            self._enqueue(request)

    def _enqueue(self, request: PendingRequest) -> None:
        del request.data[request.length :]
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            self._refuse(request, "503 Service Unavailable", "too many requests wait; try again")
            return
        self._forget(request)

    def _refuse(self, request: PendingRequest, status: str, sentence: str) -> None:
        """Answers at once; the connection stays open until the other side closes it or its time is over."""
        request.is_refused = True
        request.data.clear()
        body = f'{{"error": "{sentence}"}}'
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        with contextlib.suppress(OSError):
            # The answer fits into the empty send buffer of the connection, so this does not block.
            request.connection.send(f"{head}Connection: close\r\n\r\n{body}".encode())
            request.connection.shutdown(socket.SHUT_WR)

    def _drop(self, request: PendingRequest) -> None:
        self._forget(request)
        request.connection.close()

    def _forget(self, request: PendingRequest) -> None:
        del self._strangers[request.connection]
        self._selector.unregister(request.connection)

    def _answer_all(self) -> None:
        while (request := self._waiting.get()) is not None:
            # A caller that hangs up is no error, and one bad request must not end a thread.
            with contextlib.suppress(Exception), request.connection:
                self._answer(request)


def _headers(head: bytes) -> dict[bytes, bytes]:
    """Name in lower case -> value; of several headers with one name the first."""
    found: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        found.setdefault(name.strip().lower(), value.strip())
    return found
