"""Training goes on and learns if parameter servers and workers are killed, stopped, or lost with their machine."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from ray_processes import alive, descendants, named, state_of
from runs import experiment, train

from steppe.records.checkpoints import list_checkpoints, load_latest
from steppe.runners._base import Progress, RunOutcome
from steppe.runners.ray.ray_session import ray_session
from steppe.specs.experiment import ExperimentSpec, dump
from steppe.specs.running.distributed import RaySpec

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

GOOD = 400.0
"""A mean return that training reaches on CartPole within seconds."""


def spec_of(**fields: Any) -> ExperimentSpec:
    common: dict[str, Any] = {"run_mode": "distributed", "num_workers": 2, "num_parameter_servers": 2}
    agent = {"type": "ppo", "epochs": 4, "minibatches": 4}
    return experiment(agent=agent, num_envs=8, total_timesteps=20_000_000, **(common | fields))


def processes(kind: str) -> list[int]:
    """The ids of the processes of workers or servers, oldest first."""
    return sorted(pid for pid, _ in descendants(os.getpid()) if named(pid).startswith(f"ray::{kind}"))


def actors(pid: int) -> set[tuple[int, str]]:
    """The workers and servers that a process has started."""
    names = ("ray::GradientWorker", "ray::ParameterServer")
    return {each for each in descendants(pid) if named(each[0]).startswith(names)}


class FaultInjector:
    """Calls `inject` so many times, each time when all workers work; then ends the run once its return is good."""

    def __init__(self, inject: Callable[[], None], times: int, workers: int = 2) -> None:
        self._inject, self._times, self._workers = inject, times, workers
        self._next_timestep = 0
        self.injected = 0
        self.had_fewer_workers = self.is_over = False

    def show(self, progress: Progress) -> None:
        workers = progress.metrics.get("workers", 0)
        if progress.phase != "training":
            return
        self.had_fewer_workers |= self.injected > 0 and 0 < workers < self._workers
        if workers < self._workers or progress.timestep < self._next_timestep:
            return
        if self.injected < self._times:
            self._inject()
            self.injected += 1
            self._next_timestep = progress.timestep + 40_000
        else:
            self.is_over = progress.mean_return is not None and progress.mean_return >= GOOD

    def request(self) -> str | None:
        return "stop" if self.is_over else None


def train_with(injector: FaultInjector, folder: Path, spec: ExperimentSpec) -> RunOutcome:
    return train(folder, spec, request=injector.request, show=injector.show)


@pytest.fixture(scope="module")
def a_ray() -> Iterator[None]:
    """One Ray for all tests that do not kill it."""
    with ray_session(RaySpec(), cpus=6):
        yield


def signals(*faults: tuple[str, signal.Signals]) -> Callable[[], None]:
    """At each call, sends the next signal to the oldest process of its kind."""
    remaining = list(faults)

    def inject() -> None:
        kind, number = remaining.pop(0)
        os.kill(processes(kind)[0], number)

    return inject


@pytest.mark.usefixtures("a_ray")
@pytest.mark.parametrize("synchronous", [False, True])
def test_killed_workers_and_servers_are_replaced_and_training_reaches_its_score(tmp_path, caplog, synchronous):
    kills = [(kind, signal.SIGKILL) for _ in range(2) for kind in ("GradientWorker", "ParameterServer")]
    injector = FaultInjector(signals(*kills), times=len(kills))
    with caplog.at_level(logging.WARNING):
        outcome = train_with(injector, tmp_path, spec_of(distributed={"synchronous": synchronous}))
    assert outcome.state == "stopped"
    assert outcome.mean_return >= GOOD
    assert injector.had_fewer_workers
    assert caplog.text.count("(its process or its machine is gone)") == 2
    assert caplog.text.count("another one goes on from update") == 2
    assert load_latest(tmp_path).arrays["driver/next_worker"] == 4


@pytest.mark.timeout(900)  # A process counts as hanging after ten times the duration of the compilation.
@pytest.mark.usefixtures("a_ray")
def test_processes_that_hang_are_replaced(tmp_path, caplog):
    injector = FaultInjector(signals(("GradientWorker", signal.SIGSTOP), ("ParameterServer", signal.SIGSTOP)), times=2)
    with caplog.at_level(logging.WARNING):
        outcome = train_with(injector, tmp_path, spec_of(distributed={"worker_timeout": 12.0}))
    assert outcome.mean_return >= GOOD
    assert caplog.text.count("it has said nothing for") == 1, "a worker that waits for a server does not hang"
    assert caplog.text.count("another one goes on from update") == 1
    wait_until(lambda: not stopped(), "the stopped processes are gone")


def stopped() -> list[str]:
    """The names of this test's processes that are stopped."""
    return [named(pid) for pid, _ in descendants(os.getpid()) if state_of(pid) == "T"]


DRIVING = """
import json, sys
from pathlib import Path
from steppe import runners
from steppe.specs.experiment import ExperimentSpec

spec = ExperimentSpec.model_validate(json.loads(sys.argv[1]))
outcome = runners.run(
    spec, Path(sys.argv[2]), resume=sys.argv[3] == "resume", request=lambda: None, on_progress=lambda progress: None
)
print(json.dumps([outcome.state, outcome.timestep, outcome.mean_return]))
"""


def test_a_killed_driver_leaves_no_processes_and_can_be_resumed(tmp_path):
    endless = spec_of(saver_frequency="20000t")
    command = [sys.executable, "-c", DRIVING, json.dumps(dump(endless)), str(tmp_path)]
    driver = subprocess.Popen([*command, "anew"], stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(list_checkpoints(tmp_path)) > 2, "checkpoints are written", pause=0.05)
        # One of the workers may still be starting.
        wait_until(lambda: len(actors(driver.pid)) == 4, "all have started", pause=0.05)
        started = descendants(driver.pid)
    finally:
        driver.kill()
        driver.communicate()
    wait_until(lambda: not alive(started), "no process is left")
    saved = load_latest(tmp_path)
    more = spec_of(saver_frequency="20000t", stop_at_return=GOOD)
    command[3] = json.dumps(dump(more))
    answer = subprocess.run([*command, "resume"], capture_output=True, text=True, timeout=400)
    state, timestep, mean_return = json.loads(answer.stdout.splitlines()[-1])
    assert state == "completed", answer.stderr
    assert timestep > saved.timestep > 0
    assert mean_return >= GOOD
    manifest = load_latest(tmp_path).manifest
    assert manifest["update"] > saved.manifest["update"] > 0
    assert manifest["best_return"] >= saved.manifest["best_return"]


CLUSTER = """
import json, logging, os, sys
from pathlib import Path

from ray.cluster_utils import Cluster
from ray_processes import descendants, named
from steppe import runners
from steppe.specs.experiment import ExperimentSpec
from test_distributed import ON_LOOPBACK, FaultInjector

logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
spec, options = json.loads(sys.argv[1]), json.loads(sys.argv[3])
cluster = Cluster(initialize_head=True, head_node_args=ON_LOOPBACK | {"num_cpus": 0})


def new_node():
    return cluster.add_node(num_cpus=options["cpus"], **ON_LOOPBACK)


def has_server(node):
    raylet = node.all_processes["raylet"][0].process.pid
    return any(named(pid).startswith("ray::ParameterServer") for pid, _ in descendants(raylet))


nodes = [new_node() for _ in range(2)]


def lose_node():
    node = next(filter(has_server, nodes))
    nodes.remove(node)
    cluster.remove_node(node, allow_graceful=False)
    if options["is_replaced"]:
        nodes.append(new_node())


injector = FaultInjector(lose_node, times=options["times"], workers=spec["num_workers"])
try:
    spec["platform"], spec["ray"]["address"] = "ray", cluster.address
    outcome = runners.run(
        ExperimentSpec.model_validate(spec),
        Path(sys.argv[2]),
        resume=False,
        request=injector.request,
        on_progress=injector.show,
    )
    print(json.dumps([outcome.state, outcome.mean_return, injector.injected]))
finally:
    cluster.shutdown()
"""
ON_LOOPBACK = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 10**8}


@pytest.fixture
def cluster_environment() -> Iterator[dict[str, str]]:
    """The environment variables of processes that start a Ray cluster or join it."""
    here, support = Path(__file__).parent, Path(__file__).parent.parent / "support"
    paths = [str(here), str(support), *filter(None, [os.environ.get("PYTHONPATH")])]
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "known" * 8, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with tempfile.TemporaryDirectory(prefix="st-", dir="/tmp") as short:
        yield os.environ | access | {"PYTHONPATH": os.pathsep.join(paths), "RAY_TMPDIR": short}


def train_while_losing_machines(
    folder: Path, environment: dict[str, str], spec: ExperimentSpec, **options: Any
) -> list[str]:
    """Trains while machines with servers are lost, asserts that the run reaches its score, and returns its log."""
    answer = subprocess.run(
        [sys.executable, "-c", CLUSTER, json.dumps(dump(spec)), str(folder), json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert answer.returncode == 0, answer.stderr
    *log, last = answer.stdout.splitlines()
    state, mean_return, injected = json.loads(last)
    assert (state, injected) == ("stopped", options["times"])
    assert mean_return >= GOOD
    return log


def test_lost_machines_are_replaced_and_training_reaches_its_score(tmp_path, cluster_environment):
    spec = spec_of(distributed={"worker_timeout": 20.0})
    log = train_while_losing_machines(tmp_path, cluster_environment, spec, cpus=3, times=2, is_replaced=True)
    assert sum("another one goes on from update" in line for line in log) >= 2


def test_a_server_of_a_lost_machine_starts_on_a_machine_that_workers_fill(tmp_path, cluster_environment):
    # The worker takes all CPUs of one machine, so the server is on the other.
    spec = spec_of(num_workers=1, num_parameter_servers=1, distributed={"worker_timeout": 20.0})
    log = train_while_losing_machines(tmp_path, cluster_environment, spec, cpus=1, times=1, is_replaced=False)
    # Ray may place the server once more on the lost machine before it notices the loss.
    lost = {line.partition(";")[0] for line in log if "was lost" in line}
    assert lost == {"parameter server 0 was lost"}


CLUSTER_UNTIL_STDIN_CLOSES = """
import sys
from ray.cluster_utils import Cluster
from test_distributed import ON_LOOPBACK

cluster = Cluster(initialize_head=True, head_node_args=ON_LOOPBACK | {"num_cpus": 4})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def test_a_killed_driver_leaves_no_processes_on_a_shared_ray(tmp_path, cluster_environment):
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", CLUSTER_UNTIL_STDIN_CLOSES]
    cluster = subprocess.Popen(command, env=cluster_environment, **pipes)
    driver = None
    try:
        address = cluster.stdout.readline().strip()
        spec = spec_of(platform="ray", ray={"address": address}, saver_frequency="20000t")
        command = [sys.executable, "-c", DRIVING, json.dumps(dump(spec)), str(tmp_path), "anew"]
        driver = subprocess.Popen(command, env=cluster_environment)
        wait_until(lambda: len(list_checkpoints(tmp_path)) > 2, "checkpoints are written", pause=0.05)
        wait_until(lambda: len(actors(cluster.pid)) == 4, "all have started", pause=0.05)
        started = actors(cluster.pid)
        driver.kill()
        driver.wait()
        wait_until(lambda: not alive(started), "none of its processes is left")
        assert not actors(cluster.pid)
        assert any("raylet" in named(pid) for pid, _ in descendants(cluster.pid)), "the shared Ray goes on"
    finally:
        if driver is not None:
            driver.kill()
            driver.wait()
        cluster.communicate()
