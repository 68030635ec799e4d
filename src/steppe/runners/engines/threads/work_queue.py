"""Hands out batches to threads and collects their results, with exact counts in whatever order the threads run."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from steppe.errors import EnvironmentFault
from steppe.runners._base import Chunk, ChunkLimits
from steppe.runners.engines.threads.thread_worker import LearnedBatch
from steppe.runners.episode_window import EpisodeWindow


class WorkQueue:
    """The work of one call of `advance`: hands out tickets until there are none or a limit is reached."""

    def __init__(self, tickets: int, timestep: int, limits: ChunkLimits, window: EpisodeWindow) -> None:
        self._left = tickets
        self._timestep = timestep
        self._limits = limits
        self._window = window
        self._lock = threading.Lock()
        self._rows: list[tuple[Any, ...]] = []
        self._batches: list[LearnedBatch] = []
        self._finished = 0
        self._is_healthy = True
        self._is_stopped = False
        self.error: BaseException | None = None
        """The error of the first worker that failed."""

    def take(self) -> int | None:
        """A ticket for one batch: the number of timesteps so far; None if there are no more."""
        with self._lock:
            if not self._left or self._is_over():
                return None
            self._left -= 1
            return self._timestep

    def commit(self, batch: LearnedBatch) -> None:
        """Counts a complete batch, which was collected and learned from."""
        with self._lock:
            self._window.record(batch.returns, batch.lengths)
            self._timestep += batch.timesteps
            self._finished += len(batch.returns)
            self._is_healthy &= batch.is_healthy
            self._rows.append((len(batch.returns), self._window.mean_return, self._window.mean_length))
            self._batches.append(batch)

    def fail(self, error: BaseException) -> None:
        """Ends the round with a worker's error; its batch does not count."""
        with self._lock:
            self.error = self.error or error

    def stop(self) -> None:
        """Hands out no further tickets."""
        with self._lock:
            self._is_stopped = True

    @property
    def has_more(self) -> bool:
        """Whether there are tickets that may be taken."""
        with self._lock:
            return bool(self._left) and not self._is_over()

    @property
    def updates(self) -> int:
        """The number of steps of the model by all batches."""
        return sum(batch.updates for batch in self._batches)

    def chunk(self, names: list[list[str]], constants: dict[str, float], is_healthy: bool) -> Chunk:
        """All batches in the order of their commits; `constants` are columns of one value."""
        count, batches = len(self._batches), self._batches
        columns: dict[str, np.ndarray] = {}
        if count:
            episodes, mean_returns, mean_lengths = (np.array(column) for column in zip(*self._rows, strict=True))
            updates = np.array([batch.updates for batch in batches])
            columns = {
                "timesteps": np.array([batch.timesteps for batch in batches]),
                "episodes": episodes,
                "updates": updates,
                "mean_return": mean_returns,
                "mean_length": mean_lengths,
            }
            columns |= _metrics(names, batches)
            columns["policy_lag"] = np.array([batch.lag for batch in batches]) / np.maximum(updates, 1)
            columns |= {name: np.full(count, value) for name, value in constants.items()}
        return Chunk(
            iterations=count,
            columns=columns,
            has_reached_return=self._window.has_reached(self._limits.stop_at_return),
            is_healthy=self._is_healthy and is_healthy,
            fault=self.error if isinstance(self.error, EnvironmentFault) else None,
        )

    def _is_over(self) -> bool:
        episodes = self._limits.episodes
        return (
            self._is_stopped
            or self.error is not None
            or not self._is_healthy
            or (episodes is not None and self._finished >= episodes)
            or self._window.has_reached(self._limits.stop_at_return)
        )


def _metrics(names: list[list[str]], batches: list[LearnedBatch]) -> dict[str, np.ndarray]:
    """The mean of each phase's metrics over its steps; losses of several phases add up."""
    columns: dict[str, np.ndarray] = {}
    loss: Any = 0.0
    for phase, own in enumerate(names):
        counts = np.maximum([batch.counts[phase] for batch in batches], 1)
        none = np.zeros(len(own))
        # All workers wait for this, so it is written to be quick.
        sums = np.concatenate([batch.metrics[phase] if batch.counts[phase] else none for batch in batches])
        sums = sums.reshape(len(batches), len(own))
        columns |= dict(zip(own, (sums / counts[:, None]).T, strict=True))
        loss = loss + columns.get("loss", 0.0)
    return columns | ({"loss": loss} if "loss" in columns else {})
