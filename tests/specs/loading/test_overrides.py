import pytest

from steppe.errors import SpecError
from steppe.specs.loading.overrides import apply_overrides

DATA = {"name": "a", "agent": {"type": "ppo", "clip": 0.2}, "network": [{"type": "dense", "size": 64}], "seed": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=0.97", 0.97),
        ("x=32", 32),
        ("x=1e6", 1e6),
        ("x=true", True),
        ("x=True", True),
        ("x=null", None),
        ("x=None", None),
        ("x=[1, 2]", [1, 2]),
        ('x={"a": 1}', {"a": 1}),
        ("x=adam", "adam"),
        ('x="5"', "5"),
        ("x=", ""),
        ("x=a=b", "a=b"),
        ("x = 3", 3),
        ("x=NaN", "NaN"),
        ("x=1e999", "1e999"),
        ("x=[broken", "[broken"),
    ],
)
def test_a_value_is_json_or_else_text(text, value):
    result = apply_overrides({}, [text])["x"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("path", ["network.0.size", "network[0].size"])
def test_a_path_goes_into_lists(path):
    assert apply_overrides(DATA, [f"{path}=32"])["network"] == [{"type": "dense", "size": 32}]


def test_a_path_makes_the_objects_it_needs():
    assert apply_overrides({"evaluation": None}, ["evaluation.every=500", "a.b.c=1"]) == {
        "evaluation": {"every": 500},
        "a": {"b": {"c": 1}},
    }


def test_the_last_of_several_wins_and_the_original_is_untouched():
    changed = apply_overrides(DATA, ["agent.clip=0.1", "agent.clip=0.3"])
    assert changed["agent"] == {"type": "ppo", "clip": 0.3}
    assert DATA["agent"] == {"type": "ppo", "clip": 0.2}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "agent.discount",
            'cannot understand --set "agent.discount"; write --set PATH=VALUE, such as --set agent.discount=0.97',
        ),
        ("=5", 'cannot understand the path "" in --set "=5"; write it like agent.discount'),
        (
            "agent..clip=5",
            'cannot understand the path "agent..clip" in --set "agent..clip=5"; write it like agent.discount',
        ),
        ("name.x=5", 'cannot set "name.x=5": name is "a", which has no fields'),
        ("network.size=5", 'cannot set "network.size=5": network is a list, so a number must stand in place of "size"'),
        ("network.3.size=5", 'cannot set "network.3.size=5": network has 1 items, counted from 0'),
        ("network.1=5", 'cannot set "network.1=5": network has 1 items, counted from 0'),
        ("layers.0.size=5", 'cannot set "layers.0.size=5": there is no list at layers'),
    ],
)
def test_a_mistake_is_named(text, sentence):
    with pytest.raises(SpecError) as error:
        apply_overrides(DATA, [text])
    assert str(error.value) == sentence


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
    agent = apply_overrides({"agent": OLD}, [text])["agent"]
    assert set(agent) == set(OLD) | ({"n_step"} & set(keys))
    for key in keys:
        agent = agent[key]
    assert agent == 16


def test_an_override_in_an_old_word_replaces_the_new_one():
    assert apply_overrides({"agent": {"type": "dqn", "discount": 0.9}}, ["agent.gamma=0.5"])["agent"]["discount"] == 0.5
    assert apply_overrides({"agent": {"type": "dqn"}}, ["agent.gamma=0.5"])["agent"] == {"type": "dqn", "gamma": 0.5}


def test_episodes_and_timesteps_of_a_rollout_are_told_apart():
    old = {"type": "ppo", "update_mode": {"unit": "episodes", "batch_size": 5}, "memory": {"capacity": 50}}
    sets = ["agent.rollout_episodes=6", "agent.rollout_timesteps=60"]
    assert apply_overrides({"agent": old}, sets)["agent"] == {
        "type": "ppo",
        "update_mode": {"unit": "episodes", "batch_size": 6},
        "memory": {"capacity": 60},
    }


def test_an_override_in_timesteps_does_not_replace_what_an_old_file_says_in_episodes():
    old = {"type": "dqn_nstep", "update_mode": {"unit": "episodes", "batch_size": 5, "frequency": 5, "first_update": 5}}
    new = {"batch_size": 6, "update_frequency": 6, "learning_starts": 6}
    assert apply_overrides({"agent": old}, [f"agent.{name}=6" for name in new])["agent"] == old | new
