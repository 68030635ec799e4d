"""Runs an endpoint over HTTP and gRPC in one event loop, until a signal; requests in progress are answered first."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import MissingExtra, UserError
from steppe.net.credentials import server_tls
from steppe.net.local_tokens import token_for
from steppe.net.sockets import is_loopback, listen
from steppe.serve.admission import Gate
from steppe.serve.endpoint import Endpoint
from steppe.serve.limits import TrafficLimits
from steppe.serve.question_batches import Batcher

if TYPE_CHECKING:
    from steppe.serve.http.request_metrics import Observer

LINGER_SECONDS = 0.3
"""Seconds after a signal in which open connections may still send requests, before idle ones are closed."""
BACKLOG = 2048
"""Most connections that wait to be accepted."""
OTHER_FILES = 256
"""Files and sockets, other than connections, that a server may need at once."""
SWITCH_SECONDS = 1e-4
"""How long the ledger's thread may keep the interpreter while a request waits. The event loop gives it up between any
two requests, so Python's default of 5 ms would be added to each of them while rewards are written."""


@dataclass(frozen=True)
class ServerConfig:
    """Address, token, TLS and limits of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port."""
    grpc_port: int | None = None
    """None: no gRPC."""
    token: str | None = field(default=None, repr=False)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: Path | str | None = None
    """A file with one line of JSON for each request; `-` is standard output."""
    limits: TrafficLimits = field(default_factory=TrafficLimits)


class EndpointServer:
    """Listens as soon as it is made; `run` answers until a signal, or until `stop` is called from another thread."""

    def __init__(self, endpoint: Endpoint, config: ServerConfig, version: str = "unknown") -> None:
        _check_packages()
        _check_access(config)
        limits = _within_open_files(config.limits, 1 if config.grpc_port is None else 2)
        config = replace(config, limits=limits)
        self._endpoint, self._version = endpoint, version
        self._tls = server_tls(config.tls_cert, config.tls_key)
        self._socket = listen(config.host, config.port, BACKLOG)
        try:
            self._local_token = token_for(self._socket, config.host, config.token)
        except BaseException:
            self._socket.close()
            raise
        self._config = config if self._local_token is None else replace(config, token=self._local_token.token)
        self.grpc_port: int | None = None
        """The real port of gRPC, once `run` is ready."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._http: Any = None
        self._observer: Observer | None = None

    @property
    def port(self) -> int:
        """The real port of HTTP."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address as a client writes it."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{_shown(self._config.host)}:{self.port}"

    @property
    def answers(self) -> int:
        """How many questions it has answered."""
        return 0 if self._observer is None else self._observer.answers

    @property
    def token_file(self) -> Path | None:
        """The file of the token that the server made for itself, if it did."""
        return None if self._local_token is None else self._local_token.files[0]

    def run(self, on_ready: Callable[[EndpointServer], None] | None = None) -> None:
        """Answers until it is told to stop; `on_ready` is called before the first request."""
        import uvloop

        patience = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._run(on_ready))
        finally:
            sys.setswitchinterval(patience)
            self._socket.close()
            if self._local_token is not None:
                self._local_token.remove()

    def stop(self) -> None:
        """Stops the server as a signal does; may be called from any thread, repeatedly."""
        loop, ending = self._loop, self._ending
        if loop is not None and ending is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ending.set)

    async def _run(self, on_ready: Callable[[EndpointServer], None] | None) -> None:
        from steppe.serve.http.app import HttpApp
        from steppe.serve.http.request_metrics import AccessLog, Observer

        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        config, endpoint = self._config, self._endpoint
        gate, batcher = Gate(config.limits, config.token), Batcher(endpoint)
        access_log = None if config.access_log is None else AccessLog(config.access_log)
        self._observer = observer = Observer(access_log)
        app = HttpApp(endpoint, gate, batcher, observer, self._version, config.host)
        try:
            await endpoint.start(self.url)
            try:
                rpc = await self._start_grpc(gate, batcher, observer)
                await self._serve(app, gate, rpc, on_ready)
            finally:
                await endpoint.close()
        finally:
            if access_log is not None:
                access_log.close()

    async def _serve(self, app: Any, gate: Gate, rpc: Any, on_ready: Callable[[EndpointServer], None] | None) -> None:
        """Answers from the first request to the last."""
        assert self._ending is not None
        self._http = http = _http_server(app, self._config.limits, self._tls)
        serving = asyncio.create_task(http.serve(sockets=[self._socket]))
        watching = asyncio.create_task(_watch(http, self._config.limits))
        try:
            with _signals(self._signal):
                await http.ready.wait()
                # Objects made so far stay: collecting them again and again would delay requests.
                gc.collect()
                gc.freeze()
                if on_ready is not None:
                    on_ready(self)
                await asyncio.wait([serving, asyncio.create_task(self._ending.wait())], return_when="FIRST_COMPLETED")
                gate.is_draining = True
                stopping = None if rpc is None else asyncio.create_task(rpc.stop(self._config.limits.drain_seconds))
                await _linger(http)
                http.should_exit = True
                await serving
                if stopping is not None:
                    await stopping
        finally:
            gc.unfreeze()
            watching.cancel()

    def _signal(self) -> None:
        """The first signal stops the server after the requests in progress, the second at once."""
        assert self._ending is not None
        if self._ending.is_set():
            self._http.should_exit = self._http.force_exit = True
        self._ending.set()

    async def _start_grpc(self, gate: Gate, batcher: Batcher, observer: Any) -> Any:
        config = self._config
        if config.grpc_port is None:
            return None
        from steppe.serve.grpc.grpc_server import start

        server, self.grpc_port = await start(self._endpoint, gate, batcher, observer, config, self._version)
        if self._local_token is not None:
            self._local_token.publish(self._socket.getsockname()[0], self.grpc_port)
        return server


def _check_packages() -> None:
    try:
        for name in ("httptools", "orjson", "uvicorn", "uvloop"):
            import_module(name)
    except ImportError as error:
        raise MissingExtra("serving", "serve") from error


def _check_access(config: ServerConfig) -> None:
    if config.token is None and not is_loopback(config.host):
        raise UserError(
            f"whoever reaches {config.host} could ask this endpoint and reward it; give a token by --token-file or "
            "STEPPE_SERVE_TOKEN, or serve at --host 127.0.0.1"
        )


def _within_open_files(limits: TrafficLimits, ports: int) -> TrafficLimits:
    """The limits with no more connections than this process may open files for; raises that number if it can.

    Without free files no connection could be accepted, and none would be cut off to make room.
    """
    needed = limits.connections * ports + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return replace(limits, connections=min(limits.connections, max(1, (soft - OTHER_FILES) // ports)))


def _http_server(app: Any, limits: TrafficLimits, tls: Any) -> Any:
    import uvicorn

    from steppe.serve.http.connections import IDLE_SECONDS, connection_class

    class HttpServer(uvicorn.Server):
        """uvicorn without its own signal handlers, and with an event for being ready."""

        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            self.ready = asyncio.Event()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
            """Leaves signals alone."""
            yield

        async def startup(self, sockets: Any = None) -> None:
            """Sets `ready` once connections are accepted."""
            await super().startup(sockets)
            self.ready.set()

    config = uvicorn.Config(
        app,
        http=connection_class(app, limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=round(IDLE_SECONDS),
        timeout_graceful_shutdown=max(1, round(limits.drain_seconds)),
    )
    config.load()
    config.ssl = tls
    return HttpServer(config)


@contextlib.contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """Sends SIGTERM and Ctrl-C to the handler, if this is the main thread, the only one that gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _watch(http: Any, limits: TrafficLimits) -> None:
    """Ends connections whose clients take too long."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(1.0, limits.request_seconds / 4))
        now = loop.time()
        for connection in list(http.server_state.connections):
            connection.check(now)


async def _linger(http: Any) -> None:
    """Goes on answering for a moment; each open connection is told to close."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LINGER_SECONDS
    while http.server_state.connections and loop.time() < end:
        await asyncio.sleep(0.02)


def _shown(host: str) -> str:
    """A host as a client writes it."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
