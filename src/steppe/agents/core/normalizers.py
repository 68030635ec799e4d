"""Running mean and variance, merged batch by batch (Chan et al. 1979: parallel variance)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

CLIP = 10.0
"""Normalised values are held within +- CLIP."""
EPSILON = 1e-8


class Statistics(NamedTuple):
    """Mean and variance of all values so far, and their number."""

    mean: Any
    variance: Any
    samples: Any


def empty(shape: tuple[int, ...]) -> Statistics:
    """Statistics of no value: normalising with them changes nothing."""
    zeros, ones = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    return Statistics(zeros, ones, np.zeros((), np.float32))


def merge(statistics: Statistics, values: Array, axis: str | None = None, weights: Any = ()) -> Statistics:
    """Adds values [T, N, *shape]; with `axis`, those on all devices of that axis.

    `weights` [T, N] are a trajectory's: a timestep of weight zero is filler and does not count.
    """
    if isinstance(weights, tuple):
        count = jnp.float32(values.shape[0] * values.shape[1])
        mean = values.mean((0, 1))
        variance = values.var((0, 1))
    else:
        is_real = (weights > 0).reshape(*weights.shape, *(1,) * (values.ndim - 2))
        count = is_real.sum(dtype=jnp.float32)
        mean = values.mean((0, 1), where=is_real)
        variance = values.var((0, 1), where=is_real)
    if axis is not None:
        own_mean, mean = mean, jax.lax.pmean(mean, axis)
        variance = jax.lax.pmean(variance + (own_mean - mean) ** 2, axis)
        count = count * jax.lax.axis_size(axis)
    total = statistics.samples + count
    # By the share of the new values, which stays exact if the count has reached the end of its precision.
    share, shift = count / total, mean - statistics.mean
    return Statistics(
        mean=statistics.mean + share * shift,
        variance=statistics.variance + share * (variance - statistics.variance + (1.0 - share) * shift**2),
        samples=total,
    )


def normalize(statistics: Statistics, values: Array) -> Array:
    """Values shifted and scaled to mean 0 and variance 1."""
    scaled = (values - statistics.mean) / jnp.sqrt(statistics.variance + EPSILON)
    return jnp.clip(scaled, -CLIP, CLIP)


def scale(statistics: Statistics, rewards: Array) -> Array:
    """Rewards divided by the spread of the returns; not shifted, since that would change the best policy."""
    return jnp.clip(rewards / jnp.sqrt(statistics.variance + EPSILON), -CLIP, CLIP)
