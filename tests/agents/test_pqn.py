"""Parallelised Q-learning: lambda-returns and their loss against NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from steppe.errors import SpecError
from steppe.networks import Network
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

SPACES = {"single": Discrete(4), "multi": MultiDiscrete((2, 3))}


def values_of(in_numpy, agent, vector, observations):
    """One array [..., options] for each choice."""
    tensors = in_numpy.tensors(agent, vector)
    features = in_numpy.torso(tensors, "", observations)
    space = agent.context.action
    ends = np.cumsum((space.n,) if isinstance(space, Discrete) else space.nvec)[:-1]
    if not agent.settings.dueling:
        return np.split(in_numpy.dense(tensors, "head", features), ends, -1)
    value = in_numpy.dense(tensors, "head/value", features)
    parts = np.split(in_numpy.dense(tensors, "head/advantage", features), ends, -1)
    return [value + part - part.mean(-1, keepdims=True) for part in parts]


def returns_by_recursion(trajectory, best, discount, trace_lambda):
    """R_t = r + discount ((1 - lambda) max Q + lambda R_t+1), cut at the end of an episode or of the trajectory."""
    returns = np.zeros(best.shape)
    for n in range(best.shape[1]):
        for t in reversed(range(len(best))):
            is_last = t == len(best) - 1 or trajectory.terminated[t, n] or trajectory.truncated[t, n]
            mixed = best[t, n] if is_last else (1 - trace_lambda) * best[t, n] + trace_lambda * returns[t + 1, n]
            future = 0.0 if trajectory.terminated[t, n] else discount * mixed
            returns[t, n] = trajectory.rewards[t, n] + future
    return returns


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("truncates", [False, True])
def test_targets_loss_and_gradient_are_those_of_q_lambda(
    make_agent, shaken, random_trajectory, in_numpy, kind, truncates
):
    space = SPACES[kind]
    agent = make_agent("pqn", space, horizon=6, minibatches=1, trace_lambda=0.7, discount=0.9, dueling=kind == "multi")
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    if not truncates:
        trajectory = trajectory._replace(terminated=trajectory.terminated | trajectory.truncated)
        trajectory = trajectory._replace(truncated=np.zeros_like(trajectory.terminated))
    assert trajectory.truncated.any() == truncates
    following = values_of(in_numpy, agent, state.params, trajectory.next_observations)
    best = np.stack([part.max(-1) for part in following], -1)
    expected = np.stack(
        [returns_by_recursion(trajectory, best[..., i], 0.9, 0.7) for i in range(best.shape[-1])], -1
    ).reshape(12, -1)
    batch = jax.jit(agent.prepare)(state, trajectory)
    np.testing.assert_allclose(batch.targets, expected, rtol=1e-4, atol=1e-4)
    gradients, metrics = jax.jit(agent.gradients)(state, batch)
    observations = trajectory.observations.reshape(12, 3)
    actions = trajectory.actions.reshape(12, -1)

    def errors(vector):
        parts = values_of(in_numpy, agent, vector, observations)
        taken = [part[np.arange(12), actions[:, i]] for i, part in enumerate(parts)]
        return np.stack(taken, -1) - expected

    assert metrics["td_error"].item() == pytest.approx(np.abs(errors(state.params)).mean(), rel=1e-4)
    assert metrics["loss"].item() == pytest.approx(0.5 * np.mean(errors(state.params) ** 2), rel=1e-4)
    slope = in_numpy.slope(lambda vector: 0.5 * np.mean(errors(vector) ** 2), state.params)
    np.testing.assert_allclose(gradients, slope, rtol=1e-3, atol=2e-5)


def test_there_is_no_target_network_and_no_memory(make_agent):
    agent = make_agent("pqn", Discrete(4), horizon=4, minibatches=1)
    assert agent.init(jax.random.key(0)).target.shape == (0,)
    assert agent.experience == "trajectories"


@pytest.mark.parametrize(
    "observation", [Box((3,)), Box((40, 40, 3), (0.0,), (255.0,), "uint8")], ids=["vector", "image"]
)
def test_the_default_network_normalises_its_layers(make_agent, observation):
    agent = make_agent("pqn", Discrete(4), observation=observation, network=None, horizon=4, minibatches=1)
    types = [layer.type for layer in agent.layers.root]
    assert types.count("layer_norm") >= 1
    assert isinstance(agent.q.network, Network)


def test_timesteps_that_cannot_be_cut_into_equal_minibatches_are_refused(make_agent):
    with pytest.raises(SpecError, match=r"^horizon x num_envs = 30 timesteps cannot be cut into 4 equal minibatches"):
        make_agent("pqn", Discrete(3), num_envs=3, horizon=10, minibatches=4)


def test_optimisers_of_policies_are_refused(checked):
    with pytest.raises(
        SpecError, match="natural_gradient measures steps of a policy's probabilities, which this agent"
    ):
        checked("pqn", optimizer={"type": "multi_step", "optimizer": "natural_gradient"})
    assert checked("pqn", optimizer="evolutionary").optimizer.type == "evolutionary"


def test_a_dueling_layer_and_dueling_false_contradict_each_other(make_agent):
    network = NetworkSpec([{"type": "dense", "size": 4}, {"type": "dueling"}])
    assert make_agent("pqn", Discrete(3), network=network).dueling
    with pytest.raises(SpecError, match=r"agent\.dueling is false, but the network ends in a dueling layer; remove"):
        make_agent("pqn", Discrete(3), network=network, dueling=False)
