"""How many processors there are to spread work over."""

from __future__ import annotations

import os


def available_cores() -> int:
    """How many processors this process may use; macOS cannot say, so there they all count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
