"""Conjugate gradients and natural steps against dense linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from steppe.agents.core.wrapped_steps import conjugate_gradient, fisher_product, natural_step


def positive_matrix(seed, size, smallest=0.3):
    """A symmetric matrix with eigenvalues between `smallest` and 3."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return (basis * rng.uniform(smallest, 3.0, size)) @ basis.T


@jax.jit
def solved(matrix, target):
    return conjugate_gradient(lambda vector: matrix @ vector, target, 2 * target.shape[0])


@settings(deadline=None, max_examples=25, derandomize=True)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 2, 7]))
def test_conjugate_gradients_solve_the_linear_system(seed, size):
    matrix, target = positive_matrix(seed, size), np.random.default_rng(seed + 1).normal(size=size)
    found = solved(matrix.astype(np.float32), target.astype(np.float32))
    np.testing.assert_allclose(found, np.linalg.solve(matrix, target), rtol=1e-3, atol=1e-4)


def test_the_first_iteration_is_steepest_descent_with_an_exact_line_search():
    matrix, target = positive_matrix(0, 4).astype(np.float32), np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    found = conjugate_gradient(lambda vector: matrix @ vector, jnp.asarray(target), 1)
    np.testing.assert_allclose(found, (target @ target) / (target @ matrix @ target) * target, rtol=1e-5)


def test_iterations_after_the_solution_change_nothing():
    matrix, target = np.diag([1.0, 2.0]).astype(np.float32), np.array([1.0, 1.0], np.float32)
    for iterations in (2, 10, 100):
        found = conjugate_gradient(lambda vector: matrix @ vector, jnp.asarray(target), iterations)
        np.testing.assert_allclose(found, [1.0, 0.5], rtol=1e-5)
    np.testing.assert_array_equal(conjugate_gradient(lambda vector: vector, jnp.zeros(3), 5), 0.0)


def test_a_natural_step_goes_where_the_dense_inverse_says_and_as_far_as_asked():
    fisher, gradient = positive_matrix(3, 6), np.random.default_rng(4).normal(size=6)
    step = natural_step(
        jnp.asarray(gradient, jnp.float32), lambda v: jnp.asarray(fisher, jnp.float32) @ v, 0.02, 30, damping=0.0
    )
    direction = np.linalg.solve(fisher, gradient)
    expected = np.sqrt(2 * 0.02 / (direction @ fisher @ direction)) * direction
    np.testing.assert_allclose(step, expected, rtol=1e-3)
    assert 0.5 * step @ fisher @ step == pytest.approx(0.02, rel=1e-3)


def test_damping_is_added_to_the_diagonal():
    fisher, gradient = positive_matrix(3, 6), np.random.default_rng(4).normal(size=6)
    damped = fisher + 0.7 * np.eye(6)
    step = natural_step(
        jnp.asarray(gradient, jnp.float32), lambda v: jnp.asarray(fisher, jnp.float32) @ v, 0.02, 30, damping=0.7
    )
    direction = np.linalg.solve(damped, gradient)
    np.testing.assert_allclose(step, np.sqrt(2 * 0.02 / (direction @ damped @ direction)) * direction, rtol=1e-3)
    # The policy then changes by less than the requested divergence, never by more.
    assert 0.5 * step @ fisher @ step < 0.02


def test_without_a_gradient_there_is_no_step():
    step = natural_step(jnp.zeros(4), lambda vector: 2.0 * vector, 0.01, 10, 0.1)
    np.testing.assert_array_equal(step, 0.0)


def test_the_fisher_matrix_of_a_softmax_is_that_of_the_textbook():
    logits = np.array([0.3, -1.0, 0.8, 0.0], np.float32)
    old = jax.nn.log_softmax(logits)

    def divergence(new):
        return (jnp.exp(old) * (old - jax.nn.log_softmax(new))).sum()

    product = fisher_product(divergence, jnp.asarray(logits))
    rows = np.stack([product(row) for row in jnp.eye(4)])
    p = special.softmax(logits.astype(np.float64))
    np.testing.assert_allclose(rows, np.diag(p) - np.outer(p, p), atol=1e-6)
