"""The last 100 finished episodes as arrays, so that compiled programs can check stop conditions in every iteration."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.runners.episode_window import WINDOW


class CompiledWindow(NamedTuple):
    """Ring buffers of the returns and lengths of the last episodes."""

    returns: Any
    lengths: Any
    position: Any
    filled: Any


def empty_window() -> CompiledWindow:
    """A window without episodes."""
    nothing = np.int32(0)
    return CompiledWindow(np.zeros(WINDOW, np.float32), np.zeros(WINDOW, np.int32), nothing, nothing)


def record(window: CompiledWindow, finished: Array, returns: Array, lengths: Array) -> CompiledWindow:
    """Adds the episodes that ended in [T, N] timesteps, in order of time."""
    finished = finished.reshape(-1)
    rank = jnp.cumsum(finished, dtype=jnp.int32)
    total = rank[-1]
    # Episodes that do not fit into the window get an index out of bounds, where writes are dropped.
    kept = finished & (rank > total - WINDOW)
    places = jnp.where(kept, (window.position + rank - 1) % WINDOW, WINDOW)
    return CompiledWindow(
        returns=window.returns.at[places].set(returns.reshape(-1), mode="drop"),
        lengths=window.lengths.at[places].set(lengths.reshape(-1), mode="drop"),
        position=(window.position + total) % WINDOW,
        filled=jnp.minimum(window.filled + total, WINDOW),
    )


def mean_return(window: CompiledWindow) -> Array:
    """The mean over the window, NaN if it is empty."""
    return jnp.where(window.filled > 0, window.returns.sum() / window.filled, jnp.nan)


def mean_length(window: CompiledWindow) -> Array:
    """The mean over the window, NaN if it is empty."""
    return jnp.where(window.filled > 0, window.lengths.sum() / window.filled, jnp.nan)


def has_reached(window: CompiledWindow, threshold: Array) -> Array:
    """Whether the window is full and its mean is at least `threshold`."""
    return (window.filled >= WINDOW) & (window.returns.mean() >= threshold)
