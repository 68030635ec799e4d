"""Pauses between attempts at something that another process or machine must answer."""

from __future__ import annotations

import random
import time


class Backoff:
    """Pauses that grow by `factor` from `first` to `longest` seconds, until `seconds` are over.

    Each pause is shortened by up to a half at random, so that many clients of one server do not come back at once.
    """

    def __init__(self, seconds: float, first: float = 0.1, longest: float = 5.0, factor: float = 2.0) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause, self._longest, self._factor = first, longest, factor

    def wait(self) -> bool:
        """Sleeps before the next attempt; False, without sleeping, once the time is over."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._pause, left) * random.uniform(0.5, 1.0))
        self._pause = min(self._factor * self._pause, self._longest)
        return True
