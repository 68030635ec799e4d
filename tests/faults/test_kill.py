"""kill -9 at any moment loses at most the work since the last checkpoint, and never a finished checkpoint."""

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
def test_killed_26_times_it_learns_bit_for_bit_what_it_would_have_learned_in_peace(
    steppe: Steppe, tmp_path: Path
) -> None:
    # Apart from the other tests' programs: a kill while JAX writes one there would damage it for all of them.
    steppe.environment["STEPPE_CACHE"] = str(tmp_path / "programs")
    peaceful = steppe("train", *TINY, *OFTEN, "-n", "peaceful", "-q")
    assert peaceful.code == 0, peaceful.err
    assert steppe("experiment", "new", "-E", *TINY, *OFTEN, "-n", "killed", "-q").code == 0

    moments = random.Random(20)
    moments.shuffle(kills := list(KILLS))
    # The first two before there is anything to resume from.
    killing = Killing(steppe, moments)
    for kill in ["launch", "start", *kills]:
        killing.kill(kill)
    assert killing.landed["before it owned the folder"] >= 1, killing.landed
    assert killing.landed["starting"] >= 4, killing.landed
    assert killing.landed["running"] >= 10, killing.landed
    assert killing.landed["saving"] >= 6, killing.landed

    ended = steppe("experiment", "start", "-e", "killed", "--resume")
    assert ended.code == 0, ended.err
    assert steppe.listed("killed")["state"] == "completed"
    killing.check()
    assert_same(steppe.run("killed"), steppe.run("peaceful"))


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


class Killing:
    """Starts the experiment `killed`, kills it at a moment of some kind, and looks at what is left."""

    def __init__(self, steppe: Steppe, moments: random.Random) -> None:
        self.steppe, self.moments = steppe, moments
        self.run = steppe.run("killed")
        self.newest = -1
        self.had_policy = False
        self.landed: Counter[str] = Counter()

    def kill(self, kind: str) -> None:
        """One start and one kill -9."""
        environment = dict(self.steppe.environment)
        if kind == "compile":
            # An empty cache: everything is compiled again.
            self.steppe.environment["STEPPE_CACHE"] += f"-{sum(self.landed.values())}"
        command = self.steppe.launch("experiment", "start", "-e", "killed", *self._way())
        self.steppe.environment = environment
        getattr(self, f"_wait_to_{kind}")(command)
        assert command.kill() == -9, command.answer()
        status = self.run.status
        owned = status["pid"] == command.pid
        self.landed[status["state"] if owned else "before it owned the folder"] += 1
        if owned and status["state"] == "running":
            self.landed["saving"] += self.run.is_saving
            self.landed["discarding"] += self._is_discarding()
        row = self.steppe.listed("killed")
        if owned or status["state"] != "created":
            assert (row["state"], row["reason"]) == ("failed", DIED)
        else:
            assert row["state"] == "created"
        self.check()

    def check(self) -> None:
        """Nothing half, nothing lost."""
        run = self.run
        checkpoints = run.checkpoints
        for timestep in checkpoints:
            assert_whole(run.path / "checkpoints" / str(timestep))
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

    def _way(self) -> list[str]:
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
        self._let_pass(command, 0.4)

    def _wait_to_start(self, command: Command) -> None:
        wait_until(lambda: command.has_ended or self.run.status["pid"] == command.pid, "it owns the folder", pause=0)
        self._let_pass(command, 0.5)

    def _wait_to_compile(self, command: Command) -> None:
        wait_until(lambda: command.has_ended or "compiling" in command.out, "it compiles")
        self._let_pass(command, 3.0)

    def _wait_to_train(self, command: Command) -> None:
        wait_until(lambda: self.run.is_trained_by(command), "it trains")
        self._wait_for_saves(command, self.moments.randrange(6))
        self._let_pass(command, 0.05)

    def _wait_to_save(self, command: Command) -> None:
        wait_until(lambda: self.run.is_trained_by(command), "it trains")
        self._wait_for_saves(command, self.moments.randrange(4))
        wait_until(lambda: command.has_ended or self._is_caught_saving(command), "it is caught saving", pause=0)

    def _wait_to_discard(self, command: Command) -> None:
        wait_until(lambda: self.run.is_trained_by(command), "it trains")
        self._wait_for_saves(command, 3)
        wait_until(lambda: self._is_discarding() or command.has_ended, "it deletes an old one", pause=0)

    def _is_caught_saving(self, command: Command) -> bool:
        """Whether it stands still amid a save; one that was quicker than we are goes on, until the next."""
        if not self.run.is_saving:
            return False
        self._let_pass(command, 0.004)
        command.send(signal.SIGSTOP)
        wait_until(lambda: command.has_ended or stands_still(command.pid), "it stands still", pause=0)
        if self.run.is_saving:
            return True
        command.send(signal.SIGCONT)
        return False

    def _wait_for_saves(self, command: Command, saves: int) -> None:
        beyond = self.newest + 2000 * saves
        wait_until(lambda: command.has_ended or self.run.has_saved_since(beyond), "it has saved", pause=0)

    def _is_discarding(self) -> bool:
        return bool(self.run.unfinished) and not self.run.is_saving

    def _let_pass(self, command: Command, seconds: float) -> None:
        """Some part of these seconds: the moment itself is what is random here, nothing is waited for."""
        moment = time.monotonic() + self.moments.uniform(0, seconds)
        wait_until(lambda: command.has_ended or time.monotonic() >= moment, "the moment", pause=0.0005)


def assert_whole(checkpoint: Path) -> None:
    """What the manifest says of the arrays is true, without Steppe's help."""
    content = json.loads((checkpoint / "state.json").read_bytes())
    data = (checkpoint / "state.safetensors").read_bytes()
    assert len(data) == content["arrays"]["bytes"]
    assert hashlib.sha256(data).hexdigest() == content["arrays"]["sha256"]
    assert content["timestep"] == int(checkpoint.name)
    assert load_file(checkpoint / "state.safetensors")


def assert_lines(metrics: Path) -> None:
    """Every line is a record, but for those that a kill cut short: one a start at most, each on a line of its own."""
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
    """Whether a process runs; one that has ended and was not yet asked for its exit code does not."""
    return any(state != "Z" for state in thread_states(pid))


def stands_still(pid: int) -> bool:
    """Whether a stop has reached every thread of a process."""
    return all(state in "tT" for state in thread_states(pid))


def thread_states(pid: int) -> list[str]:
    """The letters by which the kernel tells what each thread of a process does."""
    return [stat.rpartition(")")[2].split()[0] for stat in of_threads(pid, "stat")]


def of_threads(pid: int, file: str) -> list[str]:
    """What the kernel tells of each thread of a process."""
    texts = []
    with contextlib.suppress(OSError):  # It has just ended, or one of its threads has.
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                texts.append((thread / file).read_text())
    return texts
