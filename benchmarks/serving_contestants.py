"""The compared servers, each with a policy of CartPole's size: 4 numbers to 2 choices through 64-64 tanh."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import steppe
from contestants import HERE, dense, python_of
from interleave import Contestant, Run
from process_tree import descendants
from serving_client import Request, sequential
from steppe.policies.description import tensor_shapes
from steppe.policies.policy import Policy, PolicyDescription
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

HELLO, STEPPE, ROUTER = "ASGI hello on uvicorn", "Steppe, one policy", "Steppe, a router over three"
MLSERVER, BENTOML, RAY = "MLServer", "BentoML", "Ray Serve"
OBSERVATION = [[0.01, -0.02, 0.03, 0.04]]
TENSOR = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": OBSERVATION[0]}
# The request names one output, since the peers compute only the action; without a name Steppe returns all outputs.
QUESTION = Request("/v2/models/policy/infer", {"inputs": [TENSOR], "outputs": [{"name": "action"}]})
START_SECONDS = 120
SERVE = """
import sys
from steppe.serve import load_endpoint
from steppe.serve.server import EndpointServer, ServerConfig
EndpointServer(load_endpoint(sys.argv[1], name="policy", folder=sys.argv[2]), ServerConfig(port=int(sys.argv[3]))).run()
"""


class Served(NamedTuple):
    """How to start a server and how to ask it."""

    name: str
    version: str
    command: Callable[[Path, int], list[str]]
    """Takes a folder with policy/, policy.onnx and router.json, and a port."""
    request: Request = QUESTION
    environment: Callable[[Path], dict[str, str]] = lambda folder: {}
    times_fewer: int = 1
    """Its number of requests is divided by this, if each takes long and no bar depends on it."""


def contestant(served: Served, count: int, measure: Callable[[int, Request, int], dict[str, float]]) -> Contestant:
    """A contestant that starts the server, measures it with `count` requests, and ends it with all its processes."""

    def run(seed: int) -> Run:
        with tempfile.TemporaryDirectory() as folder, running(served, Path(folder)) as port:
            return {"version": served.version} | measure(port, served.request, count // served.times_fewer)

    return Contestant(served.name, run)


def servers(quick: bool, *names: str) -> list[Served]:
    """The named servers whose packages are installed; prints a note for each of the others."""
    peers = python_of("STEPPE_SERVING_PEERS_VENV", ".venv-serving-peers")
    own, tool = sys.executable, str(Path(peers).parent)
    plain = Request("/", {"observation": OBSERVATION})
    every = {
        HELLO: Served(
            HELLO, version_in(own, "uvicorn"), lambda _, port: [own, f"{HERE}/peers/serving_hello.py", str(port)]
        ),
        STEPPE: Served(STEPPE, steppe.__version__, lambda folder, port: own_command("policy", folder, port)),
        ROUTER: Served(ROUTER, steppe.__version__, lambda folder, port: own_command("router.json", folder, port)),
        MLSERVER: Served(
            MLSERVER,
            version_in(peers, "mlserver"),
            lambda folder, _: [f"{tool}/mlserver", "start", str(folder / "mlserver")],
            environment=lambda folder: {"PYTHONPATH": f"{HERE}/peers"},
        ),
        BENTOML: Served(
            BENTOML,
            version_in(peers, "bentoml"),
            lambda _, port: [
                f"{tool}/bentoml", "serve", "serving_bentoml:OnnxPolicy", "--port", str(port), "--host", "127.0.0.1",
                "--working-dir", f"{HERE}/peers",
            ],
            Request("/infer", {"observation": OBSERVATION}),
            lambda folder: {"POLICY_ONNX": str(folder / "policy.onnx"), "BENTOML_HOME": str(folder / "bentoml")}
            | {"BENTOML_DO_NOT_TRACK": "True"},
            times_fewer=5,
        ),
        RAY: Served(
            RAY,
            version_in(peers, "ray"),
            lambda folder, port: [peers, f"{HERE}/peers/serving_ray.py", str(port), str(folder / "policy.onnx")],
            plain,
            lambda _: {"RAY_USAGE_STATS_ENABLED": "0"},
            times_fewer=10,
        ),
    }  # fmt: skip
    chosen = [every[name] for name in names if not (quick and name in (BENTOML, RAY))]
    for served in chosen:
        if not served.version:
            print(f"note: {served.name} is not installed, so it is not compared", file=sys.stderr)
    return [served for served in chosen if served.version]


@contextlib.contextmanager
def running(served: Served, folder: Path) -> Iterator[int]:
    """Starts a server and yields its port once it answers."""
    port = free_port()
    prepare(folder, port)
    # The benchmark's clients send no token.
    environment = os.environ | {"STEPPE_LOOPBACK_TOKEN": "never"} | served.environment(folder)
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            served.command(folder, port),
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
        )
    try:
        wait_for(port, served.request, process, log)
        yield port
    finally:
        # Some servers start processes of their own, not all of which end with the first one.
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def wait_for(port: int, request: Request, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the first request is answered."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            sequential(port, request, 1, 0)
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"error: a server did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)


def prepare(folder: Path, port: int) -> None:
    """Writes the policy for every server: as a folder, as ONNX, and in a graph with two others."""
    policy = make_policy(1)
    policy.save(folder / "policy")
    policy.export_onnx(folder / "policy.onnx")
    for number in (2, 3):
        make_policy(number).save(folder / f"other-{number}")
    branches = ["policy", "other-2", "other-3"]
    graph = {
        "kind": "router",
        "name": "policy",
        "branches": [
            {"kind": "model", "name": f"arm-{i}", "policy": str(folder / each)} for i, each in enumerate(branches)
        ],
    }
    (folder / "router.json").write_text(json.dumps(graph))
    (folder / "mlserver").mkdir()
    model = {
        "name": "policy",
        "implementation": "serving_mlserver.OnnxPolicy",
        "parameters": {"uri": str(folder / "policy.onnx"), "version": "1"},
    }
    settings = {
        "http_port": port,
        "host": "127.0.0.1",
        "grpc_port": free_port(),
        "metrics_port": free_port(),
        # It answers in the same process, which is quicker than its pool of workers.
        "parallel_workers": 0,
        "use_structured_logging": False,
        "debug": False,
    }
    (folder / "mlserver" / "model-settings.json").write_text(json.dumps(model))
    (folder / "mlserver" / "settings.json").write_text(json.dumps(settings))


def make_policy(seed: int) -> Policy:
    """A policy with random weights: its quality has no influence on its speed."""
    network = NetworkSpec(dense(64, "tanh"))
    description = PolicyDescription("ppo", "CartPole-v1", 0, Box((4,)), Discrete(2), network, {"kind": "categorical"})
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(description)
    return Policy(description, {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()})


def own_command(graph: str, folder: Path, port: int) -> list[str]:
    return [sys.executable, "-c", SERVE, str(folder / graph), str(folder / "state"), str(port)]


def version_in(python: str, package: str) -> str:
    """The version of a package in another Python; empty if it is not installed there."""
    program = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=False).stdout.strip()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def percentile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
