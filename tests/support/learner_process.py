"""A learner of run mode async in a process of its own, and a hand-written worker that can send any message."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from servers import Line, array

TOKEN = "0123456789abcdef"
HELLO = {"op": "hello", "protocol": "steppe-async", "version": 1, "token": TOKEN}
ROWS = 64
PROGRAM = """
import sys, threading
from own_policies import Table
from steppe import AsyncLearner, UniformReplay
learner = AsyncLearner(Table(), UniformReplay(500, 16, 50), address="127.0.0.1:0", folder=sys.argv[1],
                       total_timesteps=10**9, saver_frequency="1000000t")
def print_port():
    while learner.address is None:
        pass
    print(learner.address[1], flush=True)
threading.Thread(target=print_port).start()
learner.run()
"""


class LearnerProcess:
    """A learner for `worlds:World` (three numbers, two choices) that trains in `folder` until SIGTERM."""

    def __init__(self, folder: Path) -> None:
        paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONPATH": paths, "STEPPE_LEARNER_TOKEN": TOKEN}
        self._errors = folder.parent / f"{folder.name}.err"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @contextlib.contextmanager
    def line(self) -> Iterator[Line]:
        """Opens a connection to it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sock:
            yield Line(sock)

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text()

    @property
    def peak_megabytes(self) -> int:
        """Its peak memory."""
        return self._status("VmHWM") // 1024

    @property
    def threads(self) -> int:
        """The number of its threads."""
        return self._status("Threads")

    def _status(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{name}:")[1].split()[0])

    def terminate(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def kill(self) -> None:
        """Kills it if it has not ended yet."""
        self.process.kill()
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()


def said(line: Line, message: Any) -> dict[str, Any]:
    """Sends a message and returns the answer."""
    line.write(message)
    return line.read()


def join(line: Line, name: str, **fields: Any) -> dict[str, Any]:
    """Greets and joins as a worker in `worlds:World`; returns the learner's answer."""
    assert said(line, HELLO) == {"op": "proceed"}
    observation = {"type": "box", "shape": [3], "low": [-1.0], "high": [1.0], "dtype": "float32"}
    spaces = {"observation_space": observation, "action_space": {"type": "discrete", "n": 2, "start": 0}}
    message = {"op": "join", "worker": name, "environments": 1, **spaces, **fields}
    while (answer := said(line, message))["op"] == "wait":
        pass
    return answer


def batch(sequence: int, **fields: Any) -> dict[str, Any]:
    """A batch whose last timestep ends an episode."""
    ends = np.zeros((ROWS, 1))
    ends[-1] = 1
    rows = {
        "observations": array(np.zeros((ROWS, 1, 3))),
        "following": array(np.zeros((1, 3))),
        "actions": array(np.zeros((ROWS, 1)), "int32"),
        "rewards": array(np.ones((ROWS, 1))),
        "terminated": array(ends, "bool"),
        "truncated": array(np.zeros((ROWS, 1)), "bool"),
    }
    counts = {"timesteps": ROWS, "sequence": sequence, "version": 0, "has": 0, "session": "s"}
    figures = {"returns": [5.0], "lengths": [ROWS], "evaluations": []}
    return {"op": "batch", **rows, **counts, **figures, **fields}
