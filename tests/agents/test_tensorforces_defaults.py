"""Agents in files for TensorForce have TensorForce's defaults."""

from __future__ import annotations

from typing import Any

import pytest

from steppe import agents, runners
from steppe.agents._base import AgentContext
from steppe.errors import SpecError
from steppe.spec_files import read_agent, read_experiment
from steppe.specs.experiment import dump
from steppe.specs.spaces import Box, Discrete
from steppe.tensorforce import translate_agent

REPLAY: dict[str, Any] = {
    "discount": 0.99,
    "optimizer": {"type": "adam", "epsilon": 1e-8},
    "learning_rate": 0.001,
    "max_gradient_norm": None,
    "batch_size": 32,
    "update_frequency": 4,
    "updates": 1,
    "learning_starts": 0,
    "n_step": 1,
    "memory.type": "replay",
    "memory.capacity": 32_000,
    "target_sync_frequency": 2_500,  # 10,000 timesteps
    "target_update_weight": 1.0,
    "exploration.type": "constant",
    "exploration.constant": 0.0,
}
GRADIENT: dict[str, Any] = {
    "discount": 0.99,
    "gae_lambda": 1.0,
    "learning_rate": 0.001,
    "entropy_coefficient": 0.0,
    "normalize_advantages": False,
    "rollout_episodes": 10,
    "rollout_timesteps": 10_000,
    "baseline.type": "none",
}
LATEST: dict[str, dict[str, Any]] = {
    "dqn": REPLAY | {"double": False, "dueling": False, "huber": False, "quantiles": 1, "noisy": False},
    "ddqn": REPLAY | {"double": True, "dueling": False, "huber": False},
    "dqn_nstep": {name: value for name, value in REPLAY.items() if name != "n_step"}
    | {"double": False, "huber": False},
    "naf": REPLAY | {"double": False, "huber": False},
    "dqfd": REPLAY
    | {"double": True, "huber": False, "expert_margin": 0.5, "supervised_weight": 0.1, "n_step_weight": 0.0}
    | {"demo_memory_capacity": 10_000, "demo_sampling_ratio": 0.2},
    "ddpg": REPLAY
    | {"batch_size": 10, "update_frequency": 10, "memory.capacity": 10_000, "target_sync_frequency": 1_000}
    | {"critic_learning_rate": 0.001, "critic_optimizer": {"type": "adam", "epsilon": 1e-8}},
    "ppo": GRADIENT
    | {"optimizer": {"type": "adam", "epsilon": 1e-8}, "max_gradient_norm": None, "clip": 0.2}
    | {"optimization_steps": 50, "subsampling_fraction": 0.1},
    "vpg": GRADIENT | {"optimizer": {"type": "adam", "epsilon": 1e-8}, "max_gradient_norm": None},
    "trpo": GRADIENT | {"cg_max_iterations": 10, "cg_damping": 0.001, "ls_max_iterations": 10, "ls_accept_ratio": 0.9},
}
"""The defaults of TensorForce 0.4.4."""
FLAT: dict[str, dict[str, Any]] = {
    "dqn": LATEST["dqn"] | {"learning_starts": 10_000, "memory.capacity": 100_000},
    "ddqn": LATEST["ddqn"] | {"learning_starts": 10_000, "memory.capacity": 100_000},
    "naf": LATEST["naf"] | {"learning_starts": 10_000, "memory.capacity": 100_000},
    "ppo": LATEST["ppo"]
    | {"rollout_episodes": None, "rollout_timesteps": 1_000, "clip": 1e9, "learning_rate": 2.5e-4}
    | {"entropy_coefficient": 0.01, "optimization_steps": 10, "subsampling_fraction": 1.0},
    "vpg": LATEST["vpg"] | {"rollout_episodes": None, "rollout_timesteps": 1_000},
    "trpo": LATEST["trpo"] | {"rollout_episodes": None, "rollout_timesteps": 1_000, "cg_max_iterations": 20},
}
"""The defaults of TensorForce 0.3.5."""


def read(given: dict[str, Any] | str) -> Any:
    spec = read_agent(given)
    return spec.settings_as(agents.settings_class(spec.type))


def told(settings: Any, names: Any) -> dict[str, Any]:
    """The settings of these names; nested ones are named like `memory.capacity`."""
    written = settings.model_dump()
    found = {}
    for name in names:
        first, _, inner = name.partition(".")
        value = written[first][inner] if inner else written[first]
        found[name] = {key: value[key] for key in ("type", "epsilon")} if name.endswith("optimizer") else value
    return found


def needed(name: str) -> dict[str, Any]:
    return {"demonstrations": "shown.safetensors"} if name == "dqfd" else {}


@pytest.mark.parametrize("name", LATEST)
@pytest.mark.parametrize("ending", ["_agent", "Agent"])
def test_an_old_agent_is_by_default_what_it_was_in_tensorforce(name: str, ending: str) -> None:
    written = f"{name}_agent" if ending == "_agent" else f"tensorforce.agents.{name}Agent"
    given = read_agent({"type": written, **needed(name)})
    settings = given.settings_as(agents.settings_class(name))
    assert told(settings, LATEST[name]) == LATEST[name]
    # The settings that a run writes have the same defaults.
    assert read_agent(given.model_dump()).settings_as(agents.settings_class(name)) == settings


@pytest.mark.parametrize("name", FLAT)
def test_an_agent_of_a_flat_file_is_what_it_was_before_update_mode(name: str) -> None:
    word = {"first_update": 10_000} if "update_frequency" in LATEST[name] else {"keep_last_timestep": True}
    assert told(read({"type": f"{name}_agent", **word}), FLAT[name]) == FLAT[name]


@pytest.mark.parametrize("name", ["dqn", "ppo", "ddpg"])
def test_an_agent_by_its_own_name_keeps_its_own_defaults(name: str) -> None:
    spec = read_agent(name)
    assert spec.settings_as(agents.settings_class(name)) == agents.settings_class(name)()
    assert spec.model_dump() == {"type": name}
    # A single name of TensorForce's is just another name of a setting.
    other = {"dqn": {"huber_loss": 1.0}, "ppo": {"entropy_regularization": 0.1}, "ddpg": {"update_mode": {}}}[name]
    assert not read_agent({"type": name, **other}).is_for_tensorforce


def test_two_words_tell_a_file_for_tensorforce_without_its_ending() -> None:
    spec = {"type": "dqn", "update_mode": {"batch_size": 64, "frequency": 4}, "actions_exploration": "epsilon_decay"}
    settings = read(spec)
    assert (settings.n_step, settings.double, settings.huber, settings.max_gradient_norm) == (1, False, False, None)
    assert (settings.batch_size, settings.memory.capacity, settings.exploration.type) == (64, 64_000, "epsilon_decay")


def test_defaults_that_followed_from_other_settings_do_so_here() -> None:
    # Without a frequency there was one update for each batch, and the target counted timesteps.
    mode = {"unit": "timesteps", "batch_size": 20}
    settings = read({"type": "dqn_agent", "update_mode": mode})
    assert (settings.update_frequency, settings.memory.capacity, settings.target_sync_frequency) == (20, 20_000, 500)
    settings = read({"type": "dqn_agent", "target_sync_frequency": 1000})
    assert settings.target_sync_frequency == 250
    settings = read({"type": "ppo_agent", "update_mode": {"unit": "episodes", "batch_size": 4}})
    assert (settings.rollout_episodes, settings.rollout_timesteps) == (4, 4000)
    settings = read({"type": "ppo_agent", "update_mode": {"unit": "timesteps", "batch_size": 64}})
    assert (settings.rollout_episodes, settings.rollout_timesteps) == (None, 64)
    settings = read({"type": "vpg_agent", "baseline_mode": "states", "baseline": {"type": "mlp", "sizes": [8]}})
    assert (settings.baseline.type, settings.gae_lambda) == ("mlp", 1.0)
    settings = read({"type": "ppo_agent", "epochs": 3})
    assert (settings.epochs, settings.optimization_steps) == (3, None)


def test_a_memory_that_drew_whole_sequences_draws_at_random_and_says_so() -> None:
    old = {"type": "dqn_agent", "memory": {"type": "replay", "capacity": 500, "random_sampling": False}}
    assert read(old).memory.capacity == 500
    assert translate_agent(old).notices == (
        "memory.random_sampling false has no effect: timesteps are drawn at random, one by one",
    )


def test_null_means_tensorforces_default() -> None:
    null = dict.fromkeys(("update_mode", "memory", "optimizer", "discount", "huber_loss", "actions_exploration"))
    assert read({"type": "dqn_agent", **null}) == read("dqn_agent")


def test_optimizers_are_by_default_what_they_were_there_also_inside_of_others() -> None:
    natural = {"type": "natural_gradient", "learning_rate": 0.01}
    settings = read({"type": "vpg_agent", "optimizer": {"type": "optimized_step", "optimizer": natural}})
    assert (settings.learning_rate, settings.optimizer.ls_accept_ratio) == (0.01, 0.9)
    assert (settings.optimizer.optimizer.cg_max_iterations, settings.optimizer.optimizer.cg_damping) == (20, 0.001)
    optimizer = read(
        {"type": "dqn_agent", "optimizer": {"type": "rmsprop", "learning_rate": 0.01, "decay": 0.5}}
    ).optimizer
    assert (optimizer.decay, optimizer.epsilon) == (0.5, 1e-10)


def test_whoever_wants_steppes_defaults_for_an_old_file_can_say_so() -> None:
    spec = read_agent({"type": "dqn_agent", "huber_loss": None, "defaults_of": "steppe"})
    assert spec.settings_as(agents.settings_class("dqn")) == agents.settings_class("dqn")(huber=False)
    spec = read_agent({"type": "dqn", "defaults_of": "tensorforce"})
    assert spec.settings_as(agents.settings_class("dqn")).n_step == 1


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"type": "dqn", "defaults_of": "sb3"}, 'must be "steppe" or "tensorforce", not "sb3"'),
        ({"type": "sac", "defaults_of": "tensorforce"}, 'TensorForce had no agent "sac"'),
    ],
)
def test_other_defaults_are_refused(agent: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_agent(agent)


def test_one_notice_says_whose_defaults_hold_also_of_a_run_that_is_read_again() -> None:
    agent = {"type": "ppo_agent", "update_mode": {"unit": "timesteps", "batch_size": 64}}
    spec = read_experiment({"name": "a", "environment": "ALE/Pong-v5", "agent": agent})
    again = read_experiment(dump(spec))
    for each in (spec, again):
        (notice,) = [notice for notice in agents.notices(each, 8) if "TensorForce" in notice]
        assert "defaults_of" in notice
        # Only Steppe has separate defaults for Atari.
        assert each.agent.settings_as(agents.settings_class("ppo")).learning_rate == 0.001
    assert not agents.notices(read_experiment({"name": "a", "environment": "ALE/Pong-v5", "agent": "ppo"}), 8)


ACTIONS = {"ddpg": Box((1,), (-1.0,), (1.0,)), "naf": Box((1,), (-1.0,), (1.0,))}


@pytest.mark.parametrize("name", [name for name in LATEST if name != "dqfd"])
def test_every_old_agent_can_be_made(name: str) -> None:
    observation = Box((4,), (-1.0,) * 4, (1.0,) * 4)
    context = AgentContext(observation, ACTIONS.get(name, Discrete(2)), num_envs=1)
    assert agents.make(read_agent(f"{name}_agent"), context).type == name


def test_whole_episodes_come_from_one_environment_so_that_old_networks_may_remember() -> None:
    lstm = [{"type": "dense", "size": 4}, {"type": "internal_lstm", "size": 4}]
    given = {"name": "a", "environment": "CartPole-v1", "agent": {"type": "vpg_agent"}, "network": lstm}
    runners.check(read_experiment(given))
    assert read_agent("ppo_agent").defaults.num_envs == 1
    by_timesteps = {"type": "ppo_agent", "update_mode": {"unit": "timesteps", "batch_size": 64}}
    assert read_agent(by_timesteps).defaults.num_envs is None
