"""A binary tree of sums, which samples in proportion to priority in logarithmic time."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclass(frozen=True)
class SumTree:
    """Node 1 is the root, node i has the children 2i and 2i + 1, the leaves are the last `leaves` nodes."""

    size: int

    @property
    def depth(self) -> int:
        """The number of levels below the root."""
        return max(1, (self.size - 1).bit_length())

    @property
    def leaves(self) -> int:
        """The number of leaves, a power of two."""
        return 1 << self.depth

    def init(self) -> np.ndarray:
        """A tree with all priorities zero: [2 * leaves]."""
        return np.zeros(2 * self.leaves, np.float32)

    def get(self, tree: Array, places: Array) -> Array:
        """The priorities [B] of the places [B]."""
        return tree[places + self.leaves]

    def set(self, tree: Array, places: Array, priorities: Array) -> Array:
        """Sets the priorities [B] of the places [B]; for a repeated place one of the values counts."""
        nodes = places + self.leaves
        tree = tree.at[nodes].set(priorities)

        def up(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            tree, nodes = carry
            nodes = nodes // 2
            return tree.at[nodes].set(tree[2 * nodes] + tree[2 * nodes + 1]), nodes

        tree, _ = jax.lax.fori_loop(0, self.depth, up, (tree, nodes))
        return tree

    def sample(self, tree: Array, key: Array, count: int) -> tuple[Array, Array]:
        """(places [count], probabilities [count]): one draw from each of `count` equal slices of the total."""
        total = tree[1]
        rest = (jnp.arange(count) + jax.random.uniform(key, (count,))) / count * total
        nodes = jnp.ones(count, jnp.int32)

        def down(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            nodes, rest = carry
            left = tree[2 * nodes]
            # A branch of sum zero is never entered, even if rounding has put `rest` on its border.
            goes_right = (rest >= left) & (tree[2 * nodes + 1] > 0)
            return 2 * nodes + goes_right, jnp.where(goes_right, rest - left, rest)

        nodes, _ = jax.lax.fori_loop(0, self.depth, down, (nodes, rest))
        return nodes - self.leaves, tree[nodes] / jnp.maximum(total, 1e-30)
