"""Parameters as one vector: fast to optimise, to shard over servers and to write into from many threads.

A network's parameters are a nested dict of many small arrays. An optimiser that walks over them costs more than the
gradient itself for small networks, so Steppe keeps one vector and slices it into named arrays where they are used (the
compiler turns the slices into plain reads).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents.core.kernels import in_one_kernel

SMALL = 16_384
"""Vectors of up to this size are sliced by one kernel, although it also copies pieces that are not needed."""


class Layout:
    """The places of named arrays in the vector."""

    def __init__(self, example: dict[str, Any]) -> None:
        """`example` is a nested dict of arrays, of which only the shapes count."""
        paths, self._tree = jax.tree_util.tree_flatten_with_path(example)
        self.names = ["/".join(str(part.key) for part in path) for path, _ in paths]
        self.shapes = [leaf.shape for _, leaf in paths]
        sizes = [int(np.prod(shape, dtype=int)) for shape in self.shapes]
        self._ends = np.cumsum([0, *sizes]).tolist()
        self._cut = self._differentiable_cut()

    @property
    def size(self) -> int:
        """How many numbers the vector holds."""
        return self._ends[-1]

    def sizes(self) -> dict[str, int]:
        """How many numbers each named array holds."""
        return {name: end - start for name, start, end in zip(self.names, self._ends, self._ends[1:], strict=False)}

    def start_of(self, part: str) -> int:
        """The start of the first array of a part."""
        return next(start for start, name in zip(self._ends, self.names, strict=False) if name.startswith(f"{part}/"))

    def join(self, tree: dict[str, Any]) -> np.ndarray:
        """Nested dict of NumPy arrays -> vector [P]."""
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    def joined(self, tree: dict[str, Any]) -> Array:
        """The same inside a compiled program."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    def split(self, vector: Any) -> dict[str, Any]:
        """Vector [P] -> nested dict; a dict is returned as it is."""
        if isinstance(vector, dict):
            return vector
        return jax.tree.unflatten(self._tree, self._cut(vector))

    def named(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Vector [P] -> flat dict of "a/b/kernel" names; NumPy vectors are not copied."""
        return dict(zip(self.names, self._pieces(vector), strict=True))

    def _differentiable_cut(self) -> Callable[[Array], list[Any]]:
        """`_pieces` with a custom gradient, which concatenates the gradients of the pieces.

        JAX's own would pad the gradient of each piece to full length and add them all up.
        """

        @jax.custom_vjp
        def cut(vector: Array) -> list[Any]:
            return pieces(vector)

        def forward(vector: Array) -> tuple[list[Any], None]:
            return pieces(vector), None

        def pieces(vector: Array) -> list[Any]:
            if self.size > SMALL or not isinstance(vector, jax.core.Tracer):
                return self._pieces(vector)
            # With the barrier every place that slices the vector uses all pieces, so that the compiler recognises
            # computations that several places have in common.
            return jax.lax.optimization_barrier(in_one_kernel(self._pieces)(vector))

        def backward(_: None, gradients: list[Array]) -> tuple[Array]:
            return (jnp.concatenate([jnp.ravel(gradient) for gradient in gradients]),)

        cut.defvjp(forward, backward)
        return cut

    def _pieces(self, vector: Any) -> list[Any]:
        return [
            vector[start:end].reshape(shape)
            for start, end, shape in zip(self._ends, self._ends[1:], self.shapes, strict=False)
        ]
