"""Adds up the workers' reports: rows of metrics, and the window of the last episodes of all workers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steppe.errors import EnvironmentFault
from steppe.runners._base import Chunk, ChunkLimits
from steppe.runners.engines.distributed.messages import WorkReport
from steppe.runners.episode_window import EpisodeWindow


@dataclass
class _PendingRow:
    """The totals since the last row."""

    pushes: int = 0
    timesteps: int = 0
    episodes: int = 0
    updates: int = 0
    learned: int = 0
    staleness: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """Sums over the pushes with updates."""


class ReportTotals:
    """Adds up reports until a row of metrics is asked for."""

    def __init__(self) -> None:
        self._window = EpisodeWindow()
        self._row = _PendingRow()
        self._dropped = 0
        self._is_healthy = True
        self._fault: EnvironmentFault | None = None
        self._since = time.monotonic()

    @property
    def timesteps(self) -> int:
        """The timesteps that are not in a row yet."""
        return self._row.timesteps

    @property
    def has_row(self) -> bool:
        """Whether there is something for a new row."""
        return self._row.pushes > 0 or self._row.timesteps > 0

    @property
    def has_trouble(self) -> bool:
        """Whether the run must end."""
        return not self._is_healthy or self._fault is not None

    def has_reached(self, limits: ChunkLimits) -> bool:
        """Whether a limit of the chunk is reached."""
        if limits.episodes is not None and self._row.episodes >= limits.episodes:
            return True
        return self._window.has_reached(limits.stop_at_return)

    def take_in(self, reports: Iterable[WorkReport]) -> None:
        """Adds reports to the totals."""
        row = self._row
        for report in reports:
            row.pushes += report.pushes
            row.timesteps += report.timesteps
            row.episodes += report.episodes
            row.updates += report.updates
            row.learned += report.learned
            row.staleness += report.staleness
            for name, value in report.metrics.items():
                row.metrics[name] = row.metrics.get(name, 0.0) + value * report.learned
            self._window.record(report.returns, report.lengths)
            self._dropped += report.dropped
            self._is_healthy &= report.is_healthy

    def note_fault(self, fault: EnvironmentFault) -> None:
        """Records the fault that ends the run."""
        self._fault = fault

    def chunk(self, limits: ChunkLimits, workers: int) -> Chunk:
        """Returns the totals since the last call as one row, or no row if there is nothing."""
        columns: dict[str, Any] = {}
        has_row = self.has_row
        if has_row:
            row, self._row = self._row, _PendingRow()
            now = time.monotonic()
            spent, self._since = now - self._since, now
            learned = max(row.learned, 1)
            columns = {
                "timesteps": row.timesteps,
                "episodes": row.episodes,
                "updates": row.updates,
                "mean_return": self._window.mean_return,
                "mean_length": self._window.mean_length,
                **{name: value / learned for name, value in row.metrics.items()},
                "workers": workers,
                "updates_per_second": row.updates / max(spent, 1e-3),
                "policy_lag": row.staleness / learned,
                "dropped": self._dropped,
            }
        arrays = {name: np.array([value]) for name, value in columns.items()}
        # With no workers left no row is produced, so report it here.
        figures = {"workers": float(workers)} | ({} if workers else {"updates_per_second": 0.0})
        reached = self._window.has_reached(limits.stop_at_return)
        return Chunk(int(has_row), arrays, reached, self._is_healthy, self._fault, figures)

    def arrays(self) -> dict[str, np.ndarray]:
        """The state for a checkpoint, with the totals that are not in a row yet but are in the servers' state."""
        row = self._row
        return {
            "returns": np.array(self._window.returns, np.float32),
            "lengths": np.array(self._window.lengths, np.int64),
            "dropped": np.array(self._dropped),
            "in_no_row": np.array([row.pushes, row.timesteps, row.episodes, row.updates]),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores the state of a checkpoint."""
        self._window.record(arrays["returns"].tolist(), arrays["lengths"].tolist())
        self._dropped = int(arrays["dropped"])
        pushes, timesteps, episodes, updates = (int(number) for number in arrays["in_no_row"])
        self._row = _PendingRow(pushes, timesteps, episodes, updates)
