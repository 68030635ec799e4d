"""Optimisers against their equations in NumPy."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from steppe.agents.optimizers import make_optimizer
from steppe.errors import UserError

PARAMS = np.array([0.5, -1.0, 2.0], np.float32)
GRADIENTS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


def run(optimizer, gradients=GRADIENTS, params=PARAMS):
    """The parameters after each gradient [steps, P]."""

    def step(carry, gradient):
        params, state = carry
        change, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, change)
        return (params, state), params

    return np.asarray(jax.lax.scan(step, (jax.numpy.asarray(params), optimizer.init(params)), gradients)[1])


def shortened(gradient, longest):
    length = np.linalg.norm(gradient)
    return gradient * (longest / length) if length > longest else gradient


def adam(gradients, rate_at, longest=np.inf):
    """Kingma & Ba 2015, algorithm 1, with epsilon 1e-5."""
    params, first, second, path = PARAMS.astype(np.float64), 0.0, 0.0, []
    for t, gradient in enumerate(gradients.astype(np.float64), start=1):
        gradient = shortened(gradient, longest)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        step = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-5)
        params = params - rate_at(t - 1) * step
        path.append(params)
    return np.array(path)


def test_adam_follows_its_equations():
    path = run(make_optimizer("adam", 0.01, None, "none", None))
    np.testing.assert_allclose(path, adam(GRADIENTS, lambda t: 0.01), rtol=1e-5, atol=1e-6)


def test_adam_sees_gradients_shortened_by_their_norm():
    path = run(make_optimizer("adam", 0.01, 0.5, "none", None), 10 * GRADIENTS)
    np.testing.assert_allclose(path, adam(10 * GRADIENTS, lambda t: 0.01, longest=0.5), rtol=1e-5, atol=1e-6)


def test_rmsprop_follows_its_equations():
    params, square, expected = PARAMS.astype(np.float64), 0.0, []
    for gradient in GRADIENTS.astype(np.float64):
        square = 0.99 * square + 0.01 * gradient**2
        params = params - 0.01 * gradient / np.sqrt(square + 1e-5)
        expected.append(params)
    np.testing.assert_allclose(run(make_optimizer("rmsprop", 0.01, None, "none", None)), expected, rtol=1e-4)


def test_gradient_descent_follows_its_equation():
    path = run(make_optimizer("gradient_descent", 0.1, None, "none", None))
    np.testing.assert_allclose(path, PARAMS - 0.1 * np.cumsum(GRADIENTS, 0), rtol=1e-4, atol=1e-5)


def test_only_gradients_longer_than_the_limit_are_shortened():
    long, short = np.array([3.0, 4.0, 0.0], np.float32), np.array([0.3, 0.0, 0.0], np.float32)
    path = run(make_optimizer("gradient_descent", 1.0, 0.5, "none", None), np.stack([long, short]))
    np.testing.assert_allclose(path[0], PARAMS - long / 10, rtol=1e-5)
    np.testing.assert_allclose(path[1], path[0] - short, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "gradient_descent"])
def test_linear_decay_reaches_zero_at_the_last_update_and_stays_there(name):
    path = run(make_optimizer(name, 0.1, None, "linear", 8), np.ones((12, 3), np.float32))
    assert np.all(path[7] != path[6])
    np.testing.assert_array_equal(path[8:], np.broadcast_to(path[7], (4, 3)))


def test_linear_decay_falls_evenly():
    path = run(make_optimizer("gradient_descent", 0.1, None, "linear", 10), np.ones((10, 3), np.float32))
    steps = -np.diff(np.vstack([PARAMS, path]), axis=0)[:, 0]
    np.testing.assert_allclose(steps, 0.1 * (1 - np.arange(10) / 10), rtol=1e-4, atol=1e-6)


def test_adam_with_linear_decay_follows_its_equations():
    path = run(make_optimizer("adam", 0.01, None, "linear", 20))
    np.testing.assert_allclose(path, adam(GRADIENTS, lambda t: 0.01 * (1 - t / 20)), rtol=1e-5, atol=1e-6)


def test_linear_decay_without_an_end_is_refused():
    sentence = '^learning_rate_decay "linear" needs total_timesteps, to know when it reaches zero$'
    with pytest.raises(UserError, match=sentence):
        make_optimizer("adam", 0.01, None, "linear", None)
