"""How work is cut for CPUs: many small steps as one kernel, large batches in pieces that fit into a core's cache.

XLA on CPUs runs a program as a list of kernels, and a loop as a list that it goes through in every step. If each
computes on a few dozen numbers, the calls take longer than the computation: 32 timesteps of eight CartPoles took 180
us, of which the environments and the network need 50. And if more than eight kernels are ready, XLA wakes another
thread for some of them, which costs more than they do, most of all if many threads compute at once.

A kernel cannot call a library's matrix product; it has loops instead. These are as fast for small matrices and up to
fifty times slower for others (`has_small_products`). A product that XLA has already assigned to a library cannot be in
a kernel (`PLAIN_PRODUCTS` of compat/jax_private.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, jit
from jax.experimental.xla_metadata import set_xla_metadata

CHUNK = 1024
"""The samples of one piece of a large batch; pieces are a quarter faster than the whole batch."""
MOST_ROWS = 16
WIDEST = 64
"""With more rows or wider layers the products dominate, and a library computes them faster."""
ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}
"""The attributes that XLA itself gives to short loops that it compiles as one kernel."""
UNFIT = {
    "sort",
    "top_k",
    "approx_top_k",
    "fft",
    "ffi_call",
    "conv_general_dilated",
    "cholesky",
    "lu",
    "qr",
    "svd",
    "eig",
    "eigh",
}
"""Operations that a kernel cannot contain; nor can it contain scatters and callbacks."""


def in_one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one kernel, to be called inside a compiled program."""
    if jax.default_backend() != "cpu":
        return function
    compiled = jit(function)
    return lambda *arguments: set_xla_metadata(compiled(*arguments), **ONE_KERNEL)


def unfit_operation(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The first operation of a function that a kernel cannot contain; None if there is none."""
    return _first_unfit(jax.make_jaxpr(function)(*arguments).jaxpr)


def _first_unfit(jaxpr: Any) -> str | None:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in UNFIT or name.startswith("scatter") or name.endswith("callback"):
            return name
        inner = [
            getattr(value, "jaxpr", value)
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
        ]
        found = [_first_unfit(each) for each in inner if hasattr(each, "eqns")]
        if any(found):
            return next(name for name in found if name)
    return None


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def has_small_products(shapes: Iterable[tuple[int, ...]], rows: int) -> bool:
    """Whether layers with parameters of these shapes can multiply this many rows without a library."""
    return rows <= MOST_ROWS and all(len(shape) <= 2 and max(shape, default=1) <= WIDEST for shape in shapes)


def mean_over_chunks(function: Callable[[Any, Array], Any], batch: Any) -> Any:
    """The mean of function(chunk, index) over the chunks of a batch, whose leaves are [B, ...].

    `function` must be a mean over samples; the result is then its value for the whole batch.
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
    """Leaves [B, ...] as [chunks, CHUNK, ...]; None if that saves nothing, as on accelerators."""
    samples = jax.tree.leaves(tree)[0].shape[0]
    if samples < 2 * CHUNK or samples % CHUNK or jax.default_backend() != "cpu":
        return None
    return jax.tree.map(lambda leaf: leaf.reshape(-1, CHUNK, *leaf.shape[1:]), tree)
