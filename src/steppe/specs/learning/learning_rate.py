"""The learning rate over a run, as one formula for the host and for displays."""

from __future__ import annotations

import math


def decayed_rate(decay: str, start: float, end: float, passed: float) -> float:
    """The learning rate after the share `passed`, 0 to 1, of all updates, on its way from `start` to `end`."""
    match decay:
        case "none":
            return start
        case "linear":
            return start + passed * (end - start)
        case "exponential":
            return start * (end / start) ** passed
        case _:
            return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * passed))
