"""Matrix products of layers, whose gradients XLA's quickest routines on CPUs can take.

Those want both matrices as they lie in memory. A kernel's gradient is a product with a transposed matrix, which XLA
hands to a slower routine. Where the kernel is narrow that matters: for the [256, 12] of a policy's last layer it took
100 us instead of 17 at a batch of 256. So there the gradient, which is as narrow, is really transposed first.

The gradients are written out, so they can be differentiated again in reverse (`jax.grad` of `jax.grad`), but not
forwards (`jax.jvp`).
"""

from __future__ import annotations

import jax
from jax import Array, lax


def product(x: Array, kernel: Array) -> Array:
    """[..., I] with a kernel [I, O] -> [..., O]."""
    return _product(x, kernel) if jax.default_backend() == "cpu" else x @ kernel


@jax.custom_vjp
def _product(x: Array, kernel: Array) -> Array:
    return x @ kernel


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    return gradient @ kernel.T, _of_kernel(x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1]))


_product.defvjp(_forward, _backward)


def _of_kernel(x: Array, gradient: Array) -> Array:
    """x [B, I] and the gradient [B, O] of the product -> that of the kernel [I, O]."""
    if gradient.shape[-1] >= x.shape[-1]:
        return x.T @ gradient
    # Without the barriers XLA would make one product with a transposed matrix of it again.
    return lax.optimization_barrier(lax.optimization_barrier(gradient.T) @ x).T
