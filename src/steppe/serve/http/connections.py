"""HTTP connections: answers a question as soon as its last byte arrives, and cuts off slow clients."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from steppe.serve.http.app import ON_ADMISSION, HttpApp, HttpRoute
from steppe.serve.http.open_connections import OpenConnections
from steppe.serve.http.replies import Headers, HttpReply
from steppe.serve.limits import TrafficLimits

MAX_HEAD_BYTES = 1 << 16
"""Most bytes of the first line and the headers of a request."""
MAX_QUICK_BYTES = 1 << 16
"""Longest question that is answered at once; longer ones are read with back-pressure."""
MAX_PIPELINED = 256
"""Most requests on one connection ahead of their answers."""
MAX_HEADS = 16
"""Most heads of questions that a connection remembers; those of one client differ in their length at most."""
MAX_KNOWN_HEAD_BYTES = 1 << 10
MAX_QUICK = 32
"""Most questions of one piece of data that are answered before other connections have their turn."""
IDLE_SECONDS = 75.0
"""Seconds that a connection may be open without a request."""
END_OF_HEAD = b"\r\n\r\n"
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class RequestHead(NamedTuple):
    """The parsed first line and headers of a question."""

    route: HttpRoute
    path: str
    headers: Headers
    length: int
    """Length of the body."""


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection with a fast path; each server makes a subclass with its `own_app` and limits.

    A question takes a fast path past ASGI: a task, an event and two more turns of the event loop would cost as much as
    its answer. If the same head, byte for byte, came before on this connection, it is not even parsed again. All other
    requests, and unusual ones, take the ASGI path.
    """

    own_app: HttpApp
    limits: TrafficLimits
    open_connections: OpenConnections
    _since: float | None = None
    """Time of the first byte of an incomplete request."""
    _stuck_since: float | None = None
    """Time since when the client has not read its answer."""
    _closing_since: float | None = None
    """Time when the client of a closing connection last read a part of the last answer."""
    _left = 0
    """Bytes of the last answer that were unread then."""
    _idle_since: float | None = None
    """Time of the last answer on the fast path; uvicorn itself times the ASGI path."""
    _head = 0
    """Bytes of a request whose headers are incomplete."""
    _route: HttpRoute | None = None
    """The route of a question on the fast path, until it is answered."""
    _body = b""
    _quick_left = MAX_QUICK
    _is_between = True
    """Whether nothing of the next request has arrived yet."""
    _data = b""
    """The latest data, if the request being parsed begins with its first byte."""
    _size = 0
    """Length of the latest data."""
    _is_trusted = False
    """Whether a request of this connection was admitted."""
    _is_over = False
    """Whether reading has ended, since the client was told why the connection closes."""
    _running: Any = None
    """The request being answered on the ASGI path; `cycle` is the latest request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts the connection, or refuses it if there are too many."""
        super().connection_made(transport)
        self._heads: dict[bytes, RequestHead] = {}
        self._since = self.loop.time()
        self._address = self.client[0] if self.client else ""
        reason = self.open_connections.add(self, self._address)
        if reason is not None:
            self._hang_up(503, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        """Makes room for another connection."""
        self.open_connections.remove(self)
        self._abandon()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses data, and notes whether a request is complete."""
        if self._heads and self._answer_known(data):
            return
        if self._is_over:
            return
        self._idle_since, self._quick_left, self._data = None, MAX_QUICK, data if self._is_between else b""
        self._size = len(data)
        super().data_received(data)
        if self._is_over:
            return
        if self._idle_since is not None:
            if not self._is_between:
                self._since = self.loop.time()
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._head = 0
            if not cycle.more_body:
                self._since = None
                return
        elif self._route is None:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self._refuse_head()
        if self._since is None:
            self._since = self.loop.time()

    def on_message_begin(self) -> None:
        """Notes the first byte of a request."""
        super().on_message_begin()
        self._is_between = False

    def on_headers_complete(self) -> None:
        """Chooses the path of a request."""
        if self._is_over:
            return
        if self._head + self._size > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        if self.url[:1] != b"/":
            self._take_host_from_target()
        cycle = self.cycle
        is_owed = cycle is not None and not cycle.response_complete
        if is_owed and len(self.pipeline) >= MAX_PIPELINED:
            self._hang_up(503, f"more than {MAX_PIPELINED} requests came before the first was answered")
            return
        if not is_owed and self._quick_left and not self.flow.write_paused and not self.expect_100_continue:
            route = self.own_app.quick_route(self.parser.get_method(), self.url.decode("latin-1"))
            if route is not None and self._is_short() and self.parser.should_keep_alive():
                self._route, self._body = route, b""
                return
        self._go_common_way()

    def on_body(self, body: bytes) -> None:
        """Keeps the body of a question until it is complete."""
        if self._is_over:
            return
        if self._route is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        """Answers a complete question."""
        route, data = self._route, self._data
        self._is_between, self._data = True, b""
        if self._is_over:
            return
        if route is None:
            super().on_message_complete()
            return
        self._route = None
        path = self.url.decode("latin-1")
        if self.own_app.quick_route(b"POST", path) is None:
            # The fast path was open when the head arrived, and is closed now.
            self._go_common_way()
            super().on_body(self._body)
            super().on_message_complete()
            return
        self._quick_left -= 1
        # Refused clients do not get to fill the memory.
        if self._reply(route, path, self.headers, self._body) == HTTPStatus.OK:
            self._trust()
            self._learn_head(data, RequestHead(route, path, self.headers, len(self._body)))

    def cut(self, message: str) -> None:
        """Closes a connection without a request, to make room."""
        if self.scheme == "https":
            # A silent client would not finish the closing handshake of TLS either.
            self._is_over = True
            self.transport.abort()
        else:
            self._hang_up(503, message)

    def check(self, now: float) -> None:
        """Ends the connection if its client is too slow; called regularly."""
        if self.transport.is_closing():
            self._end_closing(now)
            return
        if self._idle_since is not None and now - self._idle_since > IDLE_SECONDS:
            self.transport.close()
            return
        patience = self.limits.request_seconds
        if not self.flow.write_paused:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > patience:
            self.transport.abort()
            return
        if self._since is None or now - self._since < patience:
            return
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self._hang_up(408, f"the request did not arrive within {patience:g} s")

    def _end_closing(self, now: float) -> None:
        """Ends a closing connection whose client reads nothing of the last answer."""
        left = self.transport.get_write_buffer_size()
        if self._closing_since is None or left != self._left:
            self._closing_since, self._left = now, left
        elif now - self._closing_since > self.limits.request_seconds:
            self.transport.abort()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Called by uvicorn when it starts to answer a request on the ASGI path."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _go_common_way(self) -> None:
        if not self._is_trusted:
            self.scope[ON_ADMISSION] = self._trust  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def _trust(self) -> None:
        if not self._is_trusted:
            self._is_trusted = True
            self.open_connections.trust(self)

    def _take_host_from_target(self) -> None:
        """A target such as http://host/path names the host, whatever the Host header says (RFC 9112, 3.2.2)."""
        authority = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0].rpartition(b"@")[2]
        self.headers[:] = [each for each in self.headers if each[0] != b"host"] + [(b"host", authority)]

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_head(self) -> None:
        self._hang_up(431, f"the headers of a request may have at most {MAX_HEAD_BYTES} bytes")

    def _abandon(self) -> None:
        """Stops an answer in progress from writing more."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _answer_known(self, data: bytes) -> bool:
        """Answers a complete question whose head is known; returns False for anything else."""
        end = data.find(END_OF_HEAD) + len(END_OF_HEAD)
        head = self._heads.get(data[:end])
        if head is None or len(data) != end + head.length or not self._is_between:
            return False
        is_owed = self.cycle is not None and not self.cycle.response_complete
        if is_owed or self.flow.write_paused or self.transport.is_closing():
            return False
        if self.own_app.quick_route(b"POST", head.path) is None:
            return False
        self._unset_keepalive_if_required()
        self._reply(head.route, head.path, head.headers, data[end:])
        return True

    def _learn_head(self, data: bytes, head: RequestHead) -> None:
        """Remembers the head of a question that is all of `data`."""
        end = len(data) - head.length
        if (
            len(self._heads) < MAX_HEADS
            and data.find(END_OF_HEAD, 0, MAX_KNOWN_HEAD_BYTES) == end - len(END_OF_HEAD) > 0
        ):
            self._heads[data[:end]] = head

    def _reply(self, route: HttpRoute, path: str, headers: Headers, body: bytes) -> int:
        """Answers a question; returns the status."""
        reply = self.own_app.answer_now(route, path, headers, body, self._address)
        self.transport.write(self._response(reply))
        if reply.status == 413:
            self.transport.close()
        self.server_state.total_requests += 1
        self._head, self._since, self._idle_since = 0, None, self.loop.time()
        return reply.status

    def _is_short(self) -> bool:
        """Whether the body's length is known and small."""
        for name, value in self.headers:
            if name == b"content-length":
                return int(value) <= min(MAX_QUICK_BYTES, self.limits.body_bytes)
        return False

    def _response(self, reply: HttpReply) -> bytes:
        pieces = [STATUS_LINES[reply.status]]
        for name, value in self.server_state.default_headers:
            pieces += (name, b": ", value, b"\r\n")
        for name, value in reply.headers:
            pieces += (name, b": ", value, b"\r\n")
        pieces += (b"\r\n", reply.body)
        return b"".join(pieces)

    def _hang_up(self, status: int, message: str) -> None:
        self._is_over = True
        if self.transport.is_closing():
            return
        body = orjson.dumps({"error": message})
        reply = HttpReply(status, body, [(b"content-length", b"%d" % len(body)), (b"connection", b"close")])
        running = self._running
        if running is None or not running.response_started or running.response_complete:
            self.transport.write(self._response(reply))
        self._abandon()
        self.transport.close()


def connection_class(app: HttpApp, limits: TrafficLimits) -> Any:
    """The connection class of one server."""
    own = {"own_app": app, "limits": limits, "open_connections": OpenConnections(limits)}
    return type("HttpConnection", (HttpConnection,), own)
