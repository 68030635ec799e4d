"""Small functions compiled as one kernel give the same numbers, and are one kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.agents.core.kernels import has_small_products, in_one_kernel, unfit_operation


def sums_and_steps(x):
    def step(total, row):
        total = jnp.tanh(total + row)
        return total, (total, total.sum())

    return jax.lax.scan(step, jnp.zeros(x.shape[1:]), x)


def test_the_numbers_are_the_same():
    x = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    one, many = jax.jit(in_one_kernel(sums_and_steps))(x), jax.jit(sums_and_steps)(x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, many)


def test_it_is_one_kernel():
    text = jax.jit(lambda x: jnp.exp(in_one_kernel(sums_and_steps)(x)[0])).lower(np.zeros((20, 5))).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert "xla_cpu_small_call" in entry
    assert " while(" not in entry


def test_it_can_be_differentiated_and_mapped():
    x = np.random.default_rng(0).normal(size=(6, 4, 5)).astype(np.float32)
    loss = lambda function: jax.jit(jax.vmap(jax.grad(lambda x: function(x)[1][1].sum())))(x)  # noqa: E731
    np.testing.assert_allclose(loss(in_one_kernel(sums_and_steps)), loss(sums_and_steps), rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (sums_and_steps, None),
        (jnp.sort, "sort"),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda: jnp.sort(x), lambda: x), "sort"),
        (lambda x: jax.lax.scan(lambda total, row: (total.at[0].add(row[0]), None), x[0], x)[0], "scatter-add"),
        (lambda x: jax.pure_callback(lambda x: x, x, x), "pure_callback"),
        (jax.jit(lambda x: jax.vmap(lambda row: jax.lax.top_k(row, 2)[0])(x)), "top_k"),
    ],
)
def test_what_does_not_fit_is_found(function, name):
    assert unfit_operation(function, np.zeros((20, 5), np.float32)) == name


@pytest.mark.parametrize(
    ("shapes", "rows", "fits"),
    [
        ([(4, 64), (64,), (64, 64), (64, 2), ()], 8, True),
        ([(4, 64), (64, 64)], 17, False),
        ([(4, 65)], 8, False),
        ([(3, 3, 1, 8)], 8, False),
        ([], 8, True),
    ],
)
def test_which_products_are_small(shapes, rows, fits):
    assert has_small_products(shapes, rows) == fits
