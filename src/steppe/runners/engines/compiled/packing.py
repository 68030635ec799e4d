"""Many small arrays as one vector of 32-bit words.

Each argument and result of a compiled program costs microseconds in which no other thread can run Python, and each
array carried by a compiled loop is copied by a step of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.runners import keys

LARGEST = 16_384
"""Larger arrays are not packed: copying them would cost more than it saves."""
WORDS = {np.dtype(name) for name in ("float32", "int32", "uint32")}


class ArrayPlacement(NamedTuple):
    """The place of an array in the vector."""

    shape: tuple[int, ...]
    dtype: Any
    start: int
    """The first word, or -1 if the array is not packed."""
    size: int


class ArraySlice(NamedTuple):
    """The place of an array with a name."""

    at: slice
    shape: tuple[int, ...]
    is_float: bool


class PackedDict:
    """Arrays by name in one vector of words [W]; each is sliced when it is asked for, since many are not."""

    __slots__ = ("_cuts", "_floats", "_integers")

    def __init__(self, cuts: dict[str, list[ArraySlice]], words: np.ndarray) -> None:
        self._cuts, self._floats, self._integers = cuts, words.view(np.float32), words.view(np.int32)

    def __getitem__(self, name: str) -> Any:
        """An array, or a tuple of those that were packed together under the name."""
        parts = []
        for at, shape, is_float in self._cuts[name]:
            part = (self._floats if is_float else self._integers)[at]
            parts.append(part if len(shape) == 1 else part.reshape(shape))
        return tuple(parts) if parts[1:] else parts[0]


class Packing:
    """How trees like `example`, whose leaves only need shapes and dtypes, are packed."""

    def __init__(self, example: Any, largest: int | None = LARGEST) -> None:
        leaves, self._tree = jax.tree.flatten(jax.tree.map(_plain_shape, example))
        self._keys = [keys.is_key(leaf) for leaf in jax.tree.leaves(example)]
        self._places: list[ArrayPlacement] = []
        self.words = 0
        for leaf in leaves:
            size = int(np.prod(leaf.shape, dtype=int))
            fits = leaf.dtype in WORDS and (largest is None or size <= largest)
            self._places.append(ArrayPlacement(leaf.shape, leaf.dtype, self.words if fits else -1, size))
            self.words += size if fits else 0
        self._cuts: dict[str, list[ArraySlice]] = {}
        if isinstance(example, dict):
            paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(example)[0]]
            for (key, *_), at in zip(paths, self._places, strict=True):
                cut = ArraySlice(slice(at.start, at.start + at.size), at.shape, at.dtype == np.float32)
                self._cuts.setdefault(key.key, []).append(cut)

    def pack(self, tree: Any) -> tuple[Array, ...]:
        """(words [W], arrays that are not packed...), inside a compiled program."""
        leaves = [
            jax.random.key_data(leaf) if keys.is_key(leaf) else jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)
        ]
        pairs = list(zip(leaves, self._places, strict=True))
        words = [jax.lax.bitcast_convert_type(leaf, jnp.uint32).reshape(-1) for leaf, at in pairs if at.start >= 0]
        packed = jnp.concatenate(words) if words else jnp.zeros(0, jnp.uint32)
        return packed, *(leaf for leaf, at in pairs if at.start < 0)

    def unpack(self, packed: tuple[Any, ...]) -> Any:
        """The inverse of `pack`, inside a compiled program."""
        words, *alone = packed
        rest = iter(alone)
        leaves = []
        for at, is_key in zip(self._places, self._keys, strict=True):
            if at.start < 0:
                leaf = next(rest)
            else:
                part = words[at.start : at.start + at.size].reshape(at.shape)
                leaf = jax.lax.bitcast_convert_type(part, at.dtype)
            leaves.append(keys.wrap(leaf) if is_key else leaf)
        return jax.tree.unflatten(self._tree, leaves)

    def named(self, words: np.ndarray) -> PackedDict:
        """The dict as NumPy views of words [W]; every array must be among them, and none of unsigned numbers."""
        return PackedDict(self._cuts, words)

    def views(self, words: np.ndarray) -> Any:
        """The tree as NumPy views of words [W]; every array must be among them."""
        seen = {dtype: words.view(dtype) for dtype in WORDS}
        leaves = []
        for shape, dtype, start, size in self._places:
            leaf = seen[dtype][start : start + size]
            leaves.append(leaf if len(shape) == 1 else leaf.reshape(shape))
        return jax.tree.unflatten(self._tree, leaves)


def _plain_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    if keys.is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(np.shape(leaf), np.dtype(leaf.dtype))
