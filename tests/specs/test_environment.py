import pytest

from steppe.errors import SpecError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.loading.validation import validate


@pytest.mark.parametrize(
    "written",
    [
        "CartPole-v1",
        {"id": "CartPole-v1"},
        {"gym_id": "CartPole-v1"},
        {"type": "CartPole-v1"},
        {"type": "tensorforce.contrib.openai_gym.OpenAIGym", "gym_id": "CartPole-v1"},
    ],
)
def test_an_environment_can_be_spelled_in_several_ways(written):
    assert validate(EnvironmentSpec, written) == EnvironmentSpec(id="CartPole-v1")


def test_two_environments_at_once_are_refused():
    with pytest.raises(SpecError) as error:
        validate(EnvironmentSpec, {"id": "CartPole-v1", "gym_id": "Pendulum-v1"}, source="env.json")
    assert str(error.value) == (
        'unknown field "gym_id" in env.json at gym_id; the fields are id, backend, settings, '
        "wrappers, normalize_observations, normalize_rewards, vectorization"
    )


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({}, 'missing field "id" in env.json; it has no default, so it must be given'),
        ({"id": 5}, "wrong value 5 in env.json at id; it must be text in quotes"),
        ({"id": ""}, 'wrong value "" in env.json at id; it must not be empty'),
        ({"id": "a", "backend": "gym"}, 'unknown value "gym" in env.json at backend; did you mean "gymnasium"?'),
        ({"id": "a", "settings": [1]}, "wrong value [1] in env.json at settings; it must be an object"),
        (["CartPole-v1"], 'wrong value ["CartPole-v1"] in env.json; it must be an object'),
    ],
)
def test_a_mistake_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        validate(EnvironmentSpec, written, source="env.json")
    assert str(error.value) == sentence
