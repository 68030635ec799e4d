import pytest

from steppe.errors import SpecError
from steppe.specs._base import Settings, Unit
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.loading.validation import Origins, validate


class Learner(Settings):
    """The settings of an agent for these tests."""

    discount: Unit = 0.99


def test_a_plain_string_is_the_type():
    assert validate(AgentSpec, "ppo") == AgentSpec(type="ppo")


def test_defaults_that_are_not_written_out_are_refused():
    with pytest.raises(SpecError, match="defaults of TensorForce are missing"):
        validate(AgentSpec, {"type": "ppo", "defaults_of": "tensorforce"})


def test_further_keys_are_settings_in_their_order():
    agent = validate(AgentSpec, {"zeta": 1, "type": "dqn", "alpha": {"b": [1, None]}})
    assert list(agent.settings.items()) == [("zeta", 1), ("alpha", {"b": [1, None]})]
    assert agent.model_dump(mode="json") == {"type": "dqn", "zeta": 1, "alpha": {"b": [1, None]}}


def test_settings_become_the_agents_own_model():
    assert validate(AgentSpec, {"type": "x", "discount": 0.5}).settings_as(Learner) == Learner(discount=0.5)


def test_errors_in_settings_name_where_they_were_written():
    agent = validate(AgentSpec, {"type": "x", "discont": 0.5})
    agent.written_in(Origins("a.json", "agent"))
    with pytest.raises(SpecError) as error:
        agent.settings_as(Learner)
    assert str(error.value) == 'unknown field "discont" in a.json at agent.discont; did you mean "discount"?'


def test_where_it_was_written_is_no_part_of_its_value():
    one, other = validate(AgentSpec, "ppo"), validate(AgentSpec, "ppo")
    one.written_in(Origins("a.json", "agent"))
    assert one == other


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"discount": 1}, 'missing field "type" in agent.json; it has no default, so it must be given'),
        ({"type": None}, "wrong value null in agent.json at type; it must be text in quotes"),
        (3, "wrong value 3 in agent.json; it must be an object"),
    ],
)
def test_a_mistake_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        validate(AgentSpec, written, source="agent.json")
    assert str(error.value) == sentence
