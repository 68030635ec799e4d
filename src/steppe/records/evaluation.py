"""The evaluation of a policy: the returns of whole episodes, and statistics of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steppe.files.durable import write_atomically

FILE = "evaluation.json"
"""The file of the final evaluation in a run folder."""
FORMAT = "steppe-evaluation"
VERSION = 1
RESAMPLES = 2000
"""The number of bootstrap samples for the interval of the mean."""
CONFIDENCE = 0.95
"""The confidence level of the interval."""
_DRAWN_AT_ONCE = 1_000_000
_FIGURES = ("episodes", "seed", "greedy", "mean", "deviation", "iqm", "interval", "min", "max", "mean_length")


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes that a policy played outside of training, and statistics of their returns.

    A return is the sum of an episode's rewards, neither discounted nor clipped or scaled for the learner.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    """In timesteps, which are decisions of the policy."""
    seed: int
    greedy: bool
    """Whether the best action was taken instead of a sampled one."""
    environment: str
    timestep: int
    """The timestep of training at which the policy was saved."""

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(self.returns)

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def deviation(self) -> float:
        """The standard deviation of the returns, with N in the denominator."""
        return float(np.std(self.returns))

    @property
    def iqm(self) -> float:
        """The interquartile mean: the mean of the middle half of the returns (Agarwal et al. 2021)."""
        cut = len(self.returns) // 4
        return float(np.mean(np.sort(self.returns)[cut : len(self.returns) - cut]))

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95% percentile bootstrap interval of the mean, reproducible by the seed."""
        return bootstrap_interval(self.returns, self.seed)

    @property
    def min(self) -> float:
        """The lowest return."""
        return float(np.min(self.returns))

    @property
    def max(self) -> float:
        """The highest return."""
        return float(np.max(self.returns))

    @property
    def mean_length(self) -> float:
        """The mean length of an episode."""
        return float(np.mean(self.lengths))

    def to_json(self) -> dict[str, Any]:
        """All statistics, returns and lengths."""
        figures = {name: getattr(self, name) for name in _FIGURES} | {"interval": list(self.interval)}
        played = {"environment": self.environment, "timestep": self.timestep}
        return played | figures | {"returns": list(self.returns), "lengths": list(self.lengths)}


@dataclass(frozen=True)
class FinalEvaluation:
    """The evaluation at the end of a run, of its last and its best policy on the same episodes."""

    last: Evaluation
    best: Evaluation | None
    """None if the best policy is the last one, or was not evaluated."""
    handed_out: Literal["last", "best"]
    """Which of the two policies is in policy/."""

    def write(self, folder: Path) -> None:
        """Writes evaluation.json into the run folder."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "handed_out": self.handed_out,
            "last": self.last.to_json(),
            "best": None if self.best is None else self.best.to_json(),
        }
        write_atomically(folder / FILE, json.dumps(data, indent=1) + "\n")

    def to_status(self) -> dict[str, Any]:
        """The entry in status.json, which `Score.read` reads."""
        shown = self.best if self.handed_out == "best" and self.best is not None else self.last
        return {
            "mean": shown.mean,
            "interval": list(shown.interval),
            "episodes": shown.episodes,
            "timestep": shown.timestep,
            "policy": self.handed_out,
            "last": self.last.mean,
            "best": None if self.best is None else self.best.mean,
        }


def bootstrap_interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean (Efron 1979), from resamples of the values."""
    given = np.asarray(values, float)
    rng = np.random.default_rng([seed, len(given)])
    rows = max(1, _DRAWN_AT_ONCE // len(given))
    means = [
        given[rng.integers(len(given), size=(min(rows, RESAMPLES - done), len(given)))].mean(1)
        for done in range(0, RESAMPLES, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
