"""Real `python -m steppe` processes for fault tests: started in groups of their own, and always ended."""

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
"""How long anything may take on a busy machine before a test gives up."""
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
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


def wait_until(condition: Callable[[], Any], what: str, seconds: float = SECONDS, pause: float = 0.002) -> Any:
    """The first true value of `condition`; the test fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(pause)
    return value


class Command:
    """One running command; its output goes to files, so that no pipe can fill up."""

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
        """Its number."""
        return self.process.pid

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._out.read_text()

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """A signal to the process itself."""
        self.process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """A signal to the process and those it has started, as a terminal sends Ctrl-C."""
        os.killpg(self.process.pid, number)

    def kill(self) -> int:
        """kill -9; the exit code, which is -9 unless it ended by itself before."""
        self.process.kill()
        return self.process.wait(SECONDS)

    def answer(self, seconds: float = SECONDS) -> Answer:
        """Waits for its end."""
        code = self.process.wait(seconds)
        return Answer(code, self._out.read_text(), self._err.read_text())

    def end(self) -> None:
        """Kills its whole group, whatever is left of it."""
        # A process of that number, when this one is over, is somebody else's: numbers come round within minutes.
        if not self.has_ended or not Path(f"/proc/{self.pid}").exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


class Steppe:
    """Gives commands in one folder."""

    def __init__(self, folder: Path, outputs: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if name != "STEPPE_DEBUG"}
        self._outputs = outputs
        self._commands: list[Command] = []

    def __call__(self, *words: str) -> Answer:
        """Runs a command to its end."""
        return self.launch(*words).answer()

    def launch(self, *words: str) -> Command:
        """Starts a command and goes on."""
        command = Command(words, self.folder, self._outputs / str(len(self._commands)), self.environment)
        self._commands.append(command)
        return command

    def run(self, name: str) -> Run:
        """The run folder of that name in the project."""
        return Run(self.folder / "experiments" / name)

    def listed(self, name: str) -> dict[str, Any]:
        """The row of `experiment list --json`."""
        answer = self("experiment", "list", "--json")
        assert answer.code == 0, answer.err
        (row,) = [row for row in json.loads(answer.out) if row["name"] == name]
        return row

    def end(self) -> None:
        """Ends everything that was started here, detached runs too."""
        for command in self._commands:
            command.end()
        for status in self.folder.glob("**/status.json"):
            end_owner(status.parent)


@dataclass(frozen=True)
class Run:
    """What a run folder says, read without Steppe where it can be."""

    path: Path

    @property
    def status(self) -> dict[str, Any]:
        """status.json as it is written."""
        return json.loads((self.path / "status.json").read_text())

    @property
    def state(self) -> str:
        """The state as it is written: who died is found out only by `experiment list` and the like."""
        return self.status["state"]

    @property
    def checkpoints(self) -> list[int]:
        """The timesteps that have a checkpoint under its final name, oldest first."""
        return sorted(int(name) for name in self._names() if name.isdecimal())

    @property
    def unfinished(self) -> list[int]:
        """The timesteps of checkpoints that are being written or deleted, or were when their process died."""
        ends = [name.removesuffix(".replaced").rpartition("-")[2] for name in self._names() if name[:1] == "."]
        return [int(end) for end in ends]

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written that is newer than all there are."""
        newest = max(self.unfinished, default=-1)
        return newest >= 0 and not self.has_saved_since(newest - 1)

    def is_trained_by(self, command: Command) -> bool:
        """Whether this command trains it by now."""
        assert not command.has_ended, command.answer()
        if not (self.path / "status.json").exists():
            return False
        status = self.status
        return status["pid"] == command.pid and status["state"] == "running"

    def has_saved_since(self, timestep: int) -> bool:
        """Whether there is a checkpoint beyond a timestep."""
        return bool(self.checkpoints) and self.checkpoints[-1] > timestep

    @property
    def log(self) -> str:
        """log.txt."""
        return (self.path / "log.txt").read_text()

    def _names(self) -> list[str]:
        shelf = self.path / "checkpoints"
        return [entry.name for entry in shelf.iterdir()] if shelf.is_dir() else []


def end_owner(folder: Path) -> None:
    """Kills the process that trains in `folder`, if there is one."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        status = json.loads((folder / "status.json").read_text())
        if status["state"] in LIVE and b"steppe" in Path(f"/proc/{status['pid']}/cmdline").read_bytes():
            os.kill(status["pid"], signal.SIGKILL)
