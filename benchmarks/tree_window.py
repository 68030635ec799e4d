"""What training costs in a whole tree of processes, once it is under way: workers and servers included."""

from __future__ import annotations

import os
from pathlib import Path

from window import Window

TICKS = os.sysconf("SC_CLK_TCK")


class TreeWindow(Window):
    """The same for this process and all that it has started."""

    def cpu_seconds(self) -> float:
        """A process that has ended since counts as long as its parent lives."""
        return cpu_seconds_of_tree(os.getpid())


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
