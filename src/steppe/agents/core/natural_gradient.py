"""Steps measured by how much they change the policy, not its parameters (Kakade 2001; Schulman et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

Product = Callable[[Array], Array]


def natural_step(gradient: Array, fisher_product: Product, max_kl: float, iterations: int, damping: float) -> Array:
    """The step [P] down a gradient [P] whose divergence is max_kl, to second order.

    `fisher_product` multiplies a vector [P] by the Fisher information matrix.
    """

    def product(vector: Array) -> Array:
        return fisher_product(vector) + damping * vector

    direction = conjugate_gradient(product, gradient, iterations)
    curvature = jnp.vdot(direction, product(direction))
    length = jnp.sqrt(2.0 * max_kl / jnp.maximum(curvature, 1e-12))
    return jnp.where(curvature > 0, length, 0.0) * direction


def fisher_product(divergence: Callable[[Array], Array], params: Array) -> Product:
    """Multiplication by the second derivative of a divergence, which at `params` is zero and smallest."""
    gradient = jax.grad(divergence)

    def product(vector: Array) -> Array:
        # Backwards twice, since convolutions can be differentiated backwards only.
        return jax.grad(lambda at: jnp.vdot(gradient(at), vector))(params)

    return product


def conjugate_gradient(product: Product, target: Array, iterations: int, tolerance: float = 1e-10) -> Array:
    """x with product(x) = target, for a symmetric positive matrix (Hestenes and Stiefel 1952)."""

    def iteration(_: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, residual, direction, size = carry
        is_going = size > tolerance
        image = product(direction)
        step = jnp.where(is_going, size / jnp.maximum(jnp.vdot(direction, image), 1e-20), 0.0)
        x, residual = x + step * direction, residual - step * image
        new_size = jnp.vdot(residual, residual)
        direction = residual + jnp.where(is_going, new_size / jnp.maximum(size, 1e-20), 0.0) * direction
        return x, residual, direction, jnp.where(is_going, new_size, size)

    start = (jnp.zeros_like(target), target, target, jnp.vdot(target, target))
    return jax.lax.fori_loop(0, iterations, iteration, start)[0]
