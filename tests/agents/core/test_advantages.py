"""Generalised advantages, V-trace targets and lambda-returns against explicit sums."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.agents.core.advantages import generalized_advantages, lambda_returns, vtrace

compiled = jax.jit(generalized_advantages)
compiled_vtrace = jax.jit(vtrace)
compiled_returns = jax.jit(lambda_returns)
numbers = st.floats(-10, 10, width=32)
factors = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
# Every length needs a compilation.
shapes = st.sampled_from([1, 2, 5, 12])


def draw(data, timesteps, envs):
    """(rewards, values, next_values, terminated, truncated), each [T, N]."""

    def grid(elements, dtype):
        rows = st.lists(elements, min_size=timesteps * envs, max_size=timesteps * envs)
        return np.array(data.draw(rows), dtype).reshape(timesteps, envs)

    flags = st.sampled_from([0.0, 0.0, 0.0, 1.0])
    return tuple(grid(numbers, np.float32) for _ in range(3)) + tuple(grid(flags, np.float32) for _ in range(2))


def episode_end(terminated, truncated, t, n):
    """The last row of the episode of row t in environment n, or of the array."""
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
    """The discounted rewards of the rest of the episode, plus the value of its last successor, minus the value."""
    advantages = np.zeros(rewards.shape)
    for t, n in np.ndindex(rewards.shape):
        end = episode_end(terminated, truncated, t, n)
        total = 0.0 if terminated[end, n] else float(next_values[end, n])
        for k in range(end, t - 1, -1):
            total = float(rewards[k, n]) + discount * total
        advantages[t, n] = total - float(values[t, n])
    return advantages


@settings(deadline=None, max_examples=80, derandomize=True)
@given(data=st.data(), timesteps=shapes, envs=st.just(3), discount=factors, gae_lambda=factors)
def test_advantages_are_the_sums_of_the_definition(data, timesteps, envs, discount, gae_lambda):
    arrays = draw(data, timesteps, envs)
    expected = by_definition(*arrays, discount, gae_lambda)
    np.testing.assert_allclose(compiled(*arrays, discount, gae_lambda), expected, rtol=1e-4, atol=1e-3)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data(), timesteps=shapes, discount=factors)
def test_lambda_1_gives_monte_carlo_returns_minus_values(data, timesteps, discount):
    _, values, next_values, terminated, truncated = arrays = draw(data, timesteps, 3)
    # The errors of an episode telescope only if the value of each successor is that of the next row.
    next_values[:-1] = np.where(terminated[:-1] + truncated[:-1] > 0, next_values[:-1], values[1:])
    expected = monte_carlo(*arrays, discount)
    np.testing.assert_allclose(compiled(*arrays, discount, 1.0), expected, rtol=1e-4, atol=1e-3)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data(), timesteps=shapes, discount=factors)
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


def followed(arrays):
    """The same arrays, with the next row's value as that of the successor within an episode."""
    rewards, values, next_values, terminated, truncated = arrays
    next_values[:-1] = np.where(terminated[:-1] + truncated[:-1] > 0, next_values[:-1], values[1:])
    return rewards, values, next_values, terminated, truncated


def vtrace_by_definition(arrays, log_ratios, discount, trace_lambda, clip):
    """(v, advantages): the sum in eq. 1 of arXiv:1802.01561, and the advantage of its section 4.2."""
    rewards, values, next_values, terminated, truncated = (array.astype(np.float64) for array in arrays)
    ratios = np.exp(log_ratios.astype(np.float64))
    rho, c = np.minimum(clip, ratios), trace_lambda * np.minimum(1.0, ratios)
    targets, advantages = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for s, n in np.ndindex(rewards.shape):
        targets[s, n] = values[s, n]
        for t in range(s, episode_end(terminated, truncated, s, n) + 1):
            future = 0.0 if terminated[t, n] else discount * next_values[t, n]
            error = rho[t, n] * (rewards[t, n] + future - values[t, n])
            targets[s, n] += discount ** (t - s) * np.prod(c[s:t, n]) * error
    for s, n in np.ndindex(rewards.shape):
        is_last = s == episode_end(terminated, truncated, s, n)
        following = next_values[s, n] if is_last else targets[s + 1, n]
        future = 0.0 if terminated[s, n] else discount * following
        advantages[s, n] = rho[s, n] * (rewards[s, n] + future - values[s, n])
    return targets, advantages


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    data=st.data(),
    timesteps=shapes,
    discount=factors,
    trace_lambda=factors,
    clip=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_vtrace_targets_are_the_sums_of_the_paper(data, timesteps, discount, trace_lambda, clip):
    arrays = followed(draw(data, timesteps, 3))
    seed = data.draw(st.integers(0, 1000))
    log_ratios = np.random.default_rng(seed).normal(0.0, 1.0, (timesteps, 3)).astype(np.float32)
    expected = vtrace_by_definition(arrays, log_ratios, discount, trace_lambda, clip)
    targets, advantages = compiled_vtrace(*arrays, log_ratios, discount, trace_lambda, clip)
    np.testing.assert_allclose(targets, expected[0], rtol=1e-4, atol=2e-3)
    np.testing.assert_allclose(advantages, expected[1], rtol=1e-4, atol=2e-3)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data(), timesteps=shapes, discount=factors)
def test_vtrace_of_the_acting_policy_itself_is_the_n_step_bellman_target(data, timesteps, discount):
    arrays = followed(draw(data, timesteps, 3))
    targets, _ = compiled_vtrace(*arrays, np.zeros((timesteps, 3), np.float32), discount, 1.0, 1.0)
    np.testing.assert_allclose(targets, monte_carlo(*arrays, discount) + arrays[1], rtol=1e-4, atol=2e-3)


def test_actions_that_the_newer_policy_would_not_take_change_nothing():
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 12, 4)).astype(np.float32)
    none = np.zeros((12, 4), np.float32)
    never = np.full((12, 4), -80.0, np.float32)
    targets, advantages = compiled_vtrace(rewards, values, next_values, none, none, never, 0.99, 1.0, 1.0)
    np.testing.assert_allclose(targets, values, atol=1e-6)
    np.testing.assert_allclose(advantages, 0.0, atol=1e-6)


def forward_view(rewards, next_values, terminated, truncated, discount, trace_lambda):
    """(1 - lambda) sum of lambda^(n-1) times the n-step return; the last one has all the remaining weight."""
    returns = np.zeros(rewards.shape)
    for t, env in np.ndindex(rewards.shape):
        end = episode_end(terminated, truncated, t, env)
        collected = 0.0
        for n in range(1, end - t + 2):
            at = t + n - 1
            collected += discount ** (n - 1) * float(rewards[at, env])
            future = 0.0 if terminated[at, env] else discount**n * float(next_values[at, env])
            weight = trace_lambda ** (n - 1) * (1.0 if at == end else 1 - trace_lambda)
            returns[t, env] += weight * (collected + future)
    return returns


@settings(deadline=None, max_examples=60, derandomize=True)
@given(data=st.data(), timesteps=shapes, discount=factors, trace_lambda=factors)
def test_lambda_returns_are_those_of_the_forward_view(data, timesteps, discount, trace_lambda):
    rewards, _, next_values, terminated, truncated = draw(data, timesteps, 3)
    expected = forward_view(rewards, next_values, terminated, truncated, discount, trace_lambda)
    returns = compiled_returns(rewards, next_values, terminated, truncated, discount, trace_lambda)
    np.testing.assert_allclose(returns, expected, rtol=1e-4, atol=1e-3)


def test_lambda_returns_of_several_choices_share_their_rewards():
    rng = np.random.default_rng(0)
    rewards, next_values = rng.normal(size=(5, 3, 1)), rng.normal(size=(5, 3, 2))
    ended = rng.random((2, 5, 3, 1)) < 0.2
    together = compiled_returns(rewards, next_values, *ended.astype(np.float32), 0.9, 0.7)
    for choice in range(2):
        alone = forward_view(rewards[..., 0], next_values[..., choice], *ended[..., 0], 0.9, 0.7)
        np.testing.assert_allclose(together[..., choice], alone, rtol=1e-4, atol=1e-4)
