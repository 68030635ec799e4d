"""How many processors there are to spread work over."""

from __future__ import annotations

import os

VARIABLE = "STEPPE_CORES"
"""Says it where the system does not know, as in a container that is promised a part of its machine."""


def available_cores() -> int:
    """How many processors this process may use; macOS cannot say, so there they all count."""
    if (told := os.environ.get(VARIABLE, "")).isdecimal():
        return max(1, int(told))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
