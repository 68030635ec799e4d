"""The last 100 finished episodes of all workers, kept by engines whose loop runs in Python."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

WINDOW = 100


class EpisodeWindow:
    """Returns and lengths of the last `WINDOW` episodes, and their means: NaN before the first one."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.mean_return = self.mean_length = math.nan

    def record(self, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Adds episodes in the order in which they ended."""
        if not returns:
            return
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        self.mean_return = sum(self.returns) / len(self.returns)
        self.mean_length = sum(self.lengths) / len(self.lengths)

    def has_reached(self, threshold: float | None) -> bool:
        """Whether the window is full and its mean return is at least `threshold`."""
        return threshold is not None and len(self.returns) == WINDOW and self.mean_return >= threshold
