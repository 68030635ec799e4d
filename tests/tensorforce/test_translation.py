"""Old files are translated once: the result has only today's words, and translating it again does not change it."""

from __future__ import annotations

from typing import Any

import pytest

from steppe import agents
from steppe.errors import SpecError
from steppe.spec_files import read_agent, read_experiment
from steppe.specs.experiment import ExperimentSpec, dump
from steppe.tensorforce import known_settings, translate, translate_agent
from steppe.tensorforce.renamed import SAME_THING

OLD: dict[str, Any] = {
    "type": "dqn_agent",
    "update_mode": {"unit": "timesteps", "batch_size": 8, "frequency": 4},
    "target_sync_frequency": 1000,
    "actions_exploration": {"type": "epsilon_anneal", "initial_epsilon": 0.5},
    "states_preprocessing": {"state": ["grayscale"]},
    "saver": {"directory": None, "seconds": 300},
}


@pytest.mark.parametrize("name", agents.names())
def test_the_front_end_knows_the_settings_of_every_agent(name: str) -> None:
    fields = agents.settings_class(name).model_fields
    assert known_settings.AGENTS[name] == set(fields)
    for setting, value in known_settings.DEFAULTS.get(name, {}).items():
        assert fields[setting].default == value


def test_an_old_experiment_is_written_down_in_todays_words() -> None:
    spec = read_experiment({"name": "a", "environment": "Pendulum-v0", "agent": OLD, "timesteps": 9})
    written = dump(spec)
    assert written["environment"]["id"] == "Pendulum-v1"
    assert not {*SAME_THING, "update_mode", "saver"} & set(written["agent"]) - {"batch_size"}
    assert (written["agent"]["target_sync_frequency"], written["agent"]["update_frequency"]) == (250, 4)
    # Specs read the result without the front end, as workers do.
    alone = ExperimentSpec.model_validate(written)
    model = agents.settings_class("dqn")
    assert alone.agent.settings_as(model) == spec.agent.settings_as(model)


@pytest.mark.parametrize(
    "agent",
    [
        OLD,
        "ppo_agent",
        {"type": "vpg_agent", "baseline_mode": "states", "update_mode": {"unit": "episodes", "batch_size": 5}},
        {"type": "dqn", "defaults_of": "tensorforce", "target_sync_frequency": 1000},
        {"type": "dqn", "update_mode": {"frequency": 4}, "target_sync_frequency": 1000},
        {"type": "ddpg_agent", "critic_network": {"size_t0": 8, "size_t1": 8}},
    ],
)
def test_a_translation_stays_the_same_when_it_is_translated_again(agent: Any) -> None:
    data = {"name": "a", "environment": "CartPole-v0", "agent": agent}
    once = translate(data)
    assert translate(once.data).data == once.data


def test_todays_words_come_out_as_they_went_in() -> None:
    agent = {"type": "dqn", "exploration": "epsilon_decay", "batch_size": 64, "memory": {"capacity": 1000}}
    assert translate_agent(agent) == (agent, (), {})


def test_specs_know_no_old_words() -> None:
    spec = ExperimentSpec.model_validate({"name": "a", "environment": "CartPole-v1", "agent": {"type": "ppo"} | OLD})
    with pytest.raises(SpecError, match="unknown field"):
        spec.agent.settings_as(agents.settings_class("dqn"))


def test_stages_for_the_only_state_are_its_stages() -> None:
    model = agents.settings_class("dqn")
    usual = read_agent({"type": "dqn", "states_preprocessing": ["grayscale"]}).settings_as(model)
    for stages in ("grayscale", ["grayscale"], {"type": "grayscale"}):
        assert read_agent({"type": "dqn", "states_preprocessing": {"state": stages}}).settings_as(model) == usual


def test_stages_for_other_states_are_refused() -> None:
    stages = {"camera": ["grayscale"], "state": ["flatten"]}
    with pytest.raises(SpecError) as error:
        read_agent({"type": "dqn", "states_preprocessing": stages}, "a.json")
    assert str(error.value) == (
        'wrong settings in a.json at states_preprocessing; there is no state "camera" with stages of its own, because '
        "an environment is observed as one state (Dict and Tuple observations become one vector); give one list of "
        'stages, or {"state": [...]}'
    )
