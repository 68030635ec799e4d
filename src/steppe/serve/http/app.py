"""The ASGI application: routes, admission, request bodies, errors as JSON."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from steppe.serve.admission import Gate, RequestMemory, RequestRefused, is_local_name
from steppe.serve.endpoint import Endpoint
from steppe.serve.http import openapi, seldon
from steppe.serve.http.open_inference import OpenInferenceHandlers, no_such_path
from steppe.serve.http.replies import Handler, Headers, HttpReply, HttpRequest, as_json, status_of
from steppe.serve.http.request_metrics import Metrics, Observer, standing
from steppe.serve.question_batches import Batcher

MAX_KNOWN_PATHS = 1024
"""Most paths whose routes are remembered."""
MAX_HOSTS = 64
"""Most accepted Host headers that are remembered."""
ON_ADMISSION = "steppe.on_admission"
"""Key of a request's scope for a function to call once the whole request has arrived and was admitted."""
OVERLENGTH = 4
"""A body up to this many times the limit is read to its end before it is refused, so that its sender gets the
answer."""
MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/infer|/feedback|/ready)?")
REPOSITORY_PATH = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
PAGE_HEADERS: Headers = [
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
]
NOT_SNIFFED = (b"x-content-type-options", b"nosniff")

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger(__name__)


class HttpRoute(NamedTuple):
    """The destination of a method and a path."""

    operation: str
    """Its name in metrics and logs."""
    handler: Handler
    is_open: bool = False
    """Whether it needs neither a token nor admission: probes must be answered even if the endpoint is full."""
    model: str | None = None
    version: str | None = None
    takes_secret: bool = False
    """Whether the token comes as a client's secret, by basic authentication."""


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class HttpApp:
    """Serves one endpoint by HTTP in one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        gate: Gate,
        batcher: Batcher,
        observer: Observer,
        version: str = "unknown",
        host: str = "127.0.0.1",
    ) -> None:
        """`host` is the address the server listens at."""
        self._endpoint, self._gate, self._observer = endpoint, gate, observer
        self._host = host
        self._hosts: set[bytes] = set()
        """Accepted Host headers."""
        self._batcher, self._version = batcher, version
        self._page = Path(__file__).with_name("page.html").read_bytes()
        self._metrics: Metrics | None = None
        self._open_inference = OpenInferenceHandlers(endpoint, batcher, gate, version)
        self._seldon = seldon.SeldonHandlers(endpoint, batcher, gate)
        self._fixed_routes = self._make_fixed_routes()
        self._known_routes: dict[tuple[str, str], HttpRoute] = {}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        started = perf_counter()
        path, method, client = scope["path"], scope["method"], scope["client"]
        operation, address = "unknown", client[0] if client else ""
        try:
            route = self._known_routes.get((method, path)) or self._resolve(method, path)
            operation = route.operation
            reply = await self._answer(route, scope, address, receive)
        except ClientDisconnected:
            return
        except Exception as error:
            reply = self._failure(error, path)
        headers = reply.headers
        if self._gate.is_draining:
            headers = [*headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
        self._observer.record(operation, reply, perf_counter() - started, address, path)

    def quick_route(self, method: bytes, url: str) -> HttpRoute | None:
        """The route if `answer_now` can answer such a request at this moment, else None.

        Ask again once the request is complete: the answer may change while a body arrives.
        """
        if method != b"POST" or self._gate.is_draining or not self._batcher.answers_at_once:
            return None
        route = self._known_routes.get(("POST", url))
        return route if route is not None and route.operation == "infer" else None

    def answer_now(self, route: HttpRoute, path: str, headers: Headers, body: bytes, address: str) -> HttpReply:
        """Answers a complete request without a turn of the event loop."""
        started = perf_counter()
        try:
            encoding = self._check_headers(headers)[1]
            self._gate.enter(address)
            try:
                body = body if encoding is None else _decompressed(body, encoding, self._gate.limits.body_bytes)
                reply = route.handler(HttpRequest(headers, body, route.model, route.version))
            finally:
                self._gate.leave()
            if not isinstance(reply, HttpReply):
                raise TypeError(f"{route.operation} cannot be answered at once")
        except Exception as error:
            reply = self._failure(error, path)
        self._observer.record(route.operation, reply, perf_counter() - started, address, path)
        return reply

    async def _answer(self, route: HttpRoute, scope: dict[str, Any], address: str, receive: Receive) -> HttpReply:
        gate, headers = self._gate, scope["headers"]
        if route.is_open:
            reply = route.handler(HttpRequest(headers, b"", route.model, route.version))
            return reply if type(reply) is HttpReply else await reply  # type: ignore[misc]
        length, encoding = self._check_headers(headers, route.takes_secret)
        gate.enter(address)
        try:
            with RequestMemory(gate, address) as room:
                body = await self._body(receive, length, room)
                if (on_admission := scope.get(ON_ADMISSION)) is not None:
                    on_admission()
                if encoding is not None:
                    body = _decompressed(body, encoding, gate.limits.body_bytes)
                    room.grow(len(body))
                reply = route.handler(HttpRequest(headers, body, route.model, route.version))
                return reply if type(reply) is HttpReply else await reply  # type: ignore[misc]
        finally:
            gate.leave()

    def _check_headers(self, headers: Headers, takes_secret: bool = False) -> tuple[bytes | None, bytes | None]:
        """Checks the headers of a request; returns (length of the body, its compression)."""
        token = origin = host = length = encoding = None
        for name, value in headers:
            if name == b"authorization" or (name == b"x-auth-token" and token is None):
                token = value
            elif name == b"content-length":
                length = value
            elif name == b"content-encoding" and value != b"identity":
                encoding = value
            elif name == b"origin":
                origin = value
            elif name == b"host":
                if host is not None:
                    raise RequestRefused(400, "a request may have one Host header only")
                host = value
        if self._gate.needs_token:
            self._gate.check_token(seldon.basic_secret(token) if takes_secret else token)
        elif host is not None and host not in self._hosts:
            self._check_host(host)
        if origin is not None and origin.partition(b"://")[2] != host:
            raise RequestRefused(
                403, "requests from pages of other sites are refused; only programs and the page at / may ask"
            )
        return length, encoding

    def _check_host(self, host: bytes) -> None:
        """Refuses foreign names if there is no token: any site could point its name at this machine and let a browser
        ask."""
        if not is_local_name(host, self._host):
            shown = host[:100].decode("latin-1")
            raise RequestRefused(
                403, f'"{shown}" is not a name of this machine; use http://127.0.0.1, or give the endpoint a token'
            )
        if len(self._hosts) < MAX_HOSTS:
            self._hosts.add(host)

    async def _body(self, receive: Receive, length: bytes | None, room: RequestMemory) -> bytes:
        most = self._gate.limits.body_bytes
        if length is not None and int(length) > most * OVERLENGTH:
            raise _too_long(most)
        pieces: list[bytes] = []
        size, is_more = 0, True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            size, is_more = size + len(message["body"]), message["more_body"]
            if size > most * OVERLENGTH:
                raise _too_long(most)
            # Bytes beyond the limit are read and thrown away.
            if size <= most:
                room.grow(size)
                pieces.append(message["body"])
        if size > most:
            raise _too_long(most)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _failure(self, error: Exception, path: str) -> HttpReply:
        status, message = status_of(error), str(error)
        if status == 500:
            log.error("a request of %s failed", path[:200], exc_info=error)
            message = "the endpoint had an internal error; see its log"
        reply = as_json(_failure_message(status, message, path), status)
        if isinstance(error, RequestRefused) and error.pause is not None:
            reply.headers.append((b"retry-after", b"%d" % error.pause))
        if status == 401:
            reply.headers.append((b"www-authenticate", b"Basic" if path == seldon.TOKEN_PATH else b"Bearer"))
        elif status == 413:
            reply.headers.append((b"connection", b"close"))
        elif status == 405:
            reply.headers.append((b"allow", ", ".join(self._methods(path)).encode()))
        return reply

    def _resolve(self, method: str, path: str) -> HttpRoute:
        """The route, remembered if it is sure to exist."""
        route = self._find("GET" if method == "HEAD" else method, path)
        if route is None:
            if known := self._methods(path):
                raise RequestRefused(405, f"{method} cannot be used here; use {' or '.join(known)}")
            raise no_such_path(path)
        if len(self._known_routes) < MAX_KNOWN_PATHS and (
            route.model is None or route.model in self._endpoint.models()
        ):
            self._known_routes[method, path] = route
        return route

    def _methods(self, path: str) -> list[str]:
        return [each for each in ("GET", "POST") if self._find(each, path) is not None]

    def _find(self, method: str, path: str) -> HttpRoute | None:
        fixed = self._fixed_routes.get((method, path))
        if fixed is not None:
            return fixed
        if path.startswith("/v2/"):
            return self._find_model(method, path)
        words = path.split("/")
        # Seldon's gateways put a namespace and a deployment's name before the path.
        if words[:2] == ["", "seldon"] and "api" in words[3:5]:
            return self._fixed_routes.get((method, "/" + "/".join(words[words.index("api", 3) :])))
        return None

    def _find_model(self, method: str, path: str) -> HttpRoute | None:
        """The route of a path that names a model, and perhaps a version."""
        protocol = self._open_inference
        if method == "POST" and (found := REPOSITORY_PATH.fullmatch(path)):
            return HttpRoute("load", protocol.load if found[2] == "load" else protocol.unload, model=found[1])
        if (found := MODEL_PATH.fullmatch(path)) is None:
            return None
        model, version, action = found.groups()
        match method, action:
            case "POST", "/infer":
                return HttpRoute("infer", protocol.infer, False, model, version)
            case "POST", "/feedback" if version is None:
                return HttpRoute("feedback", protocol.feedback, False, model)
            case "GET", None:
                return HttpRoute("metadata", protocol.model, False, model, version)
            case "GET", "/ready":
                return HttpRoute("health", protocol.model_ready, False, model, version)
        return None

    def _make_fixed_routes(self) -> dict[tuple[str, str], HttpRoute]:
        protocol, dialect = self._open_inference, self._seldon
        table = {
            ("GET", "/"): HttpRoute("page", self._show_page, is_open=True),
            ("GET", "/favicon.ico"): HttpRoute("page", _no_icon, is_open=True),
            ("GET", "/standing"): HttpRoute("standing", self._standing),
            ("GET", "/metrics"): HttpRoute("metrics", self._show_metrics),
            ("GET", "/openapi.json"): HttpRoute("openapi", self._openapi),
            ("GET", "/v2"): HttpRoute("metadata", protocol.server),
            ("GET", "/v2/"): HttpRoute("metadata", protocol.server),
            ("POST", "/v2/repository/index"): HttpRoute("metadata", protocol.index),
        }
        for path in ("/v2/health/live", "/live"):
            table["GET", path] = HttpRoute("health", protocol.live, is_open=True)
        for path in ("/v2/health/ready", "/ready"):
            table["GET", path] = HttpRoute("health", protocol.ready, is_open=True)
        table["GET", "/ping"] = HttpRoute("health", dialect.ping, is_open=True)
        for version in ("v0.1", "v1.0"):
            table["POST", f"/api/{version}/predictions"] = HttpRoute("infer", dialect.predictions)
            table["POST", f"/api/{version}/feedback"] = HttpRoute("feedback", dialect.feedback)
        table["POST", seldon.TOKEN_PATH] = HttpRoute("token", dialect.token, takes_secret=True)
        return table

    def _show_page(self, request: HttpRequest) -> HttpReply:
        length = (b"content-length", b"%d" % len(self._page))
        return HttpReply(200, self._page, [*PAGE_HEADERS, NOT_SNIFFED, length])

    def _standing(self, request: HttpRequest) -> HttpReply:
        return as_json(standing(self._endpoint, self._observer, self._gate))

    def _show_metrics(self, request: HttpRequest) -> HttpReply:
        if self._metrics is None:
            self._metrics = Metrics(self._endpoint, self._observer, self._gate)
        body = self._metrics.text()
        kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        return HttpReply(200, body, [kind, (b"content-length", b"%d" % len(body))])

    def _openapi(self, request: HttpRequest) -> HttpReply:
        return as_json(openapi.document(self._endpoint, self._version, self._gate.needs_token))


def _failure_message(status: int, message: str, path: str) -> dict[str, Any]:
    """An error in the format of the path's protocol."""
    if path == seldon.TOKEN_PATH:
        return seldon.token_failure(status, message)
    if path.startswith(("/api/", "/seldon/")):
        return seldon.failure(status, message)
    return {"error": message}


def _no_icon(request: HttpRequest) -> HttpReply:
    return HttpReply(204, b"", [])


def _too_long(most: int) -> RequestRefused:
    return RequestRefused(413, f"a request may have at most {most} bytes; send fewer observations at once")


def _decompressed(body: bytes, encoding: bytes, most: int) -> bytes:
    if encoding not in (b"gzip", b"deflate"):
        raise RequestRefused(415, "a request may be compressed by gzip or deflate only")
    inflate = zlib.decompressobj(wbits=47)
    try:
        data = inflate.decompress(body, most + 1)
    except zlib.error:
        raise RequestRefused(400, f"the request is not compressed by {encoding.decode()} as its header says") from None
    if len(data) > most:
        raise _too_long(most)
    if not inflate.eof:
        raise RequestRefused(400, "the compressed request is cut off")
    return data
