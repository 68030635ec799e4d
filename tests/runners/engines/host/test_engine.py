"""Training in gymnasium environments of every kind, with the whole runner."""

from __future__ import annotations

import pytest
from runs import TINY_PPO, experiment, train

from steppe.errors import UserError
from steppe.policies.policy import load_policy
from steppe.tracking.metrics import read_metrics

LEARNER = {**TINY_PPO, "learning_rate": 3e-3, "epochs": 4}
BEST = {"World": 10, "Pictures": 10, "Dictionary": 10, "Several": 30, "Continuous": 0, "Shifted": 10}
RANDOM = {"World": 5, "Pictures": 5, "Dictionary": 5, "Several": 13.3, "Continuous": -26, "Shifted": 5}


def network_for(world):
    """A network so small that learning from pictures takes seconds."""
    layers = [{"type": "conv2d", "size": 4, "stride": 2}, {"type": "flatten"}, {"type": "dense", "size": 32}]
    return layers if world == "Pictures" else None


@pytest.mark.parametrize("world", BEST)
def test_ppo_learns_with_every_kind_of_observation_and_action(tmp_path, world):
    spec = experiment(f"worlds:{world}", LEARNER, network=network_for(world), total_timesteps=6000)
    outcome = train(tmp_path, spec)
    first, best = RANDOM[world], BEST[world]
    assert outcome.mean_return > first + 0.5 * (best - first)


@pytest.mark.parametrize("world", ["World", "Pictures", "Dictionary", "Shifted"])
def test_dqn_learns_with_every_kind_of_observation(tmp_path, world):
    agent = {
        "type": "dqn",
        "batch_size": 32,
        "learning_starts": 100,
        "n_step": 1,
        "exploration": {"type": "epsilon_anneal", "timesteps": 1000},
    }
    outcome = train(tmp_path, experiment(f"worlds:{world}", agent, network=network_for(world), total_timesteps=4000))
    assert outcome.mean_return > 8.5


def test_a_policy_has_the_spaces_of_the_environment(tmp_path):
    import worlds

    train(tmp_path, experiment("worlds:Shifted", LEARNER, total_timesteps=6000))
    policy, env = load_policy(tmp_path / "policy"), worlds.Shifted()
    observation, _ = env.reset(seed=0)
    assert sum(env.step(policy.act(observation))[1] for observation in [observation]) in (0.0, 1.0)
    assert {policy.act(3), policy.act(4)} == {5, 6}


def test_environments_in_processes_learn_as_well(tmp_path):
    environment = {"id": "worlds:World", "vectorization": "processes"}
    assert train(tmp_path, experiment(environment, LEARNER, total_timesteps=6000)).mean_return > 7.5


def test_normalisation_reaches_the_policy(tmp_path):
    environment = {"id": "Pendulum-v1", "backend": "gymnasium", "normalize_observations": True}
    train(tmp_path, experiment(environment, TINY_PPO, total_timesteps=512))
    tensors = load_policy(tmp_path / "policy").tensors
    assert tensors["normalizer/mean"].shape == (3,)
    assert (tensors["normalizer/var"] != 1.0).all()


def test_evaluation_plays_as_many_episodes_as_asked_beside_the_training(tmp_path):
    spec = experiment("worlds:World", TINY_PPO, total_timesteps=256, evaluation={"every": 128, "episodes": 6})
    train(tmp_path, spec)
    lines = [line for line in read_metrics(tmp_path) if "evaluation_return" in line]
    assert [line["timestep"] for line in lines] == [128, 256]
    assert all(line["evaluation_length"] == 10 for line in lines)


def test_dqn_refuses_continuous_actions_in_one_sentence(tmp_path):
    with pytest.raises(UserError) as error:
        train(tmp_path, experiment("Pendulum-v1", "dqn"))
    assert str(error.value) == (
        'agent "dqn" needs discrete actions, but Pendulum-v1 has continuous actions; use "sac", "td3" or "ppo"'
    )
