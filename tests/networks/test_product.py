"""Products with gradients of their own are equal to plain ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.networks.product import multiply


@pytest.mark.parametrize("lead", [(7,), (3, 5), ()])
@pytest.mark.parametrize("kernel", [(40, 6), (40, 1), (4, 6), (64, 64)])
def test_value_and_gradients_are_those_of_the_plain_product(lead: tuple[int, ...], kernel: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((*lead, kernel[0])), rng.standard_normal(kernel)
    direction = rng.standard_normal((*lead, kernel[1]))

    value, pull = jax.vjp(multiply, jnp.float32(x), jnp.float32(weights))
    of_x, of_kernel = pull(jnp.float32(direction))

    np.testing.assert_allclose(value, x @ weights, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_x, direction @ weights.T, rtol=1e-4, atol=1e-4)
    expected = np.einsum("bi,bo->io", x.reshape(-1, kernel[0]), direction.reshape(-1, kernel[1]))
    np.testing.assert_allclose(of_kernel, expected, rtol=1e-4, atol=1e-4)


def test_it_can_be_differentiated_twice_as_natural_gradients_need() -> None:
    rng = np.random.default_rng(0)
    x, kernel = jnp.float32(rng.standard_normal((8, 40))), jnp.float32(rng.standard_normal((40, 6)))

    def curvature(product):  # type: ignore[no-untyped-def]
        gradient = jax.grad(lambda kernel: jnp.tanh(product(x, kernel)).sum())
        return jax.grad(lambda at: jnp.vdot(gradient(at), kernel))(kernel)

    np.testing.assert_allclose(curvature(multiply), curvature(jnp.matmul), rtol=1e-3, atol=1e-4)
