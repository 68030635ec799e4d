import copy

import pytest

from steppe.specs.loading.overrides import parse_override, put
from steppe.tensorforce import as_written


def overridden(agent, *texts):
    """The agent after each `--set agent.name=value`."""
    data = {"agent": copy.deepcopy(agent)}
    for text in texts:
        (_, *path), value = parse_override(text)
        put(data, ("agent", *as_written(data["agent"], tuple(path))), value, text)
    return data["agent"]


OLD = {
    "type": "dqn",
    "update_mode": {"unit": "timesteps", "batch_size": 64, "frequency": 4},
    "optimizer": {"type": "clipped_step", "clipping_value": 0.1, "optimizer": {"type": "adam", "learning_rate": 1e-3}},
    "actions_exploration": {"type": "epsilon_decay", "initial_epsilon": 1.0},
    "gamma": 0.9,
}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("agent.batch_size=16", ("update_mode", "batch_size")),
        ("agent.update_frequency=16", ("update_mode", "frequency")),
        ("agent.learning_rate=16", ("optimizer", "optimizer", "learning_rate")),
        ("agent.exploration.initial_epsilon=16", ("actions_exploration", "initial_epsilon")),
        ("agent.exploration=16", ("actions_exploration",)),
        ("agent.discount=16", ("gamma",)),
        ("agent.gamma=16", ("gamma",)),
        ("agent.n_step=16", ("n_step",)),
    ],
)
def test_an_override_replaces_what_an_old_file_says_in_its_own_word(text, keys):
    agent = overridden(OLD, text)
    assert set(agent) == set(OLD) | ({"n_step"} & set(keys))
    for key in keys:
        agent = agent[key]
    assert agent == 16


def test_an_override_in_an_old_word_replaces_the_new_one():
    assert overridden({"type": "dqn", "discount": 0.9}, "agent.gamma=0.5")["discount"] == 0.5
    assert overridden({"type": "dqn"}, "agent.gamma=0.5") == {"type": "dqn", "gamma": 0.5}


def test_episodes_and_timesteps_of_a_rollout_are_told_apart():
    old = {"type": "ppo", "update_mode": {"unit": "episodes", "batch_size": 5}, "memory": {"capacity": 50}}
    sets = ["agent.rollout_episodes=6", "agent.rollout_timesteps=60"]
    assert overridden(old, *sets) == {
        "type": "ppo",
        "update_mode": {"unit": "episodes", "batch_size": 6},
        "memory": {"capacity": 60},
    }


def test_an_override_in_timesteps_does_not_replace_what_an_old_file_says_in_episodes():
    old = {"type": "dqn_nstep", "update_mode": {"unit": "episodes", "batch_size": 5, "frequency": 5, "first_update": 5}}
    new = {"batch_size": 6, "update_frequency": 6, "learning_starts": 6}
    assert overridden(old, *(f"agent.{name}=6" for name in new)) == old | new
