"""Defaults by the kind of environment, and the precedence of settings."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from steppe import agents
from steppe.runners.engines.distributed.plan import worker_spec
from steppe.runners.setup import num_envs_of
from steppe.spec_files import read_experiment
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec, dump
from steppe.specs.learning import defaults_by_kind
from steppe.specs.learning.defaults_by_kind import TABLE, Defaults, kind_of


def spec_of(environment: Any, agent: Any, **fields: Any) -> ExperimentSpec:
    return read_experiment({"name": "x", "environment": environment, "agent": agent, **fields})


def settings_of(spec: ExperimentSpec) -> Any:
    return spec.agent.settings_as(agents.agent_class(spec.agent).Settings)


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ("ALE/Pong-v5", "pictures"),
        ({"id": "ALE/Pong-v5", "backend": "gymnasium", "settings": {"obs_type": "ram"}}, "other"),
        ("HalfCheetah-v5", "control"),
        ("Humanoid-v5", "control"),
        ("BipedalWalker-v3", "control"),
        ("Pendulum-v1", "control"),
        ("LunarLander-v3", "control"),
        ("MountainCar-v0", "control"),
        ("MountainCarContinuous-v0", "far_goal"),
        ({"id": "LunarLander-v3", "settings": {"continuous": True}}, "control"),
        ("CartPole-v1", "other"),
        ("MiniGrid-DoorKey-5x5-v0", "other"),
        ("my_module:Pong", "other"),
    ],
)
def test_the_kind_follows_from_the_id(environment: Any, kind: str) -> None:
    assert kind_of(EnvironmentSpec.model_validate(environment)) == kind


def test_dqn_takes_ataris_defaults_in_atari_games_only() -> None:
    atari, cartpole = settings_of(spec_of("ALE/Pong-v5", "dqn")), settings_of(spec_of("CartPole-v1", "dqn"))
    assert (atari.batch_size, atari.learning_rate, atari.memory.capacity) == (32, 1e-4, 100_000)
    assert (atari.exploration.timesteps, atari.exploration.final_epsilon) == (250_000, 0.01)
    assert cartpole == agents.settings_class("dqn")()


def test_what_the_user_gives_wins_and_alone_counts_as_given() -> None:
    agent = {"type": "dqn", "update_mode": {"batch_size": 7}, "memory": "prioritized_replay", "exploration": "constant"}
    settings = settings_of(spec_of("ALE/Pong-v5", agent))
    assert (settings.batch_size, settings.exploration.type) == (7, "constant")
    assert (settings.memory.type, settings.memory.capacity) == ("prioritized_replay", 100_000)
    assert settings.model_fields_set == {"batch_size", "memory", "exploration"}


def test_the_file_of_a_run_has_only_what_was_given_and_loads_with_the_same_defaults() -> None:
    spec = spec_of("ALE/Pong-v5", {"type": "dqn", "double": False})
    assert dump(spec)["agent"] == {"type": "dqn", "double": False}
    again = read_experiment(dump(spec))
    assert again == spec
    assert settings_of(again) == settings_of(spec)


def test_workers_elsewhere_have_the_same_defaults() -> None:
    spec = spec_of("ALE/Pong-v5", "dqn", run_mode="distributed", num_workers=2)
    mine, theirs = settings_of(spec), settings_of(pickle.loads(pickle.dumps(worker_spec(spec))))
    assert theirs.model_copy(update={"memory": mine.memory}).model_dump() == mine.model_dump()
    assert theirs.memory.capacity == 50_000


def test_fields_of_the_environment_and_the_number_of_environments_may_differ_too(monkeypatch: Any) -> None:
    defaults = Defaults({}, num_envs=3, environment={"normalize_observations": True, "normalize_rewards": True})
    monkeypatch.setitem(TABLE, "ppo", {"control": defaults})  # type: ignore[arg-type]
    spec = spec_of({"id": "Hopper-v5", "normalize_rewards": False}, "ppo")
    assert num_envs_of(spec) == 3
    assert num_envs_of(spec_of("Hopper-v5", "ppo", num_envs=2)) == 2
    assert (spec.environment.normalize_observations, spec.environment.normalize_rewards) == (True, False)
    assert not spec_of("CartPole-v1", "ppo").environment.normalize_observations


@pytest.mark.parametrize(("agent", "kind"), [(agent, kind) for agent, row in TABLE.items() for kind in row])
def test_the_table_holds_what_the_agent_understands(agent: str, kind: str) -> None:
    defaults = TABLE[agent][kind]  # type: ignore[index]
    model = agents.settings_class(agent)
    settings = defaults_by_kind.with_defaults(model, defaults.settings)()
    assert settings.model_fields_set == set()
    given = model.model_validate(defaults.settings)
    assert settings.model_dump() == given.model_dump()
    # A row changes settings of the agent or of its environment.
    assert settings.model_dump() != model().model_dump() or any(defaults.environment.values())
    assert set(defaults.environment) <= {"normalize_observations", "normalize_rewards"}


def test_ppo_normalises_control_and_nothing_else() -> None:
    normalized = {"Pendulum-v1": True, "HalfCheetah-v5": True, "LunarLander-v3": True, "MountainCar-v0": True}
    normalized["MountainCarContinuous-v0"] = True
    for id, is_normalized in (normalized | {"CartPole-v1": False, "ALE/Pong-v5": False}).items():
        environment = spec_of(id, "ppo").environment
        assert (environment.normalize_observations, environment.normalize_rewards) == (is_normalized, is_normalized)
    assert not spec_of("Pendulum-v1", "sac").environment.normalize_observations


def test_sac_draws_its_actions_with_drifting_noise_where_the_goal_is_far_away_unless_it_is_told_otherwise() -> None:
    far = settings_of(spec_of("MountainCarContinuous-v0", "sac"))
    assert (far.drifting_noise.theta, far.drifting_noise.sigma) == (0.05, 0.3)
    assert (
        settings_of(spec_of("MountainCarContinuous-v0", {"type": "sac", "drifting_noise": None})).drifting_noise is None
    )
    assert settings_of(spec_of("Pendulum-v1", "sac")).drifting_noise is None
