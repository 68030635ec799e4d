"""Environments for tests of worker processes: they count their steps in files, hang or fail on request."""

from __future__ import annotations

import os
import time
from pathlib import Path

from worlds import World


class Counted(World):
    """Adds a byte to a file of its process for every step, so that the steps can be counted afterwards."""

    def __init__(self, folder, seconds=0.0):
        self._file = os.open(Path(folder) / f"{os.getpid()}-{id(self)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._seconds = seconds

    def step(self, action):
        os.write(self._file, b".")
        time.sleep(self._seconds)
        return super().step(action)

    def close(self):
        os.close(self._file)


class Hangs(World):
    """The first one in the folder that takes 50 steps hangs in the 50th."""

    def __init__(self, folder):
        self._flag, self._taken = Path(folder) / "hangs", 0

    def step(self, action):
        self._taken += 1
        if self._taken == 50:
            try:
                self._flag.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                time.sleep(3600)
        return super().step(action)


class HangsAtStart(World):
    """The first one in the folder that is made outside of the process `here` hangs while it is made."""

    def __init__(self, folder, here):
        if os.getpid() != here:
            try:
                (Path(folder) / "hangs").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                time.sleep(3600)


class Fails(World):
    """Raises at its 100th step."""

    _taken = 0

    def step(self, action):
        self._taken += 1
        if self._taken == 100:
            raise RuntimeError("the simulator has crashed")
        return super().step(action)


def taken(folder):
    """How many steps all environments in a folder have taken: {process: steps}."""
    steps: dict[int, int] = {}
    for file in Path(folder).iterdir():
        pid = int(file.name.partition("-")[0])
        steps[pid] = steps.get(pid, 0) + file.stat().st_size
    return steps
