"""Which processes a Ray is made of, and where they listen."""

from __future__ import annotations

import contextlib
from pathlib import Path

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as Linux writes it, in both of its tables."""


def descendants(pid: int) -> set[tuple[int, str]]:
    """(number, start time) of all processes that a process has started, and those have started, and so on."""
    children: dict[int, list[int]] = {}
    starts: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
                starts[int(folder.name)] = fields[19]
    found, waiting = set(), [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found |= {(each, starts[each]) for each in below}
        waiting += below
    return found


def alive(processes: set[tuple[int, str]]) -> list[str]:
    """What those of them call themselves that still run."""
    return [named(pid) for pid, start in processes if state_of(pid, start) not in ("Z", "")]


def state_of(pid: int, start: str | None = None) -> str:
    """As Linux writes it: "T" is stopped, "Z" a zombie; "" when the process (or the one of `start`) is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if start in (None, fields[19]):
            return fields[0]
    return ""


def named(pid: int) -> str:
    """What a process calls itself: "ray::Worker.work", a raylet's path ..."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def listening_sockets(pids: set[int]) -> set[tuple[str, str]]:
    """(inode, address as Linux writes it) of each socket on which these processes take connections."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                found.add((rest[5], local.partition(":")[0]))
    return found
