"""Updates from collected timesteps, for compiled and host environments."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from steppe import agents
from steppe.agents._base import AgentContext, Trajectory
from steppe.runners.engines.learning import begin, learn
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

ENVS = 2
NETWORK = NetworkSpec([{"type": "dense", "size": 4, "activation": "tanh"}])


def make(type, total_timesteps=None, **settings):
    situation = AgentContext(Box((3,)), Discrete(2), NETWORK, num_envs=ENVS, total_timesteps=total_timesteps)
    return agents.make(AgentSpec.model_validate({"type": type, **settings}), situation)


def made_up(agent, seed):
    """A random rollout [T, N, ...]."""
    rng = np.random.default_rng(seed)
    lead = (agent.horizon, ENVS)
    observations, following = rng.normal(size=(2, *lead, 3)).astype(np.float32)
    rewards = rng.normal(size=lead).astype(np.float32)
    ended = rng.random((2, *lead)) < 0.1
    actions = rng.integers(0, 2, lead).astype(np.int32)
    outputs = np.zeros((*lead, 2), np.float32)
    return Trajectory(observations, actions, rewards, *ended, following, outputs, rewards, {}, {})


def trained(agent, iterations, seed=0):
    """(learner, metrics of each iteration)."""
    learner = begin(agent, jax.random.key(seed))
    step = jax.jit(lambda learner, trajectory: learn(agent, learner, trajectory))
    history = []
    for iteration in range(iterations):
        learner, metrics = step(learner, made_up(agent, iteration))
        history.append({name: float(value) for name, value in metrics.items()})
    return learner, history


@pytest.mark.parametrize("memory", ["replay", "prioritized_replay"])
@pytest.mark.parametrize("updates", [1, 3])
def test_dqn_learns_only_once_enough_timesteps_were_collected(memory, updates):
    agent = make(
        "dqn", update_frequency=4, updates=updates, batch_size=8, learning_starts=30, n_step=2, memory={"type": memory}
    )
    learner, history = trained(agent, 6)
    # Each iteration has 8 timesteps, so there are 30 from the fourth one on.
    assert [row["updates"] for row in history] == [0, 0, 0, updates, updates, updates]
    assert learner.agent.updates == 3 * updates
    assert [row["loss"] > 0 for row in history] == [False, False, False, True, True, True]
    assert "priorities" not in history[0]


def test_parameters_and_priorities_do_not_change_before_learning_starts():
    agent = make("dqn", batch_size=8, learning_starts=1000, memory={"type": "prioritized_replay", "capacity": 2000})
    learner, _ = trained(agent, 3)
    np.testing.assert_array_equal(learner.agent.params, agent.init(jax.random.key(0)).params)
    assert learner.memory.highest == 1.0
    assert np.all(np.isfinite(learner.memory.tree))


def test_prioritised_replay_stores_the_td_errors_of_each_update():
    agent = make("dqn", batch_size=8, learning_starts=0, memory={"type": "prioritized_replay", "capacity": 64})
    learner, _ = trained(agent, 3)
    tree = np.asarray(learner.memory.tree)
    priorities = tree[len(tree) // 2 :]
    assert len(np.unique(priorities[priorities > 0])) > 3


def test_a_memory_smaller_than_learning_starts_still_learns():
    agent = make("dqn", batch_size=8, learning_starts=48, memory={"capacity": 32})
    learner, _ = trained(agent, 8)
    assert learner.agent.updates > 0


def test_dqns_learning_rate_reaches_zero_with_the_last_timestep():
    agent = make(
        "dqn",
        total_timesteps=64,
        batch_size=8,
        learning_starts=32,
        update_frequency=4,
        learning_rate_decay="linear",
        optimizer="gradient_descent",
    )
    learner, history = trained(agent, 8)
    assert sum(row["updates"] for row in history) == 5
    after = agent.apply(learner.agent, np.ones_like(learner.agent.params))
    np.testing.assert_array_equal(after.params, learner.agent.params)


@pytest.mark.parametrize(("type", "expected"), [("vpg", 1), ("ppo", 6)])
def test_trajectories_are_learned_from_without_a_memory(type, expected):
    agent = make(type, horizon=6, **({"epochs": 3, "minibatches": 2} if type == "ppo" else {}))
    learner, history = trained(agent, 2)
    assert [row["updates"] for row in history] == [expected, expected]
    assert learner.memory == ()
    assert all(np.isfinite(list(row.values())).all() for row in history)


def test_agents_that_do_not_learn_only_count():
    agent = make("random", horizon=6)
    _, history = trained(agent, 2)
    assert history == [{"updates": 0}, {"updates": 0}]
