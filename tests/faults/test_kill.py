"""kill -9 at any moment loses at most the work since the last checkpoint and never a finished checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from processes import DIED, ENDLESS, TINY, Command, Run, Steppe, wait_until
from safetensors.numpy import load_file

from steppe.policies.policy import load_policy
from steppe.records.checkpoints import load_latest
from steppe.tracking.metrics import read_metrics

TOTAL = 250_000
KILLS = ["launch"] * 3 + ["compile"] * 2 + ["start"] * 4 + ["train"] * 6 + ["save"] * 7 + ["discard"] * 2
OFTEN = ("-t", str(TOTAL), "--saver-frequency", "2000t", "--summary-frequency", "500t")


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_26_times_ends_bit_for_bit_like_an_undisturbed_one(steppe: Steppe, tmp_path: Path) -> None:
    # The cache is separate, since a kill while JAX writes an entry could damage it for the other tests.
    steppe.environment["STEPPE_CACHE"] = str(tmp_path / "programs")
    undisturbed = steppe("train", *TINY, *OFTEN, "-n", "undisturbed", "-q")
    assert undisturbed.code == 0, undisturbed.err
    assert steppe("experiment", "new", "-E", *TINY, *OFTEN, "-n", "killed", "-q").code == 0

    moments = random.Random(20)
    moments.shuffle(kills := list(KILLS))
    # The first two kills come before there is a checkpoint to resume from.
    killer = RunKiller(steppe, moments)
    for kill in ["launch", "start", *kills]:
        killer.kill(kill)
    assert killer.hits["before it owned the folder"] >= 1, killer.hits
    assert killer.hits["starting"] >= 4, killer.hits
    assert killer.hits["running"] >= 10, killer.hits
    assert killer.hits["saving"] >= 6, killer.hits

    ended = steppe("experiment", "start", "-e", "killed", "--resume")
    assert ended.code == 0, ended.err
    assert steppe.listed("killed")["state"] == "completed"
    killer.check()
    assert_same(steppe.run("killed"), steppe.run("undisturbed"))


@pytest.mark.faults
def test_the_workers_of_a_killed_run_end_with_it(steppe: Steppe) -> None:
    run = steppe.run("first")
    processes = ("--set", "environment.backend=gymnasium", "--set", "environment.vectorization=processes")
    command = steppe.launch("train", *ENDLESS, *processes, "-n", "first")
    wait_until(lambda: run.is_trained_by(command), "it trains")
    workers = children(command.pid)
    assert workers
    assert command.kill() == -9
    wait_until(lambda: not any(is_alive(worker) for worker in workers), "its workers are gone")
    row = steppe.listed("first")
    assert (row["state"], row["reason"]) == ("failed", DIED)


class RunKiller:
    """Starts the experiment `killed`, kills it at a moment of a given kind, and checks the run folder afterwards."""

    def __init__(self, steppe: Steppe, moments: random.Random) -> None:
        self.steppe, self.moments = steppe, moments
        self.run = steppe.run("killed")
        self.newest = -1
        self.had_policy = False
        self.hits: Counter[str] = Counter()
        """State of the run when it was killed -> number of kills."""

    def kill(self, kind: str) -> None:
        """Starts the experiment once and kills it with kill -9."""
        environment = dict(self.steppe.environment)
        if kind == "compile":
            # With an empty cache everything is compiled again.
            self.steppe.environment["STEPPE_CACHE"] += f"-{sum(self.hits.values())}"
        command = self.steppe.launch("experiment", "start", "-e", "killed", *self._start_flags())
        self.steppe.environment = environment
        getattr(self, f"_wait_to_{kind}")(command)
        assert command.kill() == -9, command.answer()
        status = self.run.status
        owned = status["pid"] == command.pid
        self.hits[status["state"] if owned else "before it owned the folder"] += 1
        if owned and status["state"] == "running":
            self.hits["saving"] += self.run.is_saving
            self.hits["discarding"] += self._is_discarding()
        row = self.steppe.listed("killed")
        if owned or status["state"] != "created":
            assert (row["state"], row["reason"]) == ("failed", DIED)
        else:
            assert row["state"] == "created"
        self.check()

    def check(self) -> None:
        """Checks that every checkpoint is intact, none was lost, and metrics and policy can be read."""
        run = self.run
        checkpoints = run.checkpoints
        for timestep in checkpoints:
            assert_intact(run.path / "checkpoints" / str(timestep))
        if checkpoints:
            assert checkpoints[-1] >= self.newest, "a finished checkpoint was lost"
            self.newest = checkpoints[-1]
            latest = load_latest(run.path)
            assert (latest.timestep, latest.skipped) == (self.newest, [])
        assert_lines(run.path / "metrics.jsonl")
        timesteps = [record["timestep"] for record in read_metrics(run.path)]
        assert timesteps == sorted(set(timesteps))
        self.had_policy = self.had_policy or (run.path / "policy" / "policy.safetensors").exists()
        assert self.had_policy or len(checkpoints) < 2
        if self.had_policy:
            assert load_policy(run.path / "policy").act(np.zeros(4)) in (0, 1)

    def _start_flags(self) -> list[str]:
        if self.run.checkpoints:
            return ["--resume"]
        if self.run.status["started"] is None:
            return []
        refused = self.steppe("experiment", "start", "-e", "killed", "--resume")
        assert (refused.code, refused.err) == (
            2,
            'error: experiment "killed" has no checkpoint to resume from; '
            "start it anew with: steppe experiment start -e killed --force\n",
        )
        return ["--force"]

    def _wait_to_launch(self, command: Command) -> None:
        self._wait_randomly(command, 0.4)

    def _wait_to_start(self, command: Command) -> None:
        wait_until(lambda: command.has_ended or self.run.status["pid"] == command.pid, "it owns the folder", pause=0)
        self._wait_randomly(command, 0.5)

    def _wait_to_compile(self, command: Command) -> None:
        wait_until(lambda: command.has_ended or "compiling" in command.out, "it compiles")
        self._wait_randomly(command, 3.0)

    def _wait_to_train(self, command: Command) -> None:
        wait_until(lambda: self.run.is_trained_by(command), "it trains")
        self._wait_for_saves(command, self.moments.randrange(6))
        self._wait_randomly(command, 0.05)

    def _wait_to_save(self, command: Command) -> None:
        wait_until(lambda: self.run.is_trained_by(command), "it trains")
        self._wait_for_saves(command, self.moments.randrange(4))
        wait_until(lambda: command.has_ended or self._is_stopped_while_saving(command), "it saves", pause=0)

    def _wait_to_discard(self, command: Command) -> None:
        wait_until(lambda: self.run.is_trained_by(command), "it trains")
        self._wait_for_saves(command, 3)
        wait_until(lambda: self._is_discarding() or command.has_ended, "it deletes an old checkpoint", pause=0)

    def _is_stopped_while_saving(self, command: Command) -> bool:
        """Whether it could be stopped in the middle of a save; if the save ended before that, the run continues."""
        if not self.run.is_saving:
            return False
        self._wait_randomly(command, 0.004)
        command.send(signal.SIGSTOP)
        wait_until(lambda: command.has_ended or is_stopped(command.pid), "it is stopped", pause=0)
        if self.run.is_saving:
            return True
        command.send(signal.SIGCONT)
        return False

    def _wait_for_saves(self, command: Command, saves: int) -> None:
        beyond = self.newest + 2000 * saves
        wait_until(lambda: command.has_ended or self.run.has_saved_since(beyond), "it has saved", pause=0)

    def _is_discarding(self) -> bool:
        return bool(self.run.unfinished) and not self.run.is_saving

    def _wait_randomly(self, command: Command, seconds: float) -> None:
        """Waits up to so many seconds, so that the kill comes at a random moment."""
        moment = time.monotonic() + self.moments.uniform(0, seconds)
        wait_until(lambda: command.has_ended or time.monotonic() >= moment, "the moment", pause=0.0005)


def assert_intact(checkpoint: Path) -> None:
    """The arrays agree with the manifest; read without Steppe's code."""
    content = json.loads((checkpoint / "state.json").read_bytes())
    data = (checkpoint / "state.safetensors").read_bytes()
    assert len(data) == content["arrays"]["bytes"]
    assert hashlib.sha256(data).hexdigest() == content["arrays"]["sha256"]
    assert content["timestep"] == int(checkpoint.name)
    assert load_file(checkpoint / "state.safetensors")


def assert_lines(metrics: Path) -> None:
    """Every line is a record, except for lines that a kill cut short, of which there is at most one for each start."""
    if not metrics.exists():
        return
    torn = 0
    for line in metrics.read_text().split("\n")[:-1]:
        try:
            assert isinstance(json.loads(line), dict)
        except ValueError:
            torn += 1
    assert torn <= metrics.read_text().count('"event":"resumed"')


def assert_same(run: Run, other: Run) -> None:
    """The same parameters, optimiser, environments, keys and counters, bit for bit, and the same metrics."""
    mine, theirs = load_latest(run.path), load_latest(other.path)
    assert mine.timestep == theirs.timestep
    assert mine.arrays.keys() == theirs.arrays.keys()
    for name, array in mine.arrays.items():
        assert array.dtype == theirs.arrays[name].dtype, name
        assert array.tobytes() == theirs.arrays[name].tobytes(), name
    for counter in ("timestep", "episode", "update", "mean_return"):
        assert mine.manifest[counter] == theirs.manifest[counter], counter
    policies = [load_policy(each.path / "policy").tensors for each in (run, other)]
    assert all(policies[0][name].tobytes() == tensor.tobytes() for name, tensor in policies[1].items())
    measured = {"time", "steps_per_second"}
    records = [
        [{name: value for name, value in record.items() if name not in measured} for record in read_metrics(each.path)]
        for each in (run, other)
    ]
    assert records[0] == records[1]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for text in of_threads(pid, "children") for child in text.split()]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return any(state != "Z" for state in thread_states(pid))


def is_stopped(pid: int) -> bool:
    """Whether a SIGSTOP has reached every thread of a process."""
    return all(state in "tT" for state in thread_states(pid))


def thread_states(pid: int) -> list[str]:
    """The state letter of each thread of a process, as in proc(5)."""
    return [stat.rpartition(")")[2].split()[0] for stat in of_threads(pid, "stat")]


def of_threads(pid: int, file: str) -> list[str]:
    """The content of a /proc file for each thread of a process."""
    texts = []
    with contextlib.suppress(OSError):  # The process or one of its threads may have just ended.
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                texts.append((thread / file).read_text())
    return texts
