"""Products against plain ones: values, gradients and second derivatives, whichever matrix is the narrower."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.networks.products import product

SIZES = st.integers(1, 9)


@settings(max_examples=30, deadline=None)
@given(lead=st.lists(st.integers(1, 4), min_size=1, max_size=2), inputs=SIZES, outputs=SIZES, seed=st.integers(0, 99))
def test_gradients_are_those_of_the_plain_product(lead, inputs, outputs, seed):
    rng = np.random.default_rng(seed)
    x, kernel, weights = (rng.normal(size=shape) for shape in ((*lead, inputs), (inputs, outputs), (*lead, outputs)))
    ours = jax.grad(lambda x, kernel: (weights * product(x, kernel)).sum(), argnums=(0, 1))(x, kernel)
    flat = x.reshape(-1, inputs), weights.reshape(-1, outputs)
    np.testing.assert_allclose(product(x, kernel), x @ kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours[0], weights @ kernel.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours[1], flat[0].T @ flat[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", [2, 5, 7])
def test_second_derivatives_are_those_of_the_plain_product(outputs):
    rng = np.random.default_rng(1)
    x, kernel, vector = (rng.normal(size=shape) for shape in ((6, 5), (5, outputs), (5, outputs)))

    def curvature(multiply):
        loss = lambda kernel: jnp.tanh(multiply(x, kernel)).sum()  # noqa: E731
        return jax.grad(lambda kernel: jnp.vdot(jax.grad(loss)(kernel), vector))(kernel)

    np.testing.assert_allclose(curvature(product), curvature(jnp.matmul), rtol=1e-4, atol=1e-6)


def test_each_row_of_a_batch_can_have_a_kernel_of_its_own():
    rng = np.random.default_rng(2)
    x, kernels = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 5, 2))
    gradients = jax.vmap(jax.grad(lambda kernel, x: product(x, kernel).sum()))(kernels, x)
    np.testing.assert_allclose(gradients, np.repeat(x.sum(1)[:, :, None], 2, axis=2), rtol=1e-5)
