from typing import Literal

import pytest
from pydantic import AliasChoices, Field

from steppe.errors import SpecError
from steppe.specs._base import Count, Flag, Natural, NonNegative, Number, Positive, Settings, Unit
from steppe.specs.loading.validation import Origins, unknown_word, validate


class Inner(Settings):
    """Nested settings for these tests."""

    size: Count = 1
    kind: Literal["fast", "slow"] = "fast"


class Outer(Settings):
    """Settings of every type for these tests."""

    count: Count = 1
    natural: Natural = 0
    unit: Unit = 0.5
    positive: Positive = 1.0
    non_negative: NonNegative = 0.0
    number: Number = 0.0
    flag: Flag = False
    text: str = ""
    words: list[str] = []  # noqa: RUF012
    inner: Inner = Inner()
    by_name: dict[str, Inner] = {}  # noqa: RUF012
    maybe: Inner | None = None
    learning_rate: Positive = Field(1e-3, validation_alias=AliasChoices("learning_rate", "lr"))


def sentence_of(data, **where):
    with pytest.raises(SpecError) as error:
        validate(Outer, data, **where)
    return str(error.value)


def test_a_right_value_comes_back_as_the_model():
    assert validate(Outer, {"count": 3, "inner": {"size": 2}}).inner.size == 2


@pytest.mark.parametrize("written", [1e6, 1_000_000])
def test_a_whole_number_may_be_written_with_an_exponent_or_a_point(written):
    count = validate(Outer, {"count": written}).count
    assert count == 1_000_000
    assert type(count) is int


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"cuont": 1}, 'unknown field "cuont" in a.json at cuont; did you mean "count"?'),
        ({"inner": {"sizes": 1}}, 'unknown field "sizes" in a.json at inner.sizes; did you mean "size"?'),
        ({"maybe": {"sizes": 1}}, 'unknown field "sizes" in a.json at maybe.sizes; did you mean "size"?'),
        ({"by_name": {"x": {"zzz": 1}}}, 'unknown field "zzz" in a.json at by_name.x.zzz; the fields are size, kind'),
        ({"count": "many"}, 'wrong value "many" in a.json at count; it must be a whole number'),
        ({"count": "10"}, 'wrong value "10" in a.json at count; it must be a whole number'),
        ({"count": 1.5}, "wrong value 1.5 in a.json at count; it must be a whole number"),
        ({"count": True}, "wrong value true in a.json at count; it must be a whole number"),
        ({"count": None}, "wrong value null in a.json at count; it must be a whole number"),
        ({"count": 0}, "wrong value 0 in a.json at count; it must be at least 1"),
        ({"natural": -1}, "wrong value -1 in a.json at natural; it must be at least 0"),
        ({"unit": 1.01}, "wrong value 1.01 in a.json at unit; it must be at most 1"),
        ({"unit": True}, "wrong value true in a.json at unit; it must be a number"),
        ({"positive": 0}, "wrong value 0 in a.json at positive; it must be more than 0"),
        ({"lr": 0}, "wrong value 0 in a.json at lr; it must be more than 0"),
        ({"non_negative": -0.5}, "wrong value -0.5 in a.json at non_negative; it must be at least 0"),
        ({"number": "1"}, 'wrong value "1" in a.json at number; it must be a number'),
        ({"number": float("inf")}, "wrong value Infinity in a.json at number; it must be a finite number"),
        ({"flag": "maybe"}, 'wrong value "maybe" in a.json at flag; it must be true or false'),
        ({"flag": 1}, "wrong value 1 in a.json at flag; it must be true or false"),
        ({"flag": "yes"}, 'wrong value "yes" in a.json at flag; it must be true or false'),
        ({"flag": []}, "wrong value [] in a.json at flag; it must be true or false"),
        ({"text": 5}, "wrong value 5 in a.json at text; it must be text in quotes"),
        ({"words": "a"}, 'wrong value "a" in a.json at words; it must be a list'),
        ({"words": ["a", 5]}, "wrong value 5 in a.json at words[1]; it must be text in quotes"),
        ({"inner": 5}, "wrong value 5 in a.json at inner; it must be an object"),
        ({"by_name": 5}, "wrong value 5 in a.json at by_name; it must be an object"),
        ({"inner": {"kind": "fats"}}, 'unknown value "fats" in a.json at inner.kind; did you mean "fast"?'),
        ({"inner": {"kind": "x"}}, 'unknown value "x" in a.json at inner.kind; it must be one of "fast", "slow"'),
        ({"inner": {"kind": 5}}, 'unknown value 5 in a.json at inner.kind; it must be one of "fast", "slow"'),
        (5, "wrong value 5 in a.json; it must be an object"),
        (None, "wrong value null in a.json; it must be an object"),
        (
            {"text": list(range(99))},
            "wrong value [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16... in a.json at text; "
            "it must be text in quotes",
        ),
    ],
)
def test_one_mistake_is_one_sentence(data, sentence):
    assert sentence_of(data, source="a.json") == sentence


def test_without_a_source_the_path_alone_is_named():
    assert sentence_of({"inner": {"size": 0}}) == "wrong value 0 at inner.size; it must be at least 1"
    assert sentence_of(5) == "wrong value 5; it must be an object"


def test_the_path_of_the_whole_comes_before_the_path_inside():
    assert sentence_of({"words": [5]}, source="a.json", path="agent") == (
        "wrong value 5 in a.json at agent.words[0]; it must be text in quotes"
    )


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"count": 0, "unit": 2}, "wrong value 0 at count; it must be at least 1 (and 1 more mistake)"),
        ({"count": 0, "unit": 2, "text": 5}, "wrong value 0 at count; it must be at least 1 (and 2 more mistakes)"),
        ({"count": 0, "uint": 1}, 'unknown field "uint" at uint; did you mean "unit"? (and 1 more mistake)'),
    ],
)
def test_of_several_mistakes_the_first_is_named_and_the_rest_are_counted(data, sentence):
    assert sentence_of(data) == sentence


def test_a_part_from_elsewhere_is_named_where_it_was_written():
    origins = (
        Origins("a.json").with_part(("inner",), "inner.json", "").with_part(("inner", "kind"), "--set", "inner.kind")
    )
    assert sentence_of({"count": 0}, source=origins) == "wrong value 0 in a.json at count; it must be at least 1"
    assert sentence_of({"inner": 5}, source=origins) == "wrong value 5 in inner.json; it must be an object"
    assert sentence_of({"inner": {"size": 0}}, source=origins) == (
        "wrong value 0 in inner.json at size; it must be at least 1"
    )
    assert sentence_of({"inner": {"kind": "slwo"}}, source=origins) == (
        'unknown value "slwo" in --set at inner.kind; did you mean "slow"?'
    )


def test_the_origins_of_a_part_stand_alone():
    origins = Origins("a.json").with_part(("x", "y"), "y.json", "deep").below("x")
    assert origins.place("z") == " in a.json at x.z"
    assert origins.place("y", 2, "q") == " in y.json at deep[2].q"
    assert origins.below("y").place() == " in y.json at deep"


def test_a_part_written_again_replaces_all_that_was_inside_it():
    origins = Origins("a.json").with_part(("x", "y"), "--set", "x.y").with_part(("x",), "x.json", "")
    assert origins.place("x", "y") == " in x.json at y"


def test_an_unknown_agent_reads_as_the_style_guide_says():
    error = unknown_word(
        "agent", "pppo", ["dqn", "ppo"], source="experiments/a.json", path="agent.type", listed_by="steppe agents"
    )
    assert isinstance(error, SpecError)
    assert str(error) == (
        'unknown agent "pppo" in experiments/a.json at agent.type; did you mean "ppo"? ("steppe agents" lists them)'
    )


def test_an_unknown_word_with_nothing_near_still_shows_a_way_out():
    assert str(unknown_word("agent", "zzz", ["dqn", "ppo"], listed_by="steppe agents")) == (
        'unknown agent "zzz"; "steppe agents" lists them'
    )
    assert str(unknown_word("kind", "zzz", ["a", "b"], source=Origins("x.json", "k"), path="type")) == (
        'unknown kind "zzz" in x.json at k.type; it must be "a" or "b"'
    )
