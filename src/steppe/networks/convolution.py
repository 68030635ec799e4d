"""Convolutions: on CPUs as matrix products, elsewhere as XLA's own."""

from __future__ import annotations

from jax import Array, lax


def convolve(x: Array, kernel: Array, strides: tuple[int, ...], padding: str) -> Array:
    """[B, *positions, C] with a kernel [*window, C, size] -> [B, *positions', size]."""
    names = ("NWC", "WIO", "NWC") if kernel.ndim == 3 else ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=names)
