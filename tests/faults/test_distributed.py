"""Parameter servers and workers that are killed, stopped, or lost with their machine: training goes on and learns."""

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
"""A mean return that CartPole reaches within seconds, but not without learning."""


def spec_of(**fields: Any) -> ExperimentSpec:
    common: dict[str, Any] = {"run_mode": "distributed", "num_workers": 2, "num_parameter_servers": 2}
    agent = {"type": "ppo", "epochs": 4, "minibatches": 4}
    return experiment(agent=agent, num_envs=8, total_timesteps=20_000_000, **(common | fields))


def processes(kind: str) -> list[int]:
    """The numbers of the processes of workers or servers, oldest first."""
    return sorted(pid for pid, _ in descendants(os.getpid()) if named(pid).startswith(f"ray::{kind}"))


def actors(pid: int) -> set[tuple[int, str]]:
    """The workers and servers that a process has started."""
    names = ("ray::GradientWorker", "ray::ParameterServer")
    return {each for each in descendants(pid) if named(each[0]).startswith(names)}


class Striker:
    """Strikes whenever all workers work, so often; asks for an end when the training is good after that."""

    def __init__(self, strike: Callable[[], None], times: int, workers: int = 2) -> None:
        self._strike, self._times, self._workers = strike, times, workers
        self._wait_until = 0
        self.struck = 0
        self.was_smaller = self.is_over = False

    def show(self, progress: Progress) -> None:
        workers = progress.metrics.get("workers", 0)
        if progress.phase != "training":
            return
        self.was_smaller |= self.struck > 0 and 0 < workers < self._workers
        if workers < self._workers or progress.timestep < self._wait_until:
            return
        if self.struck < self._times:
            self._strike()
            self.struck += 1
            self._wait_until = progress.timestep + 40_000
        else:
            self.is_over = progress.mean_return is not None and progress.mean_return >= GOOD

    def request(self) -> str | None:
        return "stop" if self.is_over else None


def train_with(striker: Striker, folder: Path, spec: ExperimentSpec) -> RunOutcome:
    return train(folder, spec, request=striker.request, show=striker.show)


@pytest.fixture(scope="module")
def a_ray() -> Iterator[None]:
    """One Ray for all tests that do not kill it."""
    with ray_session(RaySpec(), cpus=6):
        yield


def signals(*strikes: tuple[str, signal.Signals]) -> Callable[[], None]:
    """Sends the oldest process of a kind a signal, one after the other."""
    waiting = list(strikes)

    def strike() -> None:
        kind, number = waiting.pop(0)
        os.kill(processes(kind)[0], number)

    return strike


@pytest.mark.usefixtures("a_ray")
@pytest.mark.parametrize("synchronous", [False, True])
def test_killed_workers_and_servers_are_replaced_and_training_reaches_its_score(tmp_path, caplog, synchronous):
    strikes = [(kind, signal.SIGKILL) for _ in range(2) for kind in ("GradientWorker", "ParameterServer")]
    striker = Striker(signals(*strikes), times=len(strikes))
    with caplog.at_level(logging.WARNING):
        outcome = train_with(striker, tmp_path, spec_of(distributed={"synchronous": synchronous}))
    assert outcome.state == "stopped"
    assert outcome.mean_return >= GOOD
    assert striker.was_smaller
    assert caplog.text.count("(its process or its machine is gone)") == 2
    assert caplog.text.count("another one goes on from update") == 2
    assert load_latest(tmp_path).arrays["driver/next_worker"] == 4


@pytest.mark.timeout(900)  # Whoever hangs is given ten times as long as the compilation took.
@pytest.mark.usefixtures("a_ray")
def test_what_hangs_is_noticed_and_replaced(tmp_path, caplog):
    striker = Striker(signals(("GradientWorker", signal.SIGSTOP), ("ParameterServer", signal.SIGSTOP)), times=2)
    with caplog.at_level(logging.WARNING):
        outcome = train_with(striker, tmp_path, spec_of(distributed={"worker_timeout": 12.0}))
    assert outcome.mean_return >= GOOD
    assert caplog.text.count("it has said nothing for") == 1, "who waits for a server does not hang"
    assert caplog.text.count("another one goes on from update") == 1
    wait_until(lambda: not stopped(), "what was stopped is gone")


def stopped() -> list[str]:
    """What is stopped among the processes of this test."""
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


def test_a_killed_driver_leaves_a_checkpoint_to_resume_from_and_no_processes(tmp_path):
    endless = spec_of(saver_frequency="20000t")
    command = [sys.executable, "-c", DRIVING, json.dumps(dump(endless)), str(tmp_path)]
    driver = subprocess.Popen([*command, "anew"], stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(list_checkpoints(tmp_path)) > 2, "checkpoints are written", pause=0.05)
        # One of the workers may be on its way still.
        wait_until(lambda: len(actors(driver.pid)) == 4, "all are there", pause=0.05)
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
from test_distributed import ON_LOOPBACK, Striker

logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
spec, wishes = json.loads(sys.argv[1]), json.loads(sys.argv[3])
cluster = Cluster(initialize_head=True, head_node_args=ON_LOOPBACK | {"num_cpus": 0})


def new_node():
    return cluster.add_node(num_cpus=wishes["cpus"], **ON_LOOPBACK)


def has_server(node):
    raylet = node.all_processes["raylet"][0].process.pid
    return any(named(pid).startswith("ray::ParameterServer") for pid, _ in descendants(raylet))


nodes = [new_node() for _ in range(2)]


def strike():
    node = next(filter(has_server, nodes))
    nodes.remove(node)
    cluster.remove_node(node, allow_graceful=False)
    if wishes["is_made_up_for"]:
        nodes.append(new_node())


striker = Striker(strike, times=wishes["times"], workers=spec["num_workers"])
try:
    spec["platform"], spec["ray"]["address"] = "ray", cluster.address
    outcome = runners.run(
        ExperimentSpec.model_validate(spec),
        Path(sys.argv[2]),
        resume=False,
        request=striker.request,
        on_progress=striker.show,
    )
    print(json.dumps([outcome.state, outcome.mean_return, striker.struck]))
finally:
    cluster.shutdown()
"""
ON_LOOPBACK = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 10**8}


@pytest.fixture
def beside_a_cluster() -> Iterator[dict[str, str]]:
    """The environment of processes that start a cluster, or join it."""
    here, support = Path(__file__).parent, Path(__file__).parent.parent / "support"
    paths = [str(here), str(support), *filter(None, [os.environ.get("PYTHONPATH")])]
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "known" * 8, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with tempfile.TemporaryDirectory(prefix="st-", dir="/tmp") as short:
        yield os.environ | access | {"PYTHONPATH": os.pathsep.join(paths), "RAY_TMPDIR": short}


def trained_on_losing_machines(
    folder: Path, environment: dict[str, str], spec: ExperimentSpec, **wishes: Any
) -> list[str]:
    """What is logged by a run that loses machines with servers on them, and reaches its score all the same."""
    answer = subprocess.run(
        [sys.executable, "-c", CLUSTER, json.dumps(dump(spec)), str(folder), json.dumps(wishes)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert answer.returncode == 0, answer.stderr
    *log, last = answer.stdout.splitlines()
    state, mean_return, struck = json.loads(last)
    assert (state, struck) == ("stopped", wishes["times"])
    assert mean_return >= GOOD
    return log


def test_lost_machines_are_made_up_for_and_training_reaches_its_score(tmp_path, beside_a_cluster):
    spec = spec_of(distributed={"worker_timeout": 20.0})
    log = trained_on_losing_machines(tmp_path, beside_a_cluster, spec, cpus=3, times=2, is_made_up_for=True)
    assert sum("another one goes on from update" in line for line in log) >= 2


def test_a_server_whose_machine_is_lost_finds_room_where_workers_have_taken_all(tmp_path, beside_a_cluster):
    # The worker takes all of one machine, and so the server is on the other.
    spec = spec_of(num_workers=1, num_parameter_servers=1, distributed={"worker_timeout": 20.0})
    log = trained_on_losing_machines(tmp_path, beside_a_cluster, spec, cpus=1, times=1, is_made_up_for=False)
    # Ray may take a lost machine for a living one once more.
    lost = {line.partition(";")[0] for line in log if "was lost" in line}
    assert lost == {"parameter server 0 was lost"}


HOLDING = """
import sys
from ray.cluster_utils import Cluster
from test_distributed import ON_LOOPBACK

cluster = Cluster(initialize_head=True, head_node_args=ON_LOOPBACK | {"num_cpus": 4})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def test_a_killed_driver_leaves_none_of_its_processes_on_a_ray_of_others(tmp_path, beside_a_cluster):
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    cluster = subprocess.Popen([sys.executable, "-c", HOLDING], env=beside_a_cluster, **pipes)
    driver = None
    try:
        address = cluster.stdout.readline().strip()
        spec = spec_of(platform="ray", ray={"address": address}, saver_frequency="20000t")
        command = [sys.executable, "-c", DRIVING, json.dumps(dump(spec)), str(tmp_path), "anew"]
        driver = subprocess.Popen(command, env=beside_a_cluster)
        wait_until(lambda: len(list_checkpoints(tmp_path)) > 2, "checkpoints are written", pause=0.05)
        wait_until(lambda: len(actors(cluster.pid)) == 4, "all are there", pause=0.05)
        started = actors(cluster.pid)
        driver.kill()
        driver.wait()
        wait_until(lambda: not alive(started), "none of its processes is left")
        assert not actors(cluster.pid)
        assert any("raylet" in named(pid) for pid, _ in descendants(cluster.pid)), "the Ray of the others goes on"
    finally:
        if driver is not None:
            driver.kill()
            driver.wait()
        cluster.communicate()
