"""Agents that do not learn."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from steppe.errors import SpecError
from steppe.specs.spaces import Box, Discrete, MultiDiscrete


def drawn(agent, count=12_000):
    """Actions as the environment takes them."""
    noise = agent.draw_noise(jax.random.key(0), (count,))
    observations = np.zeros((count, 3), np.float32)
    actions, _, _ = agent.act(agent.actor_params(agent.init(jax.random.key(0))), observations, noise, 0, {})
    return np.asarray(agent.to_environment(actions))


def test_random_discrete_actions_are_equally_likely(make_agent):
    actions = drawn(make_agent("random", Discrete(5, start=3)))
    assert stats.chisquare(np.bincount(actions, minlength=8)[3:]).pvalue > 0.01


def test_random_choices_are_equally_likely_and_independent(make_agent):
    actions = drawn(make_agent("random", MultiDiscrete((2, 5, 3))))
    counts = np.bincount(np.ravel_multi_index(actions.T, (2, 5, 3)), minlength=30)
    assert stats.chisquare(counts).pvalue > 0.01


def test_random_continuous_actions_fill_their_bounds_evenly(make_agent):
    actions = drawn(make_agent("random", Box((2,), (-1.0, 10.0), (3.0, 10.5))))
    assert stats.kstest(actions[:, 0], stats.uniform(-1, 4).cdf).pvalue > 0.01
    assert stats.kstest(actions[:, 1], stats.uniform(10, 0.5).cdf).pvalue > 0.01


def test_random_actions_without_bounds_are_normal(make_agent):
    actions = drawn(make_agent("random", Box((2, 1))))
    assert actions.shape == (12_000, 2, 1)
    assert stats.kstest(actions.ravel(), stats.norm.cdf).pvalue > 0.01


def test_random_whole_numbers_in_a_box_are_equally_likely(make_agent):
    actions = drawn(make_agent("random", Box((1,), (0.0,), (3.0,), "int32")))
    assert stats.chisquare(np.bincount(actions.ravel(), minlength=4)).pvalue > 0.01


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (Discrete(3), 2, 2),
        (MultiDiscrete((2, 3)), 1, [1, 1]),
        (MultiDiscrete((2, 3)), [0, 2], [0, 2]),
        (Box((2,), (-1.0,), (1.0,)), 0.5, [0.5, 0.5]),
        (Box((2,), (-1.0,), (1.0,)), [0.5, -3.0], [0.5, -1.0]),
        (Box((2, 2)), [1.0, 2.0, 3.0, 4.0], [[1.0, 2.0], [3.0, 4.0]]),
    ],
)
def test_the_constant_action_is_taken_in_every_environment(make_agent, space, given, expected):
    agent = make_agent("constant", space, action=given)
    for action in drawn(agent, 3):
        np.testing.assert_allclose(action, expected)
    policy = agent.policy(agent.init(jax.random.key(0)), 0)
    np.testing.assert_allclose(policy.act(np.zeros(3, np.float32)), expected)


def test_a_constant_action_with_the_wrong_number_of_elements_is_refused(make_agent):
    with pytest.raises(SpecError, match=r"agent\.action has 3 numbers"):
        make_agent("constant", Box((2,)), action=[1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (Discrete(3), 3),
        (Discrete(3), -1),
        (MultiDiscrete((2, 3)), [1, 3]),
        (MultiDiscrete((2, 3)), 2),
        (Discrete(3), 1.7),
    ],
)
def test_a_constant_action_that_does_not_exist_is_refused(make_agent, space, given):
    with pytest.raises(SpecError, match=r"agent\.action"):
        make_agent("constant", space, action=given)


@pytest.mark.parametrize("space", [Discrete(5), Box((2,), (-1.0,), (1.0,))], ids=["discrete", "box"])
def test_a_random_agent_stays_random_when_it_is_to_act_without_exploring(make_agent, space):
    agent = make_agent("random", space)
    assert agent.always_draws
    policy = agent.policy(agent.init(jax.random.key(0)), 0)
    first, second = (policy.act(np.zeros((50, 3), np.float32)) for _ in range(2))
    assert np.any(first != second)
