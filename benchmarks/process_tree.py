"""CPU time and memory of a process and all processes that it has started, read from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path

from window import Window

TICKS = os.sysconf("SC_CLK_TCK")


class TreeWindow(Window):
    """A `Window` that counts the CPU time of this process and of all its descendants."""

    def cpu_seconds(self) -> float:
        """Includes processes that have ended, as long as their parent lives."""
        return cpu_seconds_of_tree(os.getpid())


def cpu_seconds_of_tree(root: int) -> float:
    """CPU time of a process, of its descendants, and of the ended processes that they have waited for."""
    stats = _stats()
    ticks = (sum(map(int, stats[pid][11:15])) for pid in [root, *_descendants(root, stats)] if pid in stats)
    return sum(ticks) / TICKS


def descendants(root: int) -> list[int]:
    """The processes that a process has started, directly or through others."""
    return _descendants(root, _stats())


def megabytes_of(pid: int) -> float:
    """Memory of a process; a page that several processes share counts in equal parts for each of them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _stats() -> dict[int, list[str]]:
    """Process -> the fields of its /proc/PID/stat behind the name: state, parent, ..."""
    stats = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stats[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
    return stats


def _descendants(root: int, stats: dict[int, list[str]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]
