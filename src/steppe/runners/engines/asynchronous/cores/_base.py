"""The learning core: the engine gives it batches and lets it learn, in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from steppe.runners.engines.asynchronous.wire.batches import WorkerBatch
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import Task


@dataclass(frozen=True)
class Learned:
    """The result of some updates."""

    updates: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """Means over the updates."""
    is_healthy: bool = True
    """Whether every loss and parameter was a finite number."""


class Core(Protocol):
    """A policy that learns from batches of many workers, with its memory."""

    agent: Any
    task: Task
    spaces: Spaces
    """The spaces of the environments."""
    updates: int
    """The number of updates so far: the version of the policy."""

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters; compiles everything."""

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Starts from a snapshot."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything needed to continue from here, except the batches counted by `unsaved`."""

    @property
    def unsaved(self) -> int:
        """How many received batches have not been learned from and are not in a snapshot."""

    @property
    def wants_data(self) -> bool:
        """Whether a batch can be received now; if not, learning comes first."""

    @property
    def can_learn(self) -> bool:
        """Whether an update can be taken now."""

    def take_in(self, batch: WorkerBatch) -> None:
        """Receives a batch of a worker."""

    def learn(self, seconds: float) -> Learned:
        """Takes updates for about that long, at least one."""

    def weights(self) -> dict[str, np.ndarray]:
        """The tensors that workers act with, by name."""

    def exploration(self, timestep: int) -> dict[str, float]:
        """The exploration settings of workers at a timestep."""

    def policy(self, timestep: int) -> Any:
        """The current policy, to be saved."""


class Pace:
    """Keeps a ratio of updates to timesteps; without a ratio updates are always due."""

    def __init__(self, ratio: float | None) -> None:
        self.ratio = ratio
        self.owed = 0.0

    def count(self, timesteps: int) -> None:
        """Counts received timesteps."""
        if self.ratio is not None:
            self.owed += self.ratio * timesteps

    def paid(self, updates: int) -> None:
        """Counts updates."""
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
    """Estimates how many updates fit into some seconds from how long the last ones took."""

    LARGEST = 4096

    def __init__(self) -> None:
        self._each = 0.0

    def fitting(self, seconds: float) -> int:
        """At least one; exactly one while nothing was measured."""
        return int(min(max(seconds / self._each, 1.0), self.LARGEST)) if self._each else 1

    def took(self, updates: int, seconds: float) -> None:
        """Records a measurement."""
        each = seconds / max(updates, 1)
        self._each = each if not self._each else 0.5 * (self._each + each)
