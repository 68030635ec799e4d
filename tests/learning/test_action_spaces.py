"""Agents learn in every kind of action space, and with a memory: small worlds, each with what the blind can reach.

Every episode has ten timesteps. Seeds are fixed; each goal was reached well within its budget with others too.
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
    # Sums of several rewards would be those of the random actions that the memory begins with.
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


def learned(folder, world, agent, goal, budget=60_000, network=SMALL, num_envs=16):
    """The mean return of the last hundred episodes, at the goal or else at the end of the budget."""
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
def test_two_numbers_follow_what_is_asked_for(tmp_path, agent):
    # Two numbers of -1 or of 1: a policy that does not look reaches -20, a random one about -25.
    assert learned(tmp_path, "Continuous", agent, -10) >= -10


@pytest.mark.parametrize(
    ("agent", "num_envs"),
    [(QUICK_PPO, 16), (QUICK_DQN, 1), (QUICK_PQN, 32)],
    ids=["ppo", "dqn", "pqn"],
)
def test_three_choices_at_once_are_learned(tmp_path, agent, num_envs):
    # Without a look at the observation 25 of 30 can be had, by chance 13.
    assert learned(tmp_path, "Several", agent, 28, budget=40_000, num_envs=num_envs) >= 28


def test_yes_and_no_are_learned_by_bernoulli(tmp_path):
    # Without a look 20 of 30, by chance 15.
    assert learned(tmp_path, "Flags", {**QUICK_PPO, "distribution": "bernoulli"}, 27) >= 27


def test_a_gru_remembers_what_was_asked_for(tmp_path):
    # Without a memory 5.5 of 10: only the first action can be known.
    assert learned(tmp_path, "Recalled", QUICK_PPO, 9, network=GRU) >= 9


@pytest.mark.parametrize(
    ("agent", "world", "mean"),
    [
        ("random", "World", 5.0),
        ("random", "Several", 40 / 3),
        ({"type": "constant", "action": [0, 2, 0]}, "Several", 25.0),
    ],
)
def test_who_does_not_learn_gets_what_the_world_pays_for_that(tmp_path, agent, world, mean):
    # The standard deviation of the mean of a hundred episodes is at most 0.27.
    assert learned(tmp_path, world, agent, goal=None, budget=2000, network=None) == pytest.approx(mean, abs=0.8)
