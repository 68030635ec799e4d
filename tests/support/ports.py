"""Free ports of this machine, for servers that tests start or for addresses without a server."""

from __future__ import annotations

import random
import socket
from pathlib import Path

CANDIDATES = 9_000
RESERVED = 3_000
"""Ports directly below the kernel's range that Kubernetes uses."""


def free_port() -> int:
    """A free port below the range from which the kernel gives ports to outgoing connections."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - RESERVED
    while True:
        # No seed, since test processes that run at the same time must not draw the same port.
        port = random.SystemRandom().randrange(end - CANDIDATES, end)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
