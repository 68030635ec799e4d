"""Generalised advantages against sums written out by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.agents.advantages import generalized_advantages

compiled = jax.jit(generalized_advantages)
numbers = st.floats(-10, 10, width=32)
factors = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


def draw(data, timesteps, envs):
    """(rewards, values, next_values, terminated, truncated), each [T, N]."""

    def grid(elements, dtype):
        rows = st.lists(elements, min_size=timesteps * envs, max_size=timesteps * envs)
        return np.array(data.draw(rows), dtype).reshape(timesteps, envs)

    flags = st.sampled_from([0.0, 0.0, 0.0, 1.0])
    return tuple(grid(numbers, np.float32) for _ in range(3)) + tuple(grid(flags, np.float32) for _ in range(2))


def episode_end(terminated, truncated, t, n):
    """The last row of the episode that row t of environment n belongs to, or of the array."""
    while t < len(terminated) - 1 and not (terminated[t, n] or truncated[t, n]):
        t += 1
    return t


def by_definition(rewards, values, next_values, terminated, truncated, discount, gae_lambda):
    """A_t = sum over k of (discount lambda)^k delta_{t+k}, to the end of the episode or of the array."""
    advantages = np.zeros(rewards.shape)
    for t, n in np.ndindex(rewards.shape):
        for k in range(episode_end(terminated, truncated, t, n) - t + 1):
            future = 0.0 if terminated[t + k, n] else discount * float(next_values[t + k, n])
            error = float(rewards[t + k, n]) + future - float(values[t + k, n])
            advantages[t, n] += (discount * gae_lambda) ** k * error
    return advantages


def monte_carlo(rewards, values, next_values, terminated, truncated, discount):
    """The discounted rewards of the rest of the episode, plus the value of what comes after it, minus the value."""
    advantages = np.zeros(rewards.shape)
    for t, n in np.ndindex(rewards.shape):
        end = episode_end(terminated, truncated, t, n)
        total = 0.0 if terminated[end, n] else float(next_values[end, n])
        for k in range(end, t - 1, -1):
            total = float(rewards[k, n]) + discount * total
        advantages[t, n] = total - float(values[t, n])
    return advantages


@settings(deadline=None, max_examples=80, derandomize=True)
@given(data=st.data(), timesteps=st.integers(1, 12), envs=st.integers(1, 4), discount=factors, gae_lambda=factors)
def test_advantages_are_the_sums_of_the_definition(data, timesteps, envs, discount, gae_lambda):
    arrays = draw(data, timesteps, envs)
    expected = by_definition(*arrays, discount, gae_lambda)
    np.testing.assert_allclose(compiled(*arrays, discount, gae_lambda), expected, rtol=1e-4, atol=1e-3)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data(), timesteps=st.sampled_from([1, 5, 12]), discount=factors)
def test_lambda_1_gives_monte_carlo_returns_minus_values(data, timesteps, discount):
    _, values, next_values, terminated, truncated = arrays = draw(data, timesteps, 3)
    # Only where the value of a successor is the value of the next row do the errors of an episode telescope.
    next_values[:-1] = np.where(terminated[:-1] + truncated[:-1] > 0, next_values[:-1], values[1:])
    expected = monte_carlo(*arrays, discount)
    np.testing.assert_allclose(compiled(*arrays, discount, 1.0), expected, rtol=1e-4, atol=1e-3)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data(), timesteps=st.sampled_from([1, 5, 12]), discount=factors)
def test_lambda_0_gives_one_step_errors(data, timesteps, discount):
    rewards, values, next_values, terminated, _ = arrays = draw(data, timesteps, 3)
    expected = rewards + np.where(terminated == 1, 0.0, discount * next_values) - values
    np.testing.assert_allclose(compiled(*arrays, discount, 0.0), expected, rtol=1e-5, atol=1e-5)


def test_a_truncated_episode_counts_what_would_have_followed_and_a_terminated_one_does_not():
    one, flag = np.ones((1, 1), np.float32), np.ones((1, 1), np.float32)
    none = np.zeros((1, 1), np.float32)
    value, next_value = 2 * one, 10 * one
    assert compiled(one, value, next_value, flag, none, 0.5, 0.9).item() == pytest.approx(1 - 2)
    assert compiled(one, value, next_value, none, flag, 0.5, 0.9).item() == pytest.approx(1 + 5 - 2)
    assert compiled(one, value, next_value, flag, flag, 0.5, 0.9).item() == pytest.approx(1 - 2)


@pytest.mark.parametrize("border", ["terminated", "truncated"])
def test_nothing_flows_back_across_the_border_of_an_episode(border):
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 12, 4)).astype(np.float32)
    flags = {name: np.zeros((12, 4), np.float32) for name in ("terminated", "truncated")}
    flags[border][5] = 1.0
    before = compiled(rewards, values, next_values, **flags, discount=0.99, gae_lambda=0.95)
    for array in (rewards, values, next_values):
        array[6:] += 100.0
    after = compiled(rewards, values, next_values, **flags, discount=0.99, gae_lambda=0.95)
    np.testing.assert_array_equal(before[:6], after[:6])
    assert np.all(before[6:] != after[6:])


def test_environments_do_not_see_each_other():
    rng = np.random.default_rng(1)
    rewards, values, next_values = rng.normal(size=(3, 12, 4)).astype(np.float32)
    none = np.zeros((12, 4), np.float32)
    before = compiled(rewards, values, next_values, none, none, 0.99, 0.95)
    rewards[:, 2] += 1.0
    after = compiled(rewards, values, next_values, none, none, 0.99, 0.95)
    np.testing.assert_array_equal(before[:, [0, 1, 3]], after[:, [0, 1, 3]])
