"""Means and variances of observations and returns, merged on the host (Chan et al. 1979)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Mean and variance of some values, and how many there were; float64, as many are added up."""

    mean: np.ndarray
    variance: np.ndarray
    samples: np.ndarray


class NormalizerMoments(NamedTuple):
    """The statistics of the normalisers."""

    observations: Moments
    returns: Moments


def moments(statistics: Any) -> Moments:
    """The moments in a `steppe.agents.core.normalizers.Statistics`."""
    return Moments(*(np.array(leaf, np.float64) for leaf in statistics))


def of_values(values: np.ndarray) -> Moments:
    """The moments of values [T, N, ...]."""
    count = np.float64(values.shape[0] * values.shape[1])
    mean = values.mean((0, 1), dtype=np.float64)
    return Moments(mean, values.var((0, 1), dtype=np.float64), np.asarray(count))


def merged(one: Moments, other: Moments) -> Moments:
    """The moments of the values of both."""
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
    """Merges the moments of observations and of returns."""
    return NormalizerMoments(merged(one.observations, other.observations), merged(one.returns, other.returns))
