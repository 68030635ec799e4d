"""Normalised advantage functions against their equations, matrix by matrix."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from steppe.specs.spaces import Box

SPACES = {1: Box((1,), (-1.0,), (1.0,)), 3: Box((3,), (-1.0,), (1.0,))}


def value_and_advantage(in_numpy, agent, vector, observations, actions=None):
    """V [B], and the advantage [B] of equation 10: -1/2 (a - mu)^T L L^T (a - mu)."""
    tensors = in_numpy.tensors(agent, vector)
    features = in_numpy.torso(tensors, "", observations)
    values = in_numpy.dense(tensors, "value", features)[:, 0]
    if actions is None:
        return values, None
    best = np.tanh(in_numpy.dense(tensors, "head", features))
    entries = in_numpy.dense(tensors, "triangle", features)
    advantages = []
    for b, (mu, action) in enumerate(zip(best, actions, strict=True)):
        lower, at = np.zeros((len(mu), len(mu))), 0
        for row in range(len(mu)):
            for column in range(row + 1):
                entry = entries[b, at]
                lower[row, column] = np.exp(entry) if row == column else entry
                at += 1
        away = action - mu
        advantages.append(-0.5 * away @ (lower @ lower.T) @ away)
    return values, np.array(advantages)


def squared(errors):
    return 0.5 * errors**2


def linear_from_a_half(errors):
    return np.where(np.abs(errors) <= 0.5, 0.5 * errors**2, 0.5 * (np.abs(errors) - 0.25))


@pytest.mark.parametrize(
    ("size", "settings", "cost"),
    [
        (1, {}, squared),
        (3, {}, squared),
        (3, {"double_q_model": True}, squared),
        (1, {"huber_loss": 0.5}, linear_from_a_half),
    ],
)
def test_loss_and_gradient_are_those_of_the_paper(
    make_agent, shaken, random_transitions, in_numpy, size, settings, cost
):
    agent = make_agent("naf", SPACES[size], **settings)
    state, batch = shaken(agent), random_transitions(SPACES[size])
    following, _ = value_and_advantage(in_numpy, agent, state.target, batch.next_observations)
    if "double_q_model" in settings:
        online = in_numpy.tensors(agent, state.params)
        chosen = np.tanh(in_numpy.dense(online, "head", in_numpy.torso(online, "", batch.next_observations)))
        following += value_and_advantage(in_numpy, agent, state.target, batch.next_observations, chosen)[1]
    targets = batch.rewards + batch.discounts * following

    def errors(vector):
        values, advantages = value_and_advantage(in_numpy, agent, vector, batch.observations, batch.actions)
        return values + advantages - targets

    def loss(vector):
        return np.mean(batch.weights * cost(errors(vector)))

    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    assert metrics["loss"].item() == pytest.approx(loss(state.params), rel=1e-4)
    np.testing.assert_allclose(metrics["priorities"], np.abs(errors(state.params)), rtol=1e-3, atol=1e-4)
    assert metrics["td_error"].item() == pytest.approx(np.abs(errors(state.params)).mean(), rel=1e-4)
    np.testing.assert_allclose(gradients, in_numpy.slope(loss, state.params), rtol=1e-3, atol=3e-5)


def test_no_action_is_worth_more_than_the_policys(make_agent, shaken):
    agent = make_agent("naf", SPACES[3])
    params = agent.layout.split(shaken(agent).params)
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(1, 3)).astype(np.float32)
    outputs, _ = agent.outputs(agent.actor_params(shaken(agent)), observations, {})
    best, _ = agent.choose(np.asarray(outputs), None, 0, agent.initial_internals((1,)), 0.0, np)
    others = rng.uniform(-1, 1, (500, 3)).astype(np.float32)
    seen = np.repeat(observations, 500, 0)
    most = agent.values(params, observations, best)
    assert np.all(jax.jit(agent.values)(params, seen, others) <= most)
    np.testing.assert_allclose(
        most,
        params["value"]["bias"]
        + np.tanh(observations @ params["torso"]["0_dense"]["kernel"] + params["torso"]["0_dense"]["bias"])
        @ params["value"]["kernel"][:, 0],
        rtol=1e-4,
    )


def test_the_policy_keeps_what_puts_out_the_best_action(make_agent, shaken):
    agent = make_agent("naf", SPACES[3])
    names = set(agent.policy_tensors(shaken(agent)))
    assert names == {"torso/0_dense/kernel", "torso/0_dense/bias", "head/kernel", "head/bias"}
