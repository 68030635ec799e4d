"""Convolutions: XLA's own on accelerators, matrix products over small pieces of the batch on CPUs.

On CPUs XLA's convolutions slow down with the batch size, and their gradients become ten to forty times slower inside a
loop, such as every update over minibatches. Matrix products are fast anywhere. A stride that divides its window is
first folded into the channels (space to depth): 8 x 8 windows at every 4th pixel of 4 channels become 2 x 2 windows at
every position of 64 channels.

The gradients are custom, so they can be differentiated again in reverse mode (`jax.grad` of `jax.grad`), but not in
forward mode (`jax.jvp`).
"""

from __future__ import annotations

from functools import partial, reduce
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from steppe.policies.layers import padding_of

CHUNK_BYTES = 2**21
"""The size limit of all windows of one piece of the batch, which must fit into a core's caches."""
FEW_CHANNELS = 16
"""With fewer channels the products of single taps are too thin, so whole windows are multiplied at once."""

Sizes = tuple[int, ...]


class FoldedImages(NamedTuple):
    """Images whose blocks of neighbouring pixels lie in the channels, for a convolution with a stride."""

    blocks: Array
    """[B, *positions / stride, strides * C]"""


def fold_images(x: Array, window: Sizes, strides: Sizes, padding: str) -> FoldedImages:
    """Pads and folds images [B, *positions, C] for `convolve_folded` with the same window, strides and padding.

    A batch that is convolved many times, such as a rollout in every epoch of PPO, needs this only once.
    """
    return FoldedImages(_folded(x, window, strides, padding))


def convolve_folded(images: FoldedImages, kernel: Array, strides: Sizes, padding: str) -> Array:
    """`convolve` of the images before they were folded, to the bit."""
    del padding  # added by fold_images
    folds = _folds(kernel.shape[:-2], strides)
    steps = tuple(stride // fold for stride, fold in zip(strides, folds, strict=True))
    return convolve(images.blocks, _fold_kernel(kernel, strides), steps, "VALID")


def folding_pays(window: Sizes, strides: Sizes) -> bool:
    """Whether images are folded before the convolution on this backend."""
    return jax.default_backend() == "cpu" and prod(_folds(window, strides)) > 1


def convolve(x: Array, kernel: Array, strides: Sizes, padding: str) -> Array:
    """[B, *positions, C] float32 or bytes with a kernel [*window, C, size] -> [B, *stops, size]."""
    if jax.default_backend() == "cpu":
        return _products(x, kernel, strides, padding)
    names = ("NWC", "WIO", "NWC") if kernel.ndim == 3 else ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x.astype(kernel.dtype), kernel, strides, padding, dimension_numbers=names)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _products(x: Array, kernel: Array, strides: Sizes, padding: str) -> Array:
    """The convolution, a piece of the batch at a time."""
    rows = _piece(x, kernel, strides, padding)
    if rows is None:
        return _multiply(x, kernel, strides, padding)
    pieces = x.reshape(-1, rows, *x.shape[1:])
    outputs = lax.map(lambda piece: _multiply(piece, kernel, strides, padding), pieces)
    return outputs.reshape(-1, *outputs.shape[2:])


def _forward(x: Any, kernel: Any, strides: Sizes, padding: str) -> tuple[Array, tuple[Array, Array, tuple[()] | None]]:
    """The output, and the residuals of the gradients; the last one is None unless the input's gradient is needed."""
    output = _products(x.value, kernel.value, strides, padding)
    return output, (x.value, kernel.value, () if x.perturbed else None)


def _backward(
    strides: Sizes, padding: str, saved: tuple[Array, Array, tuple[()] | None], gradient: Array
) -> tuple[Array | None, Array]:
    """The gradients of input and kernel, summed over pieces of the batch."""
    x, kernel, asked = saved

    def both(x: Array, gradient: Array) -> tuple[Array | None, Array]:
        of_kernel = _kernel_gradient(x, kernel, strides, padding, gradient)
        if asked is None:
            return None, of_kernel
        transposed = jax.linear_transpose(lambda x: _multiply(x, kernel, strides, padding), x)
        return transposed(gradient)[0], of_kernel

    rows = _piece(x, kernel, strides, padding)
    if rows is None:
        return both(x, gradient)

    def add(total: Array, piece: tuple[Array, Array]) -> tuple[Array, Array | None]:
        of_input, of_kernel = both(*piece)
        return total + of_kernel, of_input

    pieces = (x.reshape(-1, rows, *x.shape[1:]), gradient.reshape(-1, rows, *gradient.shape[1:]))
    of_kernel, of_input = lax.scan(add, jnp.zeros_like(kernel), pieces)
    return None if of_input is None else of_input.reshape(x.shape), of_kernel


_products.defvjp(_forward, _backward, symbolic_zeros=True)


def _multiply(x: Array, kernel: Array, strides: Sizes, padding: str) -> Array:
    """The convolution of one piece: the sum of one product for each tap of the (folded) kernel."""
    taps, folded = _taps(x, kernel, strides, padding), _fold_kernel(kernel, strides)
    if folded.shape[-2] < FEW_CHANNELS:
        return jnp.concatenate(taps, -1) @ folded.reshape(-1, folded.shape[-1])
    return reduce(jnp.add, (tap @ folded[at] for tap, at in zip(taps, _places(folded), strict=True)))


def _kernel_gradient(x: Array, kernel: Array, strides: Sizes, padding: str, gradient: Array) -> Array:
    """One product of all windows with the gradient of the output; windows as the first factor are twice as fast."""
    windows = jnp.concatenate(_taps(x, kernel, strides, padding), -1)
    axes = tuple(range(gradient.ndim - 1))
    fold = jax.linear_transpose(lambda kernel: _fold_kernel(kernel, strides), kernel)
    folded = jax.eval_shape(lambda kernel: _fold_kernel(kernel, strides), kernel)
    return fold(lax.dot_general(windows, gradient, ((axes, axes), ((), ()))).reshape(folded.shape))[0]


def _taps(x: Array, kernel: Array, strides: Sizes, padding: str) -> list[Array]:
    """The inputs of each tap of the folded kernel: [B, *stops, channels] each."""
    window, stops = kernel.shape[:-2], _stops(x.shape, kernel.shape[:-2], strides, padding)
    folds = _folds(window, strides)
    x = _folded(x.astype(kernel.dtype), window, strides, padding)
    steps = tuple(stride // fold for stride, fold in zip(strides, folds, strict=True))
    taps = []
    for at in product(*(range(size // fold) for size, fold in zip(window, folds, strict=True))):
        ends = (start + (stop - 1) * step + 1 for start, stop, step in zip(at, stops, steps, strict=True))
        taps.append(lax.slice(x, (0, *at, 0), (x.shape[0], *ends, x.shape[-1]), (1, *steps, 1)))
    return taps


def _folded(x: Array, window: Sizes, strides: Sizes, padding: str) -> Array:
    """Images [B, *positions, C] padded or cut to the extent of the windows, and folded."""
    positions, stops = x.shape[1:-1], _stops(x.shape, window, strides, padding)
    needed = ((stop - 1) * stride + size for stop, stride, size in zip(stops, strides, window, strict=True))
    before = (padding_of(*each, padding)[0] for each in zip(positions, window, strides, strict=True))
    sides = ((low, need - size - low, 0) for low, need, size in zip(before, needed, positions, strict=True))
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *sides, (0, 0, 0)))
    return _fold(x, 1, _folds(window, strides))


def _fold_kernel(kernel: Array, strides: Sizes) -> Array:
    """[*window, C, size] -> [*window / fold, fold * C, size], the kernel for folded images."""
    return _fold(kernel, 0, _folds(kernel.shape[:-2], strides))


def _fold(x: Array, first: int, folds: Sizes) -> Array:
    """Blocks of `folds` neighbours along the axes from `first` on, moved into the channels that follow."""
    axes = len(folds)
    sizes = x.shape[first : first + axes]
    blocks = tuple(chain.from_iterable((size // fold, fold) for size, fold in zip(sizes, folds, strict=True)))
    rest = x.shape[first + axes + 1 :]
    x = x.reshape(*x.shape[:first], *blocks, x.shape[first + axes], *rest)
    kept, moved = range(first, first + 2 * axes, 2), range(first + 1, first + 2 * axes, 2)
    x = x.transpose(*range(first), *kept, *moved, *range(first + 2 * axes, x.ndim))
    return x.reshape(*x.shape[: first + axes], -1, *rest)


def _folds(window: Sizes, strides: Sizes) -> Sizes:
    return tuple(stride if size % stride == 0 else 1 for size, stride in zip(window, strides, strict=True))


def _places(kernel: Array) -> list[Sizes]:
    return list(product(*map(range, kernel.shape[:-2])))


def _stops(shape: Sizes, window: Sizes, strides: Sizes, padding: str) -> Sizes:
    """The number of windows along each axis of images of a shape [B, *positions, C]."""
    sizes = zip(shape[1:-1], window, strides, strict=True)
    return tuple(-(-(size if padding == "SAME" else size - window + 1) // stride) for size, window, stride in sizes)


def _piece(x: Array, kernel: Array, strides: Sizes, padding: str) -> int | None:
    """The number of rows of the batch that are processed at a time; None for all at once."""
    stops = prod(_stops(x.shape, kernel.shape[:-2], strides, padding))
    most = max(1, CHUNK_BYTES // (4 * stops * prod(kernel.shape[:-1])))
    batch = x.shape[0]
    if batch <= most:
        return None
    rows = next(rows for rows in range(most, 0, -1) if batch % rows == 0)
    # Pieces far below the limit cost more than they save.
    return rows if 4 * rows >= most else None
