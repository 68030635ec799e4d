"""Ports of this machine for servers that tests start, or that nobody listens at."""

from __future__ import annotations

import random
import socket
from pathlib import Path

MANY = 9_000
KEPT = 3_000
"""So many right below those that connections get are Kubernetes' own."""


def free_port() -> int:
    """One that no connection is given by chance meanwhile: the kernel takes theirs from a range above it."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - KEPT
    while True:
        # Not by a seed: processes that test at the same time must not think of the same one.
        port = random.SystemRandom().randrange(end - MANY, end)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
