"""What learns, whatever it learns with: the engine feeds it batches and lets it learn for a while, in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from steppe.runners.engines.asynchronous.wire.batches import WorkerBatch
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import Task


@dataclass(frozen=True)
class Learned:
    """What some updates brought."""

    updates: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """Means over the updates."""
    is_healthy: bool = True
    """Whether every loss and parameter was a finite number."""


class Core(Protocol):
    """A policy that learns from batches of many workers."""

    agent: Any
    task: Task
    spaces: Spaces
    """As the environments have them."""
    updates: int
    """How many were taken so far: the version of the policy."""

    def begin(self, seed: int) -> None:
        """Starts from nothing, everything compiled."""

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Starts from a snapshot."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything needed to go on from here, but for the batches that are `unsaved`."""

    @property
    def unsaved(self) -> int:
        """How many batches were taken in, of which what a snapshot leaves out is not learned from yet."""

    @property
    def wants_data(self) -> bool:
        """Whether a batch can be taken in now; where not, there is something to learn first."""

    @property
    def can_learn(self) -> bool:
        """Whether there is something to learn from now."""

    def take_in(self, batch: WorkerBatch) -> None:
        """Remembers a batch."""

    def learn(self, seconds: float) -> Learned:
        """Takes updates for about that long, at least one."""

    def weights(self) -> dict[str, np.ndarray]:
        """What workers act with, by name."""

    def exploration(self, timestep: int) -> dict[str, float]:
        """How much workers explore at a timestep."""

    def policy(self, timestep: int) -> Any:
        """What has been learned so far, to be saved."""


class Pace:
    """How many updates are due: so many for each timestep, or as many as can be."""

    def __init__(self, ratio: float | None) -> None:
        self.ratio = ratio
        self.owed = 0.0

    def count(self, timesteps: int) -> None:
        """Timesteps have arrived, to be learned from."""
        if self.ratio is not None:
            self.owed += self.ratio * timesteps

    def paid(self, updates: int) -> None:
        """Updates were taken."""
        if self.ratio is not None:
            self.owed -= updates

    @property
    def is_due(self) -> bool:
        """Whether an update should be taken."""
        return self.ratio is None or self.owed >= 1.0

    @property
    def wants_data(self) -> bool:
        """Whether updates are not behind."""
        return self.ratio is None or self.owed < 1.0

    def most(self, fitting: int) -> int:
        """As many updates as fit, but no more than are due."""
        return max(1, fitting if self.ratio is None else min(fitting, int(self.owed)))


class Clock:
    """How many updates fit into some seconds, by how long the last ones took."""

    LARGEST = 4096

    def __init__(self) -> None:
        self._each = 0.0

    def fitting(self, seconds: float) -> int:
        """At least one; few at first, while nothing is known."""
        return int(min(max(seconds / self._each, 1.0), self.LARGEST)) if self._each else 1

    def took(self, updates: int, seconds: float) -> None:
        """A measurement."""
        each = seconds / max(updates, 1)
        self._each = each if not self._each else 0.5 * (self._each + each)
