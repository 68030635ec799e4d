"""Real `python -m steppe` processes for tests, each in a process group of its own, and always ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 240.0
"""The time after which a test gives up waiting, long enough for a busy machine."""
LIVE = {"starting", "running", "pausing"}
SMALL = (
    *("--num-envs", "4", "--seed", "1", "--set", "video=false"),
    *("--set", "agent.horizon=16", "--set", "agent.minibatches=2", "--set", "agent.epochs=2"),
)
"""PPO that starts quickly and takes 64 timesteps an iteration."""
TINY = ("CartPole-v1", "-A", "ppo", *SMALL)
ENDLESS = (*TINY, "-t", "1e9", "--saver-frequency", "2000t")
DIED = "the process ended without a word (killed or out of memory?)"


@dataclass(frozen=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def wait_until(condition: Callable[[], Any], what: str, seconds: float = SECONDS, pause: float = 0.002) -> Any:
    """Returns the first true value of `condition`; fails the test if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(pause)
    return value


class Command:
    """A running command; its output goes to files, so that no pipe can fill up."""

    def __init__(self, words: tuple[str, ...], folder: Path, place: Path, environment: dict[str, str]) -> None:
        place.mkdir(parents=True)
        self._out, self._err = place / "out.txt", place / "err.txt"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "steppe", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._out.read_text()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process itself."""
        self.process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Sends a signal to the process and those that it has started, as a terminal sends Ctrl-C."""
        os.killpg(self.process.pid, number)

    def kill(self) -> int:
        """Kills it with kill -9 and returns the exit code, which is -9 unless it had ended by itself."""
        self.process.kill()
        return self.process.wait(SECONDS)

    def answer(self, seconds: float = SECONDS) -> Answer:
        """Waits for its end and returns the answer."""
        code = self.process.wait(seconds)
        return Answer(code, self._out.read_text(), self._err.read_text())

    def end(self) -> None:
        """Kills all remaining processes of its group."""
        # If this process has ended, one with the same id is another's: ids are used again within minutes.
        if not self.has_ended or not Path(f"/proc/{self.pid}").exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


class Steppe:
    """Runs commands in one folder."""

    def __init__(self, folder: Path, outputs: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if name != "STEPPE_DEBUG"}
        self._outputs = outputs
        self._commands: list[Command] = []

    def __call__(self, *words: str) -> Answer:
        """Runs a command to its end."""
        return self.launch(*words).answer()

    def launch(self, *words: str) -> Command:
        """Starts a command and returns at once."""
        command = Command(words, self.folder, self._outputs / str(len(self._commands)), self.environment)
        self._commands.append(command)
        return command

    def run(self, name: str) -> Run:
        """The run of that name in the project."""
        return Run(self.folder / "experiments" / name)

    def listed(self, name: str) -> dict[str, Any]:
        """The run's row in `experiment list --json`."""
        answer = self("experiment", "list", "--json")
        assert answer.code == 0, answer.err
        (row,) = [row for row in json.loads(answer.out) if row["name"] == name]
        return row

    def end(self) -> None:
        """Ends every process that was started here, also those of detached runs."""
        for command in self._commands:
            command.end()
        for status in self.folder.glob("**/status.json"):
            end_owner(status.parent)


@dataclass(frozen=True)
class Run:
    """A run folder, read without Steppe's code if possible."""

    path: Path

    @property
    def status(self) -> dict[str, Any]:
        """The content of status.json."""
        return json.loads((self.path / "status.json").read_text())

    @property
    def state(self) -> str:
        """The state in status.json; only commands such as `experiment list` notice that a process has died."""
        return self.status["state"]

    @property
    def checkpoints(self) -> list[int]:
        """The timesteps that have a checkpoint under its final name, oldest first."""
        return sorted(int(name) for name in self._names() if name.isdecimal())

    @property
    def unfinished(self) -> list[int]:
        """The timesteps of checkpoints that are being written or deleted, or were so when their process died."""
        ends = [name.removesuffix(".replaced").rpartition("-")[2] for name in self._names() if name[:1] == "."]
        return [int(end) for end in ends]

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written that is newer than all complete ones."""
        newest = max(self.unfinished, default=-1)
        return newest >= 0 and not self.has_saved_since(newest - 1)

    def is_trained_by(self, command: Command) -> bool:
        """Whether this command has begun to train it."""
        assert not command.has_ended, command.answer()
        if not (self.path / "status.json").exists():
            return False
        status = self.status
        return status["pid"] == command.pid and status["state"] == "running"

    def has_saved_since(self, timestep: int) -> bool:
        """Whether it has a checkpoint after a timestep."""
        return bool(self.checkpoints) and self.checkpoints[-1] > timestep

    @property
    def log(self) -> str:
        """The content of log.txt."""
        return (self.path / "log.txt").read_text()

    def _names(self) -> list[str]:
        folder = self.path / "checkpoints"
        return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []


def start_training(steppe: Steppe, name: str, *flags: str) -> tuple[Command, Run]:
    """Starts an endless training and waits until it has saved a checkpoint."""
    run = steppe.run(name)
    command = steppe.launch("train", *ENDLESS, "-n", name, *flags)
    wait_until(lambda: run.is_trained_by(command) and run.has_saved_since(0), "it trains and has saved")
    return command, run


def end_owner(folder: Path) -> None:
    """Kills the process that trains in `folder`, if there is one."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        status = json.loads((folder / "status.json").read_text())
        if status["state"] in LIVE and b"steppe" in Path(f"/proc/{status['pid']}/cmdline").read_bytes():
            os.kill(status["pid"], signal.SIGKILL)
