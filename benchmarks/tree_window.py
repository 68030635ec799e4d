"""What training costs in a whole tree of processes, once it is under way: workers and servers included."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class TreeWindow:
    """As `window.Window`, for this process and all that it has started."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.first: tuple[int, float, float] | None = None
        self.last: tuple[int, float, float] | None = None

    def mark(self, timestep: int) -> None:
        """Notes CPU time and wall time; a process that has ended since counts as long as its parent lives."""
        if self.first is None and timestep < self.warm_up:
            return
        self.last = (timestep, cpu_seconds_of_tree(os.getpid()), time.perf_counter())
        self.first = self.first or self.last

    def costs(self) -> dict[str, float]:
        """Per timestep: {"timesteps", "cpu_us", "wall_us", "steps_per_second"}."""
        if self.first is None or self.last is None or self.last == self.first:
            raise RuntimeError(f"the run ended before anything was measured after its {self.warm_up} timesteps")
        timesteps, cpu, wall = (end - start for start, end in zip(self.first, self.last, strict=True))
        return {
            "timesteps": timesteps,
            "cpu_us": 1e6 * cpu / timesteps,
            "wall_us": 1e6 * wall / timesteps,
            "steps_per_second": timesteps / wall,
        }


def cpu_seconds_of_tree(root: int) -> float:
    """Of a process, its descendants, and the ended ones that they have waited for."""
    parents, ticks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
    return sum(spent for pid, spent in ticks.items() if _descends(pid, root, parents)) / TICKS


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid and pid != root:
        pid = parents.get(pid, 0)
    return pid == root
