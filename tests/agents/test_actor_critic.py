"""What the policy-gradient agents share."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from steppe.agents._base import Trajectory
from steppe.agents.advantages import generalized_advantages
from steppe.specs.spaces import Discrete


@pytest.mark.parametrize("truncates", [False, True])
def test_successors_are_valued_as_what_followed_or_would_have_followed(make_agent, shaken, truncates):
    agent = make_agent("ppo", Discrete(2), horizon=6, num_envs=3, minibatches=1)
    state, rng = shaken(agent), np.random.default_rng(0)
    observations = rng.standard_normal((7, 3, 3)).astype(np.float32)
    terminated, truncated = np.zeros((6, 3), bool), np.zeros((6, 3), bool)
    terminated[2, 0] = terminated[5, 1] = True
    truncated[3, 2] = truncated[5, 2] = truncates
    following = observations[1:].copy()
    following[terminated | truncated] = rng.standard_normal(3)
    rewards = rng.standard_normal((6, 3)).astype(np.float32)
    trajectory = Trajectory(
        observations=observations[:-1],
        actions=rng.integers(0, 2, (6, 3)),
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        next_observations=following,
        outputs=np.zeros((6, 3, 2), np.float32),
        running_returns=rewards,
    )
    params = agent.layout.split(state.params)
    values, next_values = agent._values(params, observations[:-1]), agent._values(params, following)
    expected = generalized_advantages(
        rewards, values, next_values, terminated.astype(np.float32), truncated.astype(np.float32), 0.99, 0.95
    )
    batch = jax.jit(agent.prepare)(state, trajectory)
    np.testing.assert_allclose(batch.advantages.reshape(6, 3), expected, rtol=1e-4, atol=1e-5)
