"""Random keys whose numbers are drawn in one pass.

The numbers are those of `jax.random.key`, bit for bit (Threefry-2x32 with 20 rounds, Salmon et al. 2011). On CPUs XLA
draws those in a loop of many small steps. That costs a rollout of few environments more than its matrix products, and
0.7 s of compilation at every use; without the loop it runs and compiles faster.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import define_prng_impl

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def make(seed: int) -> Array:
    """The key of a seed."""
    return wrap(jax.random.key_data(jax.random.key(seed)))


def wrap(words: Any) -> Array:
    """The key of words [..., 2] that `jax.random.key_data` has returned."""
    return jax.random.wrap_key_data(jnp.asarray(words), impl=WRITTEN_OUT)


def is_key(leaf: Any) -> bool:
    """Whether an array holds keys."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """The hash of counters (high, low), of one shape, under a key [2].

    Written in `lax`: every operator of `jnp` is a small traced function of its own, and there are a hundred of them.
    """
    words = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    schedule = [word if high.ndim == 0 else lax.broadcast(word, high.shape) for word in words]
    high, low = lax.add(high, schedule[0]), lax.add(low, schedule[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            high = lax.add(high, low)
            left = lax.shift_left(low, np.uint32(distance))
            right = lax.shift_right_logical(low, np.uint32(32 - distance))
            low = lax.bitwise_xor(high, lax.bitwise_or(left, right))
        high = lax.add(high, schedule[(group + 1) % 3])
        low = lax.add(lax.add(low, schedule[(group + 2) % 3]), np.uint32(group + 1))
    return high, low


def _counted(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    size = math.prod(shape)
    assert size < 2**32, "more numbers than one key can draw here"
    low = lax.iota(jnp.uint32, size).reshape(shape)
    return _threefry(key, jnp.zeros_like(low), low)


def _seed(seed: Array) -> Array:
    return jax.random.key_data(jax.random.key(seed))


@partial(jax.jit, static_argnums=1, inline=True)
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _once(jnp.stack(_counted(key, shape), axis=-1))


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    high, low = _counted(key, shape)
    if width == 64:
        return _once((high.astype(jnp.uint64) << np.uint64(32)) | low)
    return _once((high ^ low).astype(jnp.dtype(f"uint{width}")))


@partial(jax.jit, inline=True)
def _fold_in(key: Array, number: Any) -> Array:
    low = jnp.asarray(number).astype(jnp.uint32)
    return _once(jnp.stack(_threefry(key, jnp.zeros_like(low), low)))


def _once(drawn: Array) -> Array:
    """Keeps the compiler from computing the hash again in every place that uses it."""
    return lax.optimization_barrier(drawn)


WRITTEN_OUT = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_bits, fold_in=_fold_in, name="threefry", tag="stp"
)
