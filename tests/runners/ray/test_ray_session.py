"""A Ray that is started for a run listens on loopback, needs a token, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ports import free_port
from processes import wait_until
from ray_processes import LOOPBACK, alive, descendants, listening_sockets, named

from steppe.errors import MissingExtra, UserError
from steppe.runners.pods import is_listening
from steppe.runners.ray import ray_session as module
from steppe.runners.ray.ray_session import PREFIX, ray_session
from steppe.specs.running.distributed import RaySpec, TLSSpec

JOINING = """
import sys
from steppe.errors import UserError
from steppe.runners.ray.ray_session import ray_session
from steppe.specs.running.distributed import RaySpec

try:
    with ray_session(RaySpec.model_validate_json(sys.argv[1]), cpus=1):
        import ray
        print(ray.get(ray.remote(lambda: 6 * 7).remote()))
except UserError as error:
    print(error)
"""
HOLDING = """
import time
from steppe.runners.ray.ray_session import ray_session
from steppe.specs.running.distributed import RaySpec

class Busy:
    def begin(self):
        return True

    def work(self):
        while True:
            sum(range(1000))

with ray_session(RaySpec(), cpus=2):
    import ray
    actors = [ray.remote(Busy).options(num_cpus=1).remote() for _ in range(2)]
    ray.get([actor.begin.remote() for actor in actors])
    work = [actor.work.remote() for actor in actors]
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for this test's Ray alone, since other tests start theirs meanwhile. Sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        monkeypatch.undo()


def answer_of(spec: RaySpec, token: str) -> str:
    """The output of a new process that joins a Ray and computes something there."""
    environment = os.environ | {"RAY_AUTH_TOKEN": token}
    environment.pop("RAY_AUTH_MODE", None)
    words = [sys.executable, "-c", JOINING, spec.model_dump_json()]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120).stdout.strip()


@pytest.fixture
def certificates(tmp_path: Path) -> TLSSpec:
    """A certificate for every address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outwards:
        outwards.connect(("192.0.2.1", 9))  # sends nothing; its local address is this machine's
        names = f"IP:127.0.0.1,IP:{outwards.getsockname()[0]}"
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=node",
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out node.pem -days 2 -extfile names.cnf",
    ):
        (tmp_path / "names.cnf").write_text(f"subjectAltName={names}")
        subprocess.run(["openssl", *line.split()], cwd=tmp_path, check=True, capture_output=True)
    parts = {"certificate": "node.pem", "key": "node.key", "authority": "ca.pem"}
    return TLSSpec(**{part: str(tmp_path / file) for part, file in parts.items()})


@pytest.fixture
def no_ray() -> Iterator[str]:
    """The address of an HTTP server, which is not a Ray."""

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_ray_of_its_own_keeps_to_loopback_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, temporary: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.255.255.1:6379")  # this address must not be used
    before = dict(os.environ)
    handler, of_others = signal.getsignal(signal.SIGTERM), descendants(os.getpid())
    earlier = listening_sockets({os.getpid()})  # another test's server may still be closing
    with ray_session(RaySpec(object_store=0.1), cpus=3.2) as session:
        import ray

        token = os.environ["RAY_AUTH_TOKEN"]
        started = descendants(os.getpid()) - of_others
        pids = {pid for pid, _ in started}
        assert session.is_own
        assert session.address.startswith("127.0.0.1:")
        assert ray.cluster_resources()["CPU"] == 4
        assert ray.cluster_resources()["object_store_memory"] == pytest.approx(0.1 * 2**30, rel=0.01)
        assert any("raylet" in named(pid) for pid in pids)
        listening = listening_sockets(pids | {os.getpid()}) - earlier
        assert {address for _, address in listening} <= LOOPBACK
        assert signal.getsignal(signal.SIGTERM) is handler
        assert answer_of(RaySpec(address=session.address), token) == "42"
        caplog.clear()  # removes messages about a slow start
        with caplog.at_level("INFO", "steppe"):
            ray._private.worker.print_to_stdstream({"lines": ["a process died\nof something"]}, ignore_prefix=False)
        assert caplog.messages == ["Ray: a process died"]
        (folder,) = temporary.glob(f"{PREFIX}*")
        assert folder.stat().st_mode & 0o077 == 0
    assert not ray.is_initialized()
    assert all(os.environ.get(name) == before.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))
    assert not list(temporary.iterdir())
    wait_until(lambda: not alive(started), "no process is left")


def test_a_client_server_is_an_address_too() -> None:
    pytest.importorskip("grpc")
    port = free_port()
    with ray_session(RaySpec(object_store=0.1), cpus=1) as session:
        words = ["--address", session.address, "--host", "127.0.0.1", "--port", str(port), "--mode", "specific-server"]
        server = subprocess.Popen([sys.executable, "-m", "ray.util.client.server", *words], stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: is_listening("127.0.0.1", port, 1.0), "it listens", seconds=60)
            spec = RaySpec(address=f"ray://127.0.0.1:{port}")
            assert answer_of(spec, os.environ["RAY_AUTH_TOKEN"]) == "42"
        finally:
            server.terminate()
            server.wait(30)


def test_a_connected_process_keeps_its_ray() -> None:
    with ray_session(RaySpec(), cpus=1) as outer:
        import ray

        with ray_session(RaySpec(), cpus=50) as inner:
            assert inner.address == outer.address
            assert not inner.is_own
        assert ray.is_initialized()


def test_a_ray_for_other_machines_takes_no_one_without_its_token(
    monkeypatch: pytest.MonkeyPatch, certificates: TLSSpec
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right" * 8)
    port = free_port()
    of_others = descendants(os.getpid())
    with ray_session(RaySpec(port=port, tls=certificates), cpus=1) as session:
        started = descendants(os.getpid()) - of_others
        spec = RaySpec(address=session.address, tls=certificates)
        assert session.address.endswith(f":{port}")
        assert answer_of(spec, "right" * 8) == "42"
        assert answer_of(spec, "wrong" * 8).endswith("set RAY_AUTH_TOKEN to the token of that Ray")
        assert "or one that wants ray.tls" in answer_of(RaySpec(address=session.address), "right" * 8)
    wait_until(lambda: not alive(started), "no process is left")


def test_a_ray_for_other_machines_needs_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with (
        pytest.raises(UserError, match=r"listens on port 6399 .* set RAY_AUTH_TOKEN"),
        ray_session(RaySpec(port=6399), cpus=1),
    ):
        pass


class Reached(Exception):
    """Raised instead of starting a node."""


@pytest.mark.parametrize("variable", ["", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"])
def test_this_machine_becomes_part_of_no_ray_without_a_token_unless_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if variable:
        monkeypatch.setenv(variable, {"RAY_AUTH_TOKEN": "right" * 8, "RAY_AUTH_MODE": "disabled"}[variable])

    def start(*_: object) -> None:
        raise Reached

    monkeypatch.setattr(module, "_check_answer", lambda *_: None)
    monkeypatch.setattr(module, "has_node_here", lambda *_: False)
    monkeypatch.setattr(module, "_node", start)
    words = "this machine becomes a part of it.*set RAY_AUTH_TOKEN to the token of that Ray.*RAY_AUTH_MODE=disabled"
    with (
        pytest.raises(Reached) if variable else pytest.raises(UserError, match=words),
        ray_session(RaySpec(address="192.0.2.1:6379"), cpus=1),
    ):
        pass


@pytest.mark.parametrize("address", ["192.0.2.1:6379", "127.0.0.1:6379", "ray://192.0.2.1:10001"])
@pytest.mark.parametrize(
    ("machine", "variable", "is_told"),
    [
        ("192.0.2.1", "", True),
        ("192.0.2.1", "RAY_AUTH_TOKEN", False),
        ("192.0.2.1", "RAY_AUTH_MODE", False),
        ("127.0.0.1", "", False),
    ],
)
def test_a_ray_of_others_that_takes_no_token_from_its_network_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    address: str,
    machine: str,
    variable: str,
    is_told: bool,
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if variable:
        monkeypatch.setenv(variable, {"RAY_AUTH_TOKEN": "right" * 8, "RAY_AUTH_MODE": "disabled"}[variable])
    nodes = [{"Alive": True, "NodeManagerAddress": "127.0.0.1"}, {"Alive": True, "NodeManagerAddress": machine}]
    monkeypatch.setattr(module, "_configured_ray", lambda: SimpleNamespace(nodes=lambda: nodes))
    monkeypatch.setattr(module, "_check_answer", lambda *_: None)
    monkeypatch.setattr(module, "has_node_here", lambda *_: True)
    monkeypatch.setattr(module, "_connected", lambda *_: nullcontext())
    with ray_session(RaySpec(address=address), cpus=1):
        assert (f"the Ray at {address} takes no token" in caplog.text) == is_told


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:9", "Connection refused"), ("no-such-host.invalid:6379", "Name or service not known")],
)
def test_an_address_without_an_answer_is_an_error_at_once(address: str, reason: str) -> None:
    with (
        pytest.raises(UserError, match=rf"nobody answers at {address} \({reason}\); check ray.address"),
        ray_session(RaySpec(address=address), cpus=1),
    ):
        pass


def test_an_address_that_keeps_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        spec = RaySpec(address=f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match="no answer"), ray_session(spec, cpus=1):
            pass


def test_a_server_that_is_no_ray_is_an_error(no_ray: str) -> None:
    with pytest.raises(UserError, match="is no Ray"), ray_session(RaySpec(address=no_ray), cpus=1):
        pass


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "absent.pem")
    spec = RaySpec(tls=TLSSpec(certificate=missing, key=missing, authority=missing))
    with pytest.raises(UserError, match=r"ray\.tls\.certificate: there is no file"), ray_session(spec, cpus=1):
        pass


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install "steppe\[cluster\]"'), ray_session(RaySpec(), cpus=1):
        pass


@pytest.mark.faults
@pytest.mark.parametrize("is_worker_stopped", [False, True])
def test_a_killed_driver_takes_its_ray_with_it(is_worker_stopped: bool, temporary: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", HOLDING], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        started = descendants(driver.pid)
        workers = [pid for pid, _ in started if named(pid).startswith("ray::Busy")]
        assert len(workers) == 2
        if is_worker_stopped:
            os.kill(workers[0], signal.SIGSTOP)
    finally:
        driver.kill()
        driver.communicate()
    wait_until(lambda: not alive(started), "no process is left")
    assert not list(temporary.glob(f"{PREFIX}*"))
