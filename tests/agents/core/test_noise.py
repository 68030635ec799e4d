"""Noise on continuous actions: its statistics, and its initial state in each episode."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from steppe.agents._base import ActorParams
from steppe.agents.core.normalizers import empty
from steppe.specs.spaces import Box

BOUNDED = Box((2,), (-1.0,), (1.0,))
AGENTS = ["ddpg", "td3", "naf"]


def make(make_agent, exploration, agent="ddpg"):
    return make_agent(agent, BOUNDED, exploration=exploration, learning_starts=0)


def walked(agent, timesteps, envs, seed=0, outputs=2):
    """Actions [timesteps, envs, 2] of an actor whose outputs are always zero, in one long episode.

    With four outputs the last two are the logarithms of deviations of 0.5.
    """
    noise = np.asarray(agent.draw_noise(jax.random.key(seed), (timesteps, envs)))
    internals, outputs = agent.initial_internals((envs,)), np.zeros((envs, outputs), np.float32)
    outputs[:, 2:] = np.log(0.5)
    actions = []
    for row in noise:
        action, internals = agent.choose(outputs, row, 0, internals, 0.0, np)
        actions.append(action)
    return np.array(actions)


@pytest.mark.parametrize("agent", AGENTS)
def test_gaussian_noise_has_its_deviation_and_no_memory(make_agent, agent):
    actions = walked(make(make_agent, {"type": "gaussian_noise", "sigma": 0.2}, agent), 400, 20)
    assert stats.kstest(actions.ravel(), stats.norm(0, 0.2).cdf).pvalue > 0.01
    assert abs(np.corrcoef(actions[1:].ravel(), actions[:-1].ravel())[0, 1]) < 0.03


@pytest.mark.parametrize("mu", [0.15, -0.15])
@pytest.mark.parametrize("sigma", [0.1, 0.0])
def test_gaussian_noise_may_have_a_mean(make_agent, mu, sigma):
    actions = walked(make(make_agent, {"type": "gaussian_noise", "sigma": sigma, "mu": mu}), 200, 20)
    assert actions.mean() == pytest.approx(mu, abs=0.01)
    assert actions.std() == pytest.approx(sigma, abs=0.01)


def test_noise_is_cut_off_at_the_bounds(make_agent):
    actions = walked(make(make_agent, {"type": "gaussian_noise", "sigma": 5.0}), 10, 20)
    assert np.all(np.abs(actions) <= 1)
    assert np.mean(np.abs(actions) == 1) > 0.5


@pytest.mark.parametrize("agent", AGENTS)
def test_drifting_noise_has_the_statistics_of_its_process(make_agent, agent):
    """x' = x + theta (mu - x) + sigma n: variance sigma^2 / (1 - (1 - theta)^2), correlation (1 - theta)^k."""
    theta, sigma, mu = 0.3, 0.1, 0.2
    exploration = {"type": "ornstein_uhlenbeck", "sigma": sigma, "theta": theta, "mu": mu}
    actions = walked(make(make_agent, exploration, agent), 800, 40)[50:]
    assert actions.mean() == pytest.approx(mu, abs=0.01)
    assert actions.std() == pytest.approx(sigma / np.sqrt(1 - (1 - theta) ** 2), rel=0.05)
    for lag in (1, 3):
        correlation = np.corrcoef(actions[lag:].ravel(), actions[:-lag].ravel())[0, 1]
        assert correlation == pytest.approx((1 - theta) ** lag, abs=0.03)
    # The noise differs between elements of an action and between environments.
    assert abs(np.corrcoef(actions[..., 0].ravel(), actions[..., 1].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(actions[:, 0, 0], actions[:, 1, 0])[0, 1]) < 0.25


@pytest.mark.parametrize(("theta", "sigma"), [(0.05, 0.3), (0.3, 0.5)])
def test_an_agent_that_draws_its_actions_may_draw_them_with_drifting_noise(make_agent, theta, sigma):
    """tanh(mean + deviation x), in which x is the process instead of independent normal numbers."""
    exploration = {"type": "ornstein_uhlenbeck", "theta": theta, "sigma": sigma}
    agent = make_agent("sac", BOUNDED, drifting_noise=exploration, learning_starts=0)
    assert agent.initial_internals((3,))["drift"].shape == (3, 2)
    drawn = (np.arctanh(walked(agent, 2000, 60, outputs=4)) / 0.5)[200:]
    assert drawn.mean() == pytest.approx(0.0, abs=0.05)
    assert drawn.std() == pytest.approx(sigma / np.sqrt(1 - (1 - theta) ** 2), rel=0.05)
    for lag in (1, 3):
        correlation = np.corrcoef(drawn[lag:].ravel(), drawn[:-lag].ravel())[0, 1]
        assert correlation == pytest.approx((1 - theta) ** lag, abs=0.03)


def test_an_agent_that_draws_its_actions_draws_them_independently_by_itself(make_agent):
    agent = make_agent("sac", BOUNDED, drifting_noise=None, learning_starts=0)
    assert agent.initial_internals((3,)) == {}
    drawn = np.arctanh(walked(agent, 400, 20, outputs=4)) / 0.5
    assert stats.kstest(drawn.ravel(), stats.norm(0, 1).cdf).pvalue > 0.01
    assert abs(np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]) < 0.03


def test_drifting_noise_starts_each_episode_at_its_mean(make_agent):
    agent = make(make_agent, {"type": "ornstein_uhlenbeck", "sigma": 0.1, "mu": 0.3})
    initial = agent.initial_internals((4,))
    np.testing.assert_allclose(initial["drift"], np.full((4, 2), 0.3), rtol=1e-6)
    noise = np.asarray(agent.draw_noise(jax.random.key(0), (4,)))
    actions, after = agent.choose(np.zeros((4, 2), np.float32), noise, 0, initial, 0.0, np)
    np.testing.assert_allclose(actions, 0.3 + 0.1 * noise[:, :2], rtol=1e-5)
    np.testing.assert_allclose(after["drift"], actions, rtol=1e-6)


def test_a_greedy_action_has_no_noise_and_leaves_the_drift_alone(make_agent):
    agent = make(make_agent, "ornstein_uhlenbeck")
    before = {"drift": np.full((3, 2), 0.4, np.float32)}
    actions, after = agent.choose(np.full((3, 2), 0.2, np.float32), None, 0, before, 0.0, np)
    np.testing.assert_allclose(actions, np.tanh(0.2), rtol=1e-6)
    assert after is before


@pytest.mark.parametrize("agent", ["ddpg", "naf"])
@pytest.mark.parametrize(
    ("exploration", "timestep", "share"),
    [
        ({"type": "constant", "constant": 0.3}, 0, 0.3),
        ({"type": "epsilon_anneal", "final_epsilon": 0.2, "timesteps": 100}, 50, 0.6),
        ({"type": "epsilon_decay", "final_epsilon": 0.0, "timesteps": 100, "half_lives": 2.0}, 50, 0.5),
    ],
    ids=lambda each: each["type"] if isinstance(each, dict) else "",
)
def test_a_share_of_actions_may_come_from_anywhere_instead(make_agent, agent, exploration, timestep, share):
    made = make(make_agent, exploration, agent)
    assert made.initial_internals((2,)) == {}
    noise = np.asarray(made.draw_noise(jax.random.key(1), (8000,)))
    actions, _ = made.choose(np.full((8000, 2), 0.5, np.float32), noise, timestep, {}, 0.0, np)
    explored = actions[:, 0] != np.tanh(np.float32(0.5))
    assert explored.mean() == pytest.approx(share, abs=0.02)
    assert stats.kstest(actions[explored, 0], stats.uniform(-1, 2).cdf).pvalue > 0.01


def test_jax_drifts_as_numpy_does(make_agent):
    agent = make(make_agent, {"type": "ornstein_uhlenbeck", "sigma": 0.3})
    actor_params = ActorParams(agent.init(jax.random.key(0)).params, empty(()))
    noise = agent.draw_noise(jax.random.key(0), (5,))
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    before = {"drift": np.random.default_rng(1).normal(0.0, 0.2, (5, 2)).astype(np.float32)}
    actions, outputs, after = jax.jit(agent.act)(actor_params, observations, noise, 0, before)
    expected, expected_after = agent.choose(np.asarray(outputs), np.asarray(noise), 0, before, 0.0, np)
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["drift"], expected_after["drift"], rtol=1e-5, atol=1e-6)
