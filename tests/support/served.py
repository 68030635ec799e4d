"""Real endpoints on loopback, in a thread of this process or in a process of their own that can be killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from policies import make_policy
from steppe.serve import load_endpoint
from steppe.serve import server as server_module
from steppe.serve.admission import Gate
from steppe.serve.limits import TrafficLimits
from steppe.serve.server import EndpointServer, ServerConfig
from steppe.specs.serving import GraphSpec

PROGRAM = """
import json, sys
from pathlib import Path
from steppe.serve import load_endpoint
from steppe.serve.limits import TrafficLimits
from steppe.serve.server import EndpointServer, ServerConfig
from steppe.specs.serving import GraphSpec
graph, folder, listening, limits = map(json.loads, sys.argv[1:])
endpoint = load_endpoint(GraphSpec.model_validate(graph), folder=folder)
server = EndpointServer(endpoint, ServerConfig(limits=TrafficLimits(**limits), **listening))
server.run(lambda ready: print(ready.port, ready.grpc_port, flush=True))
print("ended", flush=True)
"""


class Reply(NamedTuple):
    """An HTTP response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A running endpoint."""

    def __init__(self, port: int, grpc_port: int | None = None, server: EndpointServer | None = None) -> None:
        self.port, self.grpc_port, self.server = port, grpc_port, server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Sends one request on a connection of its own; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)

    def infer(self, model: str = "pole", **more: Any) -> Reply:
        return self.post(f"/v2/models/{model}/infer", question(**more))


def question(data: Any = (0.1, -0.2, 0.3, 0.0), shape: Any = (1, 4), **more: Any) -> dict[str, Any]:
    """An infer request of the Open Inference Protocol."""
    tensor = {"name": "observation", "shape": list(shape), "datatype": "FP32", "data": list(data)}
    return {"inputs": [tensor | more.pop("tensor", {})], **more}


def save_policy(folder: Path, *args: Any, **settings: Any) -> Path:
    """Saves a policy, by default with four observed numbers and three choices."""
    return make_policy(*args, **settings).save(folder)


def one_policy(folder: Path, *args: Any, **settings: Any) -> dict[str, Any]:
    """A graph of one policy called "pole"."""
    return {"kind": "model", "name": "pole", "policy": str(save_policy(folder / "pole", *args, **settings))}


def router(folder: Path, bandit: str = "epsilon_greedy") -> dict[str, Any]:
    """A graph of a router called "pole" over the policies "a" and "b"."""
    names = ("a", "b")
    branches = [{"kind": "model", "name": name, "policy": str(save_policy(folder / name))} for name in names]
    return {"kind": "router", "name": "pole", "bandit": bandit, "branches": branches}


@contextlib.contextmanager
def serving(
    graph: dict[str, Any], folder: Path, limits: TrafficLimits | None = None, **listening: Any
) -> Iterator[Served]:
    """Serves a graph from a thread of this process at free ports."""
    endpoint = load_endpoint(GraphSpec.model_validate(graph), folder=folder / "state", seed=1)
    with serving_endpoint(endpoint, limits, **listening) as served:
        yield served


@contextlib.contextmanager
def serving_endpoint(endpoint: Any, limits: TrafficLimits | None = None, **listening: Any) -> Iterator[Served]:
    """Serves an endpoint from a thread of this process at free ports."""
    settings = {"port": 0, "limits": limits or TrafficLimits()} | listening
    server, ready = EndpointServer(endpoint, ServerConfig(**settings), "test"), threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda _: ready.set(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield Served(server.port, server.grpc_port, server)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


def let_no_time_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock of the rate limits: clients may send one second's allowance, however long a test takes."""
    monkeypatch.setattr(server_module, "Gate", lambda limits, token: Gate(limits, token, clock=lambda: 0.0))


class ServedProcess(Served):
    """A graph that is served from a process of its own."""

    def __init__(
        self,
        graph: dict[str, Any],
        folder: Path,
        limits: dict[str, Any] | None = None,
        prefix: Sequence[str] = (),
        **listening: Any,
    ) -> None:
        """`prefix` is a command that starts the process, such as one that limits its memory."""
        arguments = [json.dumps(each) for each in (graph, str(folder), {"port": 0} | listening, limits or {})]
        self._log = folder.with_name("log.txt")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        port, grpc_port = self.process.stdout.readline().split()
        super().__init__(int(port), None if grpc_port == "None" else int(grpc_port))

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return self._log.read_text()

    @contextlib.contextmanager
    def growing_less_than(self, megabytes: int) -> Iterator[None]:
        """Fails if its memory grows by so much at any moment inside the block."""
        before = self._memory("VmRSS")
        # This resets the kernel's record of the peak.
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        yield
        grown = self._memory("VmHWM") - before
        assert grown < megabytes, f"it took {grown} MB more"

    def _memory(self, key: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith(key))

    def close(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.communicate()
