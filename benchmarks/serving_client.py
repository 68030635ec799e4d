"""One client for all servers: it sends ready-made bytes over kept connections, so it costs next to nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any


class Request:
    """A POST of JSON, as bytes."""

    def __init__(self, path: str, message: Any) -> None:
        body = json.dumps(message).encode()
        head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        self.bytes = "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


def sequential(port: int, request: Request, count: int, warm_up: int) -> list[float]:
    """The seconds of each of `count` requests, one after the other over one connection."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seconds = []
        for number in range(warm_up + count):
            started = time.perf_counter()
            sock.sendall(request.bytes)
            received = b""
            while not is_whole(received):
                piece = sock.recv(65536)
                if not piece:
                    raise ConnectionError("the server hung up")
                received += piece
            if number >= warm_up:
                seconds.append(time.perf_counter() - started)
            check(received)
    return seconds


def concurrent(port: int, request: Request, clients: int, count: int, warm_up: int) -> tuple[list[float], float]:
    """(seconds of each of `count` requests, seconds of all); each client sends its next request at once."""
    return asyncio.run(_concurrent(port, request, clients, count, warm_up))


def is_whole(received: bytes) -> bool:
    """Whether a response is complete."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return False
    lower = head.lower()
    at = lower.find(b"content-length:")
    if at < 0:
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(lower[at + 15 :].split(b"\r\n", 1)[0])


def check(received: bytes) -> None:
    """Raises ConnectionError unless the answer is a success, so that refusals do not count as quick answers."""
    if not received.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"the server said {received[:500]!r}")


class _Client(asyncio.Protocol):
    """Sends a request, waits for the answer and repeats, until all clients together have sent enough."""

    def __init__(self, request: Request, run: _Run) -> None:
        self._request, self._run = request, run
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if is_whole(self._received):
            self._run.answered(time.perf_counter() - self._started, self._received)
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.hung_up()

    def _ask(self) -> None:
        self._received = b""
        if self._run.is_over:
            self._transport.close()
            return
        self._started = time.perf_counter()
        self._transport.write(self._request.bytes)


class _Run:
    """The state that all clients of a run share."""

    def __init__(self, count: int, warm_up: int) -> None:
        self.seconds: list[float] = []
        self.started = 0.0
        self.over: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._left, self._warm_up = count, warm_up

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def answered(self, seconds: float, received: bytes) -> None:
        check(received)
        if self._warm_up:
            self._warm_up -= 1
            self.started = time.perf_counter()
        elif self._left:
            self.seconds.append(seconds)
            self._left -= 1
            if not self._left:
                self.over.set_result(time.perf_counter() - self.started)

    def hung_up(self) -> None:
        if not self.over.done():
            self.over.set_exception(ConnectionError("the server hung up"))


async def _concurrent(port: int, request: Request, clients: int, count: int, warm_up: int) -> tuple[list[float], float]:
    loop, run = asyncio.get_running_loop(), _Run(count, warm_up)
    for _ in range(clients):
        await loop.create_connection(lambda: _Client(request, run), "127.0.0.1", port)
    elapsed = await run.over
    return run.seconds, elapsed
