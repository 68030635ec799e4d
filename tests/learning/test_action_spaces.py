"""Agents learn in every kind of action space, and with a memory, in small worlds of ten timesteps an episode.

Comments give the returns that a policy can reach without looking at the observation. Seeds are fixed; other seeds reach
each goal well within its budget too.
"""

from __future__ import annotations

import pytest
from runs import experiment, train

pytestmark = pytest.mark.learning

SMALL = [{"type": "dense", "size": 32, "activation": "tanh"}]
GRU = [{"type": "gru", "size": 16}]
QUICK_PPO = {"type": "ppo", "horizon": 32, "epochs": 4, "minibatches": 4, "learning_rate": 3e-3, "discount": 0.9}
QUICK_DQN = {
    "type": "dqn",
    # n-step returns would include the random actions with which the memory begins.
    "n_step": 1,
    "batch_size": 64,
    "learning_starts": 500,
    "discount": 0.9,
    "target_sync_frequency": 50,
    "exploration": {"type": "epsilon_anneal", "timesteps": 3000, "final_epsilon": 0.02},
}
QUICK_PQN = {
    "type": "pqn",
    "learning_rate": 2e-3,
    "discount": 0.9,
    "exploration": {"type": "epsilon_anneal", "timesteps": 20_000, "final_epsilon": 0.02},
}


def trained_return(folder, world, agent, goal, budget=60_000, network=SMALL, num_envs=16):
    """The mean return over the last hundred episodes, once it reaches the goal or else at the end of the budget."""
    spec = experiment(
        f"worlds:{world}",
        agent,
        network=network,
        num_envs=num_envs,
        seed=1,
        total_timesteps=budget,
        stop_at_return=goal,
    )
    return train(folder, spec).mean_return


@pytest.mark.parametrize(
    "agent",
    [
        {"type": "vpg", "learning_rate": 5e-3, "discount": 0.9, "entropy_coefficient": 0.0},
        {"type": "a2c", "learning_rate": 3e-3, "discount": 0.9, "entropy_coefficient": 0.0},
        {"type": "a3c", "learning_rate": 3e-3, "discount": 0.9, "entropy_coefficient": 0.0},
        {"type": "trpo", "horizon": 64, "discount": 0.9},
        {"type": "impala", "learning_rate": 5e-3, "discount": 0.9, "entropy_coefficient": 0.0},
        {**QUICK_PPO, "distribution": "beta"},
    ],
    ids=lambda agent: agent["type"],
)
def test_agents_learn_continuous_actions(tmp_path, agent):
    # The wanted action is twice -1 or twice 1. A policy that ignores the observation reaches -20, a random one -25.
    assert trained_return(tmp_path, "Continuous", agent, -10) >= -10


@pytest.mark.parametrize(
    ("agent", "num_envs"),
    [(QUICK_PPO, 16), (QUICK_DQN, 1), (QUICK_PQN, 32)],
    ids=["ppo", "dqn", "pqn"],
)
def test_agents_learn_three_discrete_actions_at_once(tmp_path, agent, num_envs):
    # A policy that ignores the observation reaches 25 of 30, a random one 13.
    assert trained_return(tmp_path, "Several", agent, 28, budget=40_000, num_envs=num_envs) >= 28


def test_ppo_learns_binary_actions_with_the_bernoulli_distribution(tmp_path):
    # A policy that ignores the observation reaches 20 of 30, a random one 15.
    assert trained_return(tmp_path, "Flags", {**QUICK_PPO, "distribution": "bernoulli"}, 27) >= 27


def test_a_gru_remembers_the_first_observation(tmp_path):
    # A policy without a memory reaches 5.5 of 10, since only the first observation shows the wanted action.
    assert trained_return(tmp_path, "Recalled", QUICK_PPO, 9, network=GRU) >= 9


@pytest.mark.parametrize(
    ("agent", "world", "mean"),
    [
        ("random", "World", 5.0),
        ("random", "Several", 40 / 3),
        ({"type": "constant", "action": [0, 2, 0]}, "Several", 25.0),
    ],
)
def test_random_and_constant_agents_get_their_expected_return(tmp_path, agent, world, mean):
    # The standard deviation of the mean of a hundred episodes is at most 0.27.
    assert trained_return(tmp_path, world, agent, goal=None, budget=2000, network=None) == pytest.approx(mean, abs=0.8)
