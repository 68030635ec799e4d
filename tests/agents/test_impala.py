"""IMPALA: V-trace targets for the actions of an older policy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from steppe.specs.spaces import Box, Discrete


def policy_and_values(in_numpy, agent, vector, observations):
    tensors = in_numpy.tensors(agent, vector)
    outputs = in_numpy.dense(tensors, "policy/head", in_numpy.torso(tensors, "policy/", observations))
    values = in_numpy.dense(tensors, "value/head", in_numpy.torso(tensors, "value/", observations))[..., 0]
    return outputs, values


def log_probs_of(in_numpy, agent, vector, outputs, actions):
    if isinstance(agent.context.action, Discrete):
        return np.take_along_axis(in_numpy.log_softmax(outputs), actions[..., None], -1)[..., 0]
    log_std = in_numpy.tensors(agent, vector)["policy/head/log_std"]
    return stats.norm(outputs, np.exp(log_std)).logpdf(actions).sum(-1)


def targets_by_definition(trajectory, values, next_values, ratios, discount, trace, clip):
    """Equation 1 for every timestep, and the advantages derived from it."""
    rho, c = np.minimum(clip, ratios), trace * np.minimum(1.0, ratios)
    ended = trajectory.terminated | trajectory.truncated
    targets, advantages = values.copy(), np.zeros_like(values)
    for s, n in np.ndindex(values.shape):
        for t in range(s, len(values)):
            future = 0.0 if trajectory.terminated[t, n] else discount * next_values[t, n]
            error = rho[t, n] * (trajectory.rewards[t, n] + future - values[t, n])
            targets[s, n] += discount ** (t - s) * np.prod(c[s:t, n]) * error
            if ended[t, n]:
                break
    for s, n in np.ndindex(values.shape):
        is_last = ended[s, n] or s == len(values) - 1
        following = next_values[s, n] if is_last else targets[s + 1, n]
        future = 0.0 if trajectory.terminated[s, n] else discount * following
        advantages[s, n] = rho[s, n] * (trajectory.rewards[s, n] + future - values[s, n])
    return targets, advantages


@pytest.mark.parametrize("space", [Discrete(3), Box((2,))], ids=["discrete", "box"])
def test_targets_and_gradient_correct_for_the_older_policy(make_agent, shaken, random_trajectory, in_numpy, space):
    agent = make_agent("impala", space, horizon=6, ratio_clip=1.3, gae_lambda=0.9, entropy_coefficient=0.0)
    state = shaken(agent)
    # `log_std` is not part of the outputs of acting, so it is the same in both policies here.
    acted = shaken(agent, seed=4).params
    if isinstance(space, Box):
        start = agent.layout.names.index("policy/head/log_std")
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in agent.layout.shapes)])
        acted[ends[start] : ends[start + 1]] = state.params[ends[start] : ends[start + 1]]
    trajectory = random_trajectory(agent, state._replace(params=acted))
    now, values = policy_and_values(in_numpy, agent, state.params, trajectory.observations)
    _, next_values = policy_and_values(in_numpy, agent, state.params, trajectory.next_observations)
    before, _ = policy_and_values(in_numpy, agent, acted, trajectory.observations)
    new, old = (log_probs_of(in_numpy, agent, state.params, out, trajectory.actions) for out in (now, before))
    ratios = np.exp(new - old)
    assert np.any(ratios > 1.3)
    assert np.any(ratios < 1.0)
    targets, advantages = targets_by_definition(trajectory, values, next_values, ratios, 0.99, 0.9, 1.3)
    batch = jax.jit(agent.prepare)(state, trajectory)
    np.testing.assert_allclose(batch.returns, targets.ravel(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(batch.advantages, advantages.ravel(), rtol=1e-3, atol=1e-4)
    gradients, _ = jax.jit(agent.gradients)(state, batch)

    def loss(vector):
        outputs, values = policy_and_values(in_numpy, agent, vector, trajectory.observations)
        log_probs = log_probs_of(in_numpy, agent, vector, outputs, trajectory.actions)
        return -np.mean(log_probs * advantages) + 0.5 * np.mean((values - targets) ** 2)

    np.testing.assert_allclose(gradients, in_numpy.slope(loss, state.params), rtol=1e-2, atol=1e-4)


def test_rewards_are_scaled_where_they_are_normalised(make_agent, shaken, random_trajectory):
    plain, scaling = (
        make_agent("impala", Discrete(3), horizon=6, context={"normalize_rewards": given}) for given in (False, True)
    )
    state = shaken(plain)
    trajectory = random_trajectory(plain, state)
    noted = scaling.update_return_stats(state, trajectory)
    scaled = trajectory._replace(rewards=trajectory.rewards / trajectory.running_returns.std())
    expected = jax.jit(plain.prepare)(state, scaled)
    batch = jax.jit(scaling.prepare)(noted, trajectory)
    np.testing.assert_allclose(batch.advantages, expected.advantages, rtol=1e-3, atol=1e-5)
