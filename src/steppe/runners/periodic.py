"""Triggers that are due every so many seconds, episodes or timesteps."""

from __future__ import annotations

from steppe.specs.running.frequency import Frequency


class PeriodicTrigger:
    """Due once for every multiple of its frequency that the run passes."""

    def __init__(self, frequency: Frequency, timestep: int = 0, episode: int = 0, seconds: float = 0.0) -> None:
        self.frequency = frequency
        self._next = 0.0
        self._advance(timestep, episode, seconds)

    def is_due(self, timestep: int, episode: int, seconds: float) -> bool:
        """Whether the run has passed a multiple since this was last true."""
        if self._measure(timestep, episode, seconds) < self._next:
            return False
        self._advance(timestep, episode, seconds)
        return True

    def timesteps_left(self, timestep: int) -> int | None:
        """Timesteps until it is due; None if it is counted in another unit."""
        return max(int(self._next) - timestep, 0) if self.frequency.unit == "t" else None

    def episodes_left(self, episode: int) -> int | None:
        """Episodes until it is due; None if it is counted in another unit."""
        return max(int(self._next) - episode, 0) if self.frequency.unit == "e" else None

    def _advance(self, timestep: int, episode: int, seconds: float) -> None:
        amount = self.frequency.amount
        self._next = (self._measure(timestep, episode, seconds) // amount + 1) * amount

    def _measure(self, timestep: int, episode: int, seconds: float) -> float:
        return {"t": timestep, "e": episode, "s": seconds}[self.frequency.unit]
