"""Large batches in pieces whose activations fit into a core's cache: a quarter faster on CPUs than all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

CHUNK = 1024
"""How many samples are worked on at once."""


def mean_over_chunks(function: Callable[[Any, Array], Any], batch: Any) -> Any:
    """The mean of function(chunk, its index) over the chunks of a batch, whose leaves are [B, ...].

    `function` must itself be a mean over samples; then this is what it gives for the whole batch.
    """
    chunks = _chunks(batch)
    if chunks is None:
        return function(batch, jnp.int32(0))
    count = jax.tree.leaves(chunks)[0].shape[0]
    first = jax.tree.map(lambda leaf: leaf[0], chunks)
    shapes = jax.eval_shape(function, first, jnp.int32(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(total: Any, at: tuple[Any, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*at)), None

    total, _ = jax.lax.scan(add, zeros, (chunks, jnp.arange(count)))
    return jax.tree.map(lambda leaf: leaf / count, total)


def map_chunks(function: Callable[[Any], Array], values: Any) -> Array:
    """function(values) for values whose leaves are [B, ...], chunk by chunk."""
    chunks = _chunks(values)
    if chunks is None:
        return function(values)
    results = jax.lax.map(function, chunks)
    return results.reshape(-1, *results.shape[2:])


def _chunks(tree: Any) -> Any:
    """Leaves [B, ...] as [chunks, CHUNK, ...]; None where that does not pay: accelerators want it all at once."""
    samples = jax.tree.leaves(tree)[0].shape[0]
    if samples < 2 * CHUNK or samples % CHUNK or jax.default_backend() != "cpu":
        return None
    return jax.tree.map(lambda leaf: leaf.reshape(-1, CHUNK, *leaf.shape[1:]), tree)
