"""Finds the processes of a Ray and the addresses at which they listen."""

from __future__ import annotations

import contextlib
from pathlib import Path

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 in the notation of /proc/net/tcp and /proc/net/tcp6."""


def descendants(pid: int) -> set[tuple[int, str]]:
    """(id, start time) of all processes that a process has started, directly or through others."""
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
    """The command lines of those processes that still run."""
    return [named(pid) for pid, start in processes if state_of(pid, start) not in ("Z", "")]


def state_of(pid: int, start: str | None = None) -> str:
    """The state letter as in proc(5): "T" is stopped, "Z" a zombie; "" if the process (of that start) is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if start in (None, fields[19]):
            return fields[0]
    return ""


def named(pid: int) -> str:
    """The command line of a process, such as "ray::Worker.work" or a raylet's path."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def listening_sockets(pids: set[int]) -> set[tuple[str, str]]:
    """(inode, address as in /proc/net/tcp) of each socket at which these processes accept connections."""
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
