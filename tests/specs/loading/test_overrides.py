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
