"""Kills processes of run mode async: random workers, the learner, the driver of a run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ports import free_port
from processes import wait_until
from ray_processes import alive, descendants
from runs import experiment, train
from troubled import taken

from steppe.errors import EnvironmentFault
from steppe.records.checkpoints import list_checkpoints, load_latest
from steppe.tracking.metrics import read_metrics

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SUPPORT = Path(__file__).parents[1] / "support"
BATCH = 64
DQN = {"type": "dqn", "batch_size": 16, "learning_starts": 200, "n_step": 1, "memory": {"capacity": 4000}}
DQN |= {"exploration": {"type": "epsilon_anneal", "timesteps": 1000}}
NETWORK = [{"type": "dense", "size": 16}]

LEARNER = f"""
import sys
from steppe import AsyncLearner
AsyncLearner(
    {DQN!r}, address=sys.argv[1], folder=sys.argv[2], total_timesteps=int(sys.argv[3]), network={NETWORK!r},
    saver_frequency="500t", summary_frequency="200t", seed=1, asynchronous={{"evaluation_share": 0.0}},
).run(resume="auto")
"""
WORKER = """
import sys
from steppe import AsyncWorker
from steppe.errors import SteppeError
environment = {"id": "troubled:Counted", "settings": {"folder": sys.argv[2], "seconds": 0.001}}
try:
    print("timesteps", AsyncWorker(sys.argv[1], environment, reconnect=float(sys.argv[3])).work())
except SteppeError as error:
    sys.exit(f"error: {error}")
"""
DRIVER = """
import sys
from pathlib import Path
from runs import experiment
from steppe import runners
from steppe.specs.experiment import ExperimentSpec
spec = ExperimentSpec.model_validate_json(Path(sys.argv[1], "spec.json").read_text())
runners.run(spec, Path(sys.argv[1]), resume="resume" in sys.argv, request=lambda: None, on_progress=lambda p: None)
"""


def python(program, *arguments, out=subprocess.DEVNULL):
    paths = os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stdout=out, stderr=out, text=True)


def test_randomly_killed_workers_lose_only_batches_that_were_not_received(tmp_path):
    counts, run = tmp_path / "counts", tmp_path / "run"
    counts.mkdir()
    environment = {"id": "troubled:Counted", "settings": {"folder": str(counts), "seconds": 0.0005}}
    spec = experiment(
        environment,
        DQN,
        run_mode="async",
        num_workers=4,
        num_envs=1,
        network=NETWORK,
        total_timesteps=10**7,
        summary_frequency="100t",
        asynchronous={"evaluation_share": 0.0, "patience": 60.0},
    )
    moments, killed, is_over = random.Random(5), [], threading.Event()
    replaced = []

    def kill() -> None:
        while len(killed) < 8 and not is_over.wait(moments.uniform(0.0, 0.5)):
            # A worker that has taken a step has joined.
            living = [pid for pid, steps in taken(counts).items() if steps and Path(f"/proc/{pid}").exists()]
            if working := [pid for pid in living if pid not in killed]:
                killed.append(moments.choice(working))
                os.kill(killed[-1], signal.SIGKILL)

    def request() -> str | None:
        lines = read_metrics(run)
        if sum(steps > 0 for steps in taken(counts).values()) == 12 and not replaced:
            replaced.append(len(lines))
        is_whole = replaced and len(lines) > replaced[0] + 2 and lines[-1].get("workers") == 4
        # The limit is higher than the one below, since the last batches are still to come.
        return "stop" if is_whole and lines[-1]["mean_return"] > 8.5 else None

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        outcome = train(run, spec, request=request)
    finally:
        is_over.set()
        killer.join()
    last = read_metrics(run)[-1]
    assert (last["dropped"], last["workers"]) == (0, 4)
    assert outcome.mean_return > 8.0
    workers, waiting, lost, _, _ = load_latest(run).arrays["async/counts"].tolist()
    assert (workers, last["lost"]) == (12, lost)
    steps = {pid: count for pid, count in taken(counts).items() if count}
    unfinished = {pid: count % BATCH for pid, count in steps.items()}
    # A worker that was killed in the middle of a batch has lost it; one that had just finished a batch may have.
    killed_in_a_batch = sum(unfinished[pid] > 0 for pid in killed)
    assert killed_in_a_batch <= lost <= 8
    # Besides unfinished batches, only those that waited at the end and whole ones that were not received are missing.
    missing, rest = divmod(sum(steps.values()) - sum(unfinished.values()) - outcome.timestep, BATCH)
    finished = sum(unfinished[pid] == 0 for pid in steps if pid not in killed)
    assert rest == 0
    assert waiting <= missing <= waiting + (lost - killed_in_a_batch) + finished


def test_an_environment_that_always_fails_ends_the_run_with_its_error(tmp_path):
    spec = experiment(
        "troubled:Fails", DQN, run_mode="async", num_workers=2, num_envs=1, network=NETWORK, total_timesteps=10**7
    )
    with pytest.raises(EnvironmentFault) as error:
        train(tmp_path, spec)
    assert "workers die faster than they can be replaced" in str(error.value)
    assert "RuntimeError: the simulator has crashed" in str(error.value)
    assert str(error.value).count("resume from the last checkpoint") == 1


def test_workers_reconnect_to_a_learner_that_was_killed_and_resumed(tmp_path):
    counts, run = tmp_path / "counts", tmp_path / "run"
    counts.mkdir()
    address = f"127.0.0.1:{free_port()}"
    workers = [python(WORKER, address, counts, 120, out=subprocess.PIPE) for _ in range(2)]
    learners = []
    try:
        for kills in range(2):
            learners.append(python(LEARNER, address, run, 10**7))
            newest = list_checkpoints(run)[-1:] or [0]
            wait_until(lambda newest=newest: (list_checkpoints(run)[-1:] or [0]) > newest, "it has saved")
            learners[-1].kill()
            learners[-1].wait(60)
            before = sum(taken(counts).values())
            # A worker without a learner finishes its batch and waits.
            wait_until(lambda: _no_worker_steps(counts), "the workers wait")
            assert all(worker.poll() is None for worker in workers), kills
            assert sum(taken(counts).values()) <= before + 2 * 2 * BATCH
        saved = load_latest(run).timestep
        learners.append(python(LEARNER, address, run, 10**7, out=subprocess.PIPE))
        # There is no limit of timesteps: a worker that looked in vain waits before it looks again, the other trains on.
        wait_until(lambda: _has_learned_with(2, run, saved + 2000), "it has learned with both workers")
        learners[-1].terminate()
        _, err = learners[-1].communicate(timeout=120)
        assert learners[-1].returncode == 0, err
        for worker in workers:
            out, err = worker.communicate(timeout=120)
            assert (worker.returncode, out.startswith("timesteps")) == (0, True), err
    finally:
        kill_all([*workers, *learners])
    assert load_latest(run).timestep >= saved + 2000
    records = read_metrics(run)
    assert records[-1]["mean_return"] > 7.0
    # There were only two workers, whom the learner recognises by name after each start.
    assert max(record.get("workers", 0) for record in records) == 2


def test_workers_end_by_themselves_if_their_learner_does_not_come_back(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    counts = tmp_path / "counts"
    counts.mkdir()
    learner = python(LEARNER, address, tmp_path / "run", 10**7)
    try:
        # It listens before it knows the spaces.
        wait_until(lambda: _answers(address), "the learner listens")
        worker = python(WORKER, address, counts, 1.0, out=subprocess.PIPE)
        wait_until(lambda: sum(taken(counts).values()) or worker.poll() is not None, "the worker works")
    finally:
        kill_all([learner])
    _, err = worker.communicate(timeout=120)
    assert worker.returncode == 1
    assert err.strip().splitlines()[-1].startswith(f"error: the learner at {address} could not be reached within 1 s")


def test_a_killed_driver_leaves_no_process_and_can_be_resumed(tmp_path):
    spec = experiment(
        "worlds:World",
        DQN,
        run_mode="async",
        num_workers=2,
        num_envs=1,
        network=NETWORK,
        total_timesteps=10**7,
        saver_frequency="500t",
    )
    tmp_path.joinpath("spec.json").write_text(spec.model_dump_json())
    driver = python(DRIVER, tmp_path)
    try:
        wait_until(lambda: len(list_checkpoints(tmp_path)) >= 3, "it has learned and saved")
        started = descendants(driver.pid)
        assert len(started) >= 4
    finally:
        kill_all([driver])
    wait_until(lambda: not alive(started), "all its processes have ended")
    saved = load_latest(tmp_path)
    assert saved.arrays["memory/timesteps/rewards"].any()
    spec = spec.model_copy(update={"total_timesteps": saved.timestep + 3000})
    tmp_path.joinpath("spec.json").write_text(spec.model_dump_json())
    driver = python(DRIVER, tmp_path, "resume")
    try:
        assert driver.wait(180) == 0
    finally:
        kill_all([driver])
    assert load_latest(tmp_path).timestep >= saved.timestep + 3000
    assert read_metrics(tmp_path)[-1]["mean_return"] > 8.0


def kill_all(processes):
    for process in processes:
        process.kill()
        with contextlib.suppress(ValueError):
            process.communicate(timeout=60)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


def _has_learned_with(workers: int, run: Path, timestep: int) -> bool:
    """Whether so many workers have trained beyond a timestep, with a good return."""
    last = (read_metrics(run) or [{}])[-1]
    return last.get("timestep", 0) >= timestep and last.get("workers") == workers and last["mean_return"] > 8.0


def _no_worker_steps(folder) -> bool:
    """Whether no worker takes a step for half a second."""
    before = sum(taken(folder).values())
    time.sleep(0.5)
    return sum(taken(folder).values()) == before
