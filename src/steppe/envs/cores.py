"""The number of processors for parallel work."""

from __future__ import annotations

import os

VARIABLE = "STEPPE_CORES"
"""Sets the number if the system does not know it, as in a container with a share of its machine."""


def available_cores() -> int:
    """The number of processors that this process may use; on macOS, which does not tell, all of them."""
    if (given := os.environ.get(VARIABLE, "")).isdecimal():
        return max(1, int(given))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
