"""Bandit algorithms: pure functions from the statistics of the arms to the probability of each arm.

A router draws from these probabilities, so they are exactly its propensities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steppe.specs.serving import EpsilonGreedy, Thompson, Ucb1


@dataclass(slots=True)
class Arm:
    """The statistics of one branch; mean and squares by Welford's algorithm (1962)."""

    chosen: int = 0
    """Episodes, and requests without an episode, that were sent here."""
    requests: int = 0
    """Requests that were answered here."""
    count: int = 0
    """Chosen ones that are over and rewarded."""
    mean: float = 0.0
    """Mean of their returns."""
    squares: float = 0.0
    """Sum of their squared distances from the mean."""
    lowest: float = math.inf
    highest: float = -math.inf

    def learn(self, value: float) -> None:
        """Adds one return."""
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self.squares += before * (value - self.mean)
        self._stretch(value)

    def correct(self, old: float, new: float) -> None:
        """Replaces a return that was added before: a reward came late."""
        before = self.mean
        self.mean += (new - old) / self.count
        self.squares = max(0.0, self.squares + (new - old) * (new - self.mean + old - before))
        self._stretch(new)

    def _stretch(self, value: float) -> None:
        self.lowest = min(self.lowest, value)
        self.highest = max(self.highest, value)


Bandit = EpsilonGreedy | Ucb1 | Thompson


def probabilities(settings: Bandit, arms: Sequence[Arm]) -> np.ndarray:
    """The probability [arms] of each arm."""
    match settings:
        case EpsilonGreedy():
            return epsilon_greedy(settings, arms)
        case Ucb1():
            return ucb1(settings, arms)
        case Thompson():
            return thompson(settings, arms)


def epsilon_greedy(settings: EpsilonGreedy, arms: Sequence[Arm]) -> np.ndarray:
    """Epsilon is spread over all arms [arms], the rest goes to the arm with the highest mean."""
    best = _untried(settings, arms)
    if best is None:
        best = _highest([arm.mean if arm.count else -math.inf for arm in arms])
    return settings.epsilon / len(arms) + (1.0 - settings.epsilon) * best


def ucb1(settings: Ucb1, arms: Sequence[Arm]) -> np.ndarray:
    """The arm [arms] with the highest mean + range * sqrt(2 ln n / n_j) (Auer et al. 2002, figure 1)."""
    best = _untried(settings, arms)
    if best is None:
        seen = max(arm.highest for arm in arms) - min(arm.lowest for arm in arms)
        width = settings.exploration * (settings.reward_range or (seen if math.isfinite(seen) else 0.0))
        logarithm = 2.0 * math.log(max(1, sum(arm.count for arm in arms)))
        best = _highest(
            [arm.mean + width * math.sqrt(logarithm / arm.count) if arm.count else -math.inf for arm in arms]
        )
    return _with_floor(best, settings.floor)


def thompson(settings: Thompson, arms: Sequence[Arm]) -> np.ndarray:
    """The probability [arms] that an arm's mean is the highest, with a normal posterior for each mean.

    Each arm's variance is pooled with that of all rewards, which has the weight of one reward: few rewards alone say
    too little.
    """
    best = _untried(settings, arms)
    if best is None:
        total = sum(arm.count for arm in arms)
        overall = sum(arm.count * arm.mean for arm in arms) / max(1, total)
        spread = sum(arm.squares + arm.count * (arm.mean - overall) ** 2 for arm in arms) / max(1, total)
        means = np.array([arm.mean if arm.count else overall for arm in arms])
        variances = np.array([(arm.squares + spread) / max(1, arm.count) / max(1, arm.count) for arm in arms])
        best = _chance_to_be_highest(means, np.sqrt(variances))
    return _with_floor(best, settings.floor)


def _untried(settings: Bandit, arms: Sequence[Arm]) -> np.ndarray | None:
    """Spreads all probability over arms without a reward; None if there are none, or they were tried often enough."""
    untried = np.array([arm.count == 0 and arm.chosen < settings.patience for arm in arms], float)
    number = untried.sum()
    return untried / number if number else None


def _highest(values: Sequence[float]) -> np.ndarray:
    """Gives all probability to the highest value [arms], shared between equal ones."""
    top = max(values)
    best = np.array([value == top for value in values], float)
    return best / best.sum()


def _with_floor(best: np.ndarray, floor: float) -> np.ndarray:
    return floor + (1.0 - floor * len(best)) * best


_GRID = np.linspace(-6.0, 6.0, 49)


def _chance_to_be_highest(means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """P(arm j is the highest) [arms] of independent normals: the integral of j's density times P(all others are
    lower)."""
    scale = deviations.max()
    if not scale > 0.0:
        return _highest(means.tolist())
    # A zero deviation would be a step that no grid can resolve.
    deviations = np.maximum(deviations, 1e-9 * scale)
    # Each arm's own grid, where its density lies: [arm j, point].
    points = means[:, None] + deviations[:, None] * _GRID
    distances = (points[:, :, None] - means) / deviations
    below = _normal_distribution(distances)
    arms = np.arange(len(means))
    below[arms, :, arms] = 1.0
    chances = (np.exp(-0.5 * _GRID**2) * below.prod(-1)).sum(-1)
    return chances / chances.sum()


def _normal_distribution(x: np.ndarray) -> np.ndarray:
    """The standard normal distribution function to seven digits (Abramowitz and Stegun 26.2.17)."""
    size = np.abs(x)
    t = 1.0 / (1.0 + 0.2316419 * size)
    polynomial = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * np.minimum(size, 38.0) ** 2) * (0.3989422804014327 * polynomial)
    return np.where(x > 0.0, 1.0 - tail, tail)
