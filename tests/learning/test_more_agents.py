"""All other agents reach a return with fixed seeds, within a budget that is known to be enough."""

from __future__ import annotations

import pytest
from runs import experiment, train

pytestmark = pytest.mark.learning

SMALL = [{"type": "dense", "size": 64, "activation": "relu"}] * 2
RAINBOW = {
    "type": "dqn",
    "dueling": True,
    "noisy": True,
    "quantiles": 16,
    "n_step": 3,
    "memory": {"type": "prioritized_replay"},
}
OFF_POLICY = {"batch_size": 64, "learning_rate": 1e-3, "discount": 0.95}
LSTM = [{"type": "dense", "size": 64, "activation": "tanh"}, {"type": "lstm", "size": 64}]


@pytest.mark.parametrize(
    ("agent", "budget", "goal"),
    [
        ("a2c", 600_000, 400),
        ("impala", 600_000, 450),
        ("trpo", 400_000, 450),
        ("pqn", 500_000, 450),
        ("qr_dqn", 150_000, 400),
        ("ddqn", 250_000, 400),
        ("dqn_nstep", 250_000, 400),
        (RAINBOW, 150_000, 400),
        ({"type": "ppo", "optimization_steps": 16, "subsampling_fraction": 0.25}, 500_000, 450),
    ],
    ids=str,
)
def test_agents_learn_cartpole(tmp_path, agent, budget, goal):
    spec = experiment(agent=agent, num_envs=None, seed=1, total_timesteps=budget, stop_at_return=goal)
    outcome = train(tmp_path, spec)
    assert outcome.mean_return >= goal, outcome


@pytest.mark.parametrize("agent", ["sac", "td3", "ddpg", "naf"])
def test_agents_swing_the_pendulum_up(tmp_path, agent):
    spec = experiment(
        "Pendulum-v1",
        {"type": agent, **OFF_POLICY},
        network=SMALL,
        num_envs=None,
        seed=1,
        total_timesteps=40_000,
        stop_at_return=-250,
    )
    outcome = train(tmp_path, spec)
    assert outcome.mean_return >= -250, outcome


@pytest.mark.parametrize("agent", ["ppo", "vpg"])
def test_recurrent_networks_learn_cartpole(tmp_path, agent):
    spec = experiment(agent=agent, network=LSTM, num_envs=16, seed=1, total_timesteps=800_000, stop_at_return=400)
    outcome = train(tmp_path, spec)
    assert outcome.mean_return >= 400, outcome
