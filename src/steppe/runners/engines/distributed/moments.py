"""What workers have seen, as mean and variance, put together on the host (Chan et al. 1979)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Mean and variance of some values, and how many there were; float64, as many are added up."""

    mean: np.ndarray
    variance: np.ndarray
    samples: np.ndarray


class NormalizerMoments(NamedTuple):
    """What the normalisers go by."""

    observations: Moments
    returns: Moments


def moments(statistics: Any) -> Moments:
    """Of a `steppe.agents.core.normalizers.Statistics`."""
    return Moments(*(np.array(leaf, np.float64) for leaf in statistics))


def of_values(values: np.ndarray) -> Moments:
    """Of values [T, N, ...]."""
    count = np.float64(values.shape[0] * values.shape[1])
    mean = values.mean((0, 1), dtype=np.float64)
    return Moments(mean, values.var((0, 1), dtype=np.float64), np.asarray(count))


def merged(one: Moments, other: Moments) -> Moments:
    """Of all values of both."""
    total = one.samples + other.samples
    if total == 0:
        return one
    shift = other.mean - one.mean
    spread = one.variance * one.samples + other.variance * other.samples
    return Moments(
        one.mean + shift * other.samples / total,
        (spread + shift**2 * one.samples * other.samples / total) / total,
        total,
    )


def merged_moments(one: NormalizerMoments, other: NormalizerMoments) -> NormalizerMoments:
    """Of both kinds."""
    return NormalizerMoments(merged(one.observations, other.observations), merged(one.returns, other.returns))
