"""Vanilla policy gradient against its loss in NumPy, differentiated by finite differences."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.agents._base import Trajectory
from steppe.specs.spaces import Box, Discrete


def loss_in_numpy(in_numpy, agent, vector, batch):
    """- E[log pi(a|s) A] + c_v E[(V - R)^2] - c_e E[H]."""
    settings = agent.settings
    tensors = in_numpy.tensors(agent, vector)
    outputs = in_numpy.dense(tensors, "policy/head", in_numpy.torso(tensors, "policy/", batch.observations))
    values = in_numpy.dense(tensors, "value/head", in_numpy.torso(tensors, "value/", batch.observations))[:, 0]
    if "policy/head/log_std" in tensors:
        log_std = tensors["policy/head/log_std"]
        z = (batch.actions - outputs) / np.exp(log_std)
        log_probs = (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
    else:
        log_p = in_numpy.log_softmax(outputs)
        log_probs = log_p[np.arange(len(outputs)), batch.actions]
        entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    advantages = batch.advantages.astype(np.float64)
    if settings.normalize_advantages:
        advantages = (advantages - advantages.mean()) / advantages.std()
    policy_loss = -np.mean(log_probs * advantages)
    value_loss = np.mean((values - batch.returns) ** 2)
    return policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy


@pytest.mark.parametrize(
    ("space", "normalize_advantages"), [(Discrete(3), True), (Box((2,)), False)], ids=["discrete", "box"]
)
def test_loss_and_gradient_are_the_policy_gradient(
    make_agent, shaken, random_batch, in_numpy, space, normalize_advantages
):
    agent = make_agent(
        "vpg", space, normalize_advantages=normalize_advantages, entropy_coefficient=0.05, value_coefficient=0.3
    )
    state, batch = shaken(agent), random_batch(space)
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    assert metrics["loss"].item() == pytest.approx(loss_in_numpy(in_numpy, agent, state.params, batch), rel=1e-4)
    slope = in_numpy.slope(lambda vector: loss_in_numpy(in_numpy, agent, vector, batch), state.params)
    np.testing.assert_allclose(gradients, slope, rtol=1e-3, atol=2e-5)


def bandit(agent, state, key):
    """Timesteps [T, N] of one state each, in which only action 1 has a reward."""
    lead = (agent.horizon, agent.context.num_envs)
    observations = jnp.ones((*lead, 3))
    noise = agent.draw_noise(key, lead)
    actions, outputs, _ = jax.vmap(lambda o, n: agent.act(agent.actor_params(state), o, n, 0, {}))(observations, noise)
    rewards = (actions == 1) * 1.0
    every = np.ones(lead, bool)
    return Trajectory(observations, actions, rewards, every, ~every, observations, outputs, rewards, {}, {})


def test_an_update_is_one_optimiser_step(make_agent, shaken):
    agent = make_agent(
        "vpg", Discrete(3), horizon=5, learning_rate=1e-3, optimizer="gradient_descent", max_gradient_norm=None
    )
    state = shaken(agent)
    trajectory = jax.jit(bandit, static_argnums=0)(agent, state, jax.random.key(0))
    after, _ = jax.jit(agent.update)(state, trajectory)
    gradients = jax.jit(lambda state: agent.gradients(state, agent.prepare(state, trajectory))[0])(state)
    assert agent.updates_per_rollout == 1
    assert after.updates == 1
    np.testing.assert_allclose(after.params, state.params - 1e-3 * gradients, rtol=1e-5, atol=1e-7)


def test_the_rewarded_action_becomes_the_likely_one(make_agent):
    agent = make_agent("vpg", Discrete(3), num_envs=8, horizon=8, learning_rate=0.02)
    learn = jax.jit(lambda state, key: agent.update(state, bandit(agent, state, key))[0])
    state = agent.init(jax.random.key(0))
    for step in range(60):
        state = learn(state, jax.random.key(step))
    logits = agent.policy(state, 0).outputs(np.ones((1, 3), np.float32))[0]
    assert np.exp(logits[1]) / np.exp(logits).sum() > 0.8
