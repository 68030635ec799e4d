"""A replay memory in NumPy for users' own policies: the newest transitions, drawn uniformly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steppe.errors import UserError

KEPT = ("observations", "actions", "rewards", "terminated", "next_observations")


class UniformReplay:
    """Keeps the last `capacity` transitions; gives batches of `batch_size` once it has `least` of them."""

    def __init__(self, capacity: int = 100_000, batch_size: int = 256, least: int = 1_000, seed: int = 0) -> None:
        if not 0 < max(least, 1) <= capacity or batch_size < 1:
            raise UserError(
                f"a memory of {capacity} transitions cannot wait for {least} of them; lower least or raise capacity"
            )
        self.capacity, self.batch_size, self.least = capacity, batch_size, least
        self._rng = np.random.default_rng(seed)
        self._kept: dict[str, np.ndarray] = {}
        self._head = self._filled = 0

    def __len__(self) -> int:
        return self._filled

    def add(self, timesteps: Mapping[str, np.ndarray]) -> None:
        """Adds arrays [T, N, ...] by name, over the oldest transitions."""
        rows = {name: timesteps[name].reshape(-1, *timesteps[name].shape[2:])[-self.capacity :] for name in KEPT}
        count = len(rows["rewards"])
        places = (self._head + np.arange(count)) % self.capacity
        for name, values in rows.items():
            if name not in self._kept:
                self._kept[name] = np.zeros((self.capacity, *values.shape[1:]), values.dtype)
            self._kept[name][places] = values
        self._head = (self._head + count) % self.capacity
        self._filled = min(self._filled + count, self.capacity)

    def sample(self) -> dict[str, np.ndarray] | None:
        """Arrays [B, ...] by name: observations, actions, rewards, terminated, next_observations; None while few."""
        if self._filled < self.least:
            return None
        drawn = self._rng.integers(0, self._filled, self.batch_size)
        return {name: array[drawn] for name, array in self._kept.items()}

    def snapshot(self) -> dict[str, np.ndarray]:
        """All transitions, oldest first."""
        order = (self._head - self._filled + np.arange(self._filled)) % self.capacity
        return {name: array[order] for name, array in self._kept.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self._kept, self._head, self._filled = {}, 0, 0
        if arrays:
            self.add({name: array[:, None] for name, array in arrays.items()})
