"""TensorForce's words in settings: each is understood or explained, and none is silently ignored."""

from __future__ import annotations

import numpy as np
import pytest

from steppe import agents
from steppe.errors import SpecError
from steppe.specs.agent import AgentSpec
from steppe.specs.spaces import Box, Discrete
from steppe.specs.validation import Origins

PPO = {
    "type": "ppo_agent",
    "update_mode": {"unit": "timesteps", "batch_size": 64, "frequency": 64},
    "memory": {"type": "latest", "include_next_states": False, "capacity": 64},
    "step_optimizer": {"type": "adam", "learning_rate": 0.002},
    "optimization_steps": 25,
    "subsampling_fraction": 0.2,
    "discount": 0.97,
    "entropy_regularization": 0.03,
    "gae_lambda": 0.9,
    "likelihood_ratio_clipping": 0.3,
    "baseline_mode": "states",
    "baseline": {"type": "mlp", "sizes": [16, 16]},
    "baseline_optimizer": {"type": "multi_step", "num_steps": 5, "optimizer": {"type": "adam", "learning_rate": 0.01}},
    "actions_exploration": None,
    "states_preprocessing": None,
    "reward_preprocessing": None,
    "distributions": None,
    "saver": None,
    "summarizer": None,
    "execution": None,
    "device": None,
    "scope": None,
}
DQN = {
    "type": "dqn_agent",
    "update_mode": {"unit": "timesteps", "batch_size": 32, "frequency": 8},
    "memory": {"type": "replay", "capacity": 5000, "include_next_states": True},
    "optimizer": {
        "type": "clipped_step",
        "clipping_value": 0.1,
        "optimizer": {"type": "adam", "learning_rate": 0.002},
    },
    "discount": 0.97,
    "double_q_model": True,
    "huber_loss": 1.5,
    "target_sync_frequency": 100,
    "target_update_weight": 0.9,
    "actions_exploration": {
        "type": "epsilon_anneal",
        "initial_epsilon": 0.5,
        "final_epsilon": 0.05,
        "timesteps": 2000,
    },
    "entropy_regularization": None,
}
DDPG = {
    "type": "ddpg_agent",
    "update_mode": {"unit": "timesteps", "batch_size": 32, "frequency": 2},
    "memory": {"type": "replay", "capacity": 5000, "include_next_states": True},
    "optimizer": {"type": "adam", "learning_rate": 0.0005},
    "critic_network": [{"type": "dense", "size": 8}],
    "critic_optimizer": {"type": "adam", "learning_rate": 0.005},
    "target_sync_frequency": 1,
    "target_update_weight": 0.001,
    "actions_exploration": {"type": "ornstein_uhlenbeck", "sigma": 0.3, "mu": 0.0, "theta": 0.2},
}


def read(given):
    spec = AgentSpec.model_validate(given)
    return spec.settings_as(agents.settings_class(spec.type))


def test_an_old_file_of_ppo_is_understood(make_agent):
    given = read(PPO)
    assert (given.discount, given.gae_lambda, given.clip, given.entropy_coefficient) == (0.97, 0.9, 0.3, 0.03)
    assert (given.optimizer.type, given.learning_rate) == ("adam", 0.002)
    assert (given.optimization_steps, given.subsampling_fraction) == (25, 0.2)
    assert given.share_network is False
    assert [layer.size for layer in given.baseline.layers().root] == [16, 16]
    assert (given.baseline_optimizer.num_steps, given.baseline_learning_rate) == (5, 0.01)
    settings = {name: value for name, value in PPO.items() if name != "type"}
    # 64 timesteps of all environments together.
    for num_envs, horizon in ((2, 32), (5, 13)):
        assert make_agent("ppo", Discrete(2), num_envs=num_envs, **settings).horizon == horizon


def test_an_old_file_of_dqn_is_understood(make_agent):
    given = read(DQN)
    assert (given.batch_size, given.update_frequency) == (32, 8)
    assert (given.memory.type, given.memory.capacity) == ("replay", 5000)
    assert (given.optimizer.type, given.optimizer.clipping_value) == ("clipped_step", 0.1)
    assert (given.optimizer.optimizer.type, given.learning_rate) == ("adam", 0.002)
    assert (given.double, given.huber, given.discount) == (True, 1.5, 0.97)
    assert (given.target_sync_frequency, given.target_update_weight) == (100, 0.9)
    assert given.exploration.epsilon(1000, np) == pytest.approx(0.275)
    agent = make_agent("dqn", Discrete(2), **{name: value for name, value in DQN.items() if name != "type"})
    assert (agent.horizon, agent.memory.capacity) == (8, 5000)


def test_an_old_file_of_ddpg_is_understood(make_agent):
    given = read(DDPG)
    assert (given.batch_size, given.update_frequency) == (32, 2)
    assert (given.learning_rate, given.critic_learning_rate) == (0.0005, 0.005)
    assert given.critic_network.root[0].size == 8
    assert (given.exploration.sigma, given.exploration.theta) == (0.3, 0.2)
    assert given.target_update_weight == 0.001
    bounded = Box((1,), (-1.0,), (1.0,))
    assert make_agent("ddpg", bounded, **{name: value for name, value in DDPG.items() if name != "type"}).horizon == 2


@pytest.mark.parametrize("name", agents.names())
def test_every_agent_may_be_named_with_its_old_ending(name):
    spec = AgentSpec.model_validate(f"{name}_agent")
    assert spec.type == name
    assert agents.agent_class(spec).type == name


SAME = [
    ("ppo", "gamma", 0.9, "discount", 0.9),
    ("dqn", "gamma", 0.9, "discount", 0.9),
    ("ppo", "likelihood_ratio_clipping", 0.1, "clip", 0.1),
    ("vpg", "entropy_regularization", 0.1, "entropy_coefficient", 0.1),
    ("vpg", "entropy_regularization", None, "entropy_coefficient", 0.0),
    ("ppo", "distributions", "beta", "distribution", "beta"),
    ("dqn", "double_q_model", False, "double", False),
    ("dqn", "huber_loss", 2.0, "huber", 2.0),
    ("dqn", "huber_loss", None, "huber", False),
    ("ppo", "baseline_mode", "network", "share_network", True),
    ("ppo", "baseline_mode", "states", "share_network", False),
    ("ppo", "baseline_mode", None, "share_network", None),
    ("ppo", "update_mode", {"unit": "timesteps", "batch_size": 64}, "rollout_timesteps", 64),
    ("dqn", "update_mode", {"batch_size": 64}, "batch_size", 64),
    ("sac", "update_mode", {"frequency": 3}, "update_frequency", 3),
    ("naf", "update_mode", None, "batch_size", 256),
    ("vpg", "gae_lambda", None, "gae_lambda", 1.0),
    ("vpg", "variable_noise", None, "variable_noise", 0.0),
]


@pytest.mark.parametrize(("agent", "word", "value", "setting", "expected"), SAME)
def test_an_old_word_is_the_setting_it_meant(checked, agent, word, value, setting, expected):
    assert getattr(checked(agent, **{word: value}), setting) == expected


def test_no_exploration_in_the_old_files_is_no_exploration(checked):
    given = checked("dqn", actions_exploration=None)
    assert [float(given.exploration.epsilon(timestep, np)) for timestep in (0, 10**6)] == [0.0, 0.0]


def test_no_clipping_in_the_old_files_is_not_the_usual_clipping(checked):
    try:
        given = checked("ppo", likelihood_ratio_clipping=None)
    except SpecError:
        return
    assert given.clip > 1e3


def test_a_setting_that_an_agent_has_not_may_be_null(checked):
    assert checked("dqn", entropy_regularization=None) == checked("dqn")
    assert checked("ppo", actions_exploration=None) == checked("ppo")


@pytest.mark.parametrize(
    ("agent", "old", "new"),
    [
        ("ppo", {"gamma": 0.9}, {"discount": 0.9}),
        ("ppo", {"likelihood_ratio_clipping": 0.1}, {"clip": 0.1}),
        ("ppo", {"step_optimizer": "adam"}, {"optimizer": "adam"}),
        ("dqn", {"double_q_model": True}, {"double": True}),
        ("dqn", {"huber_loss": 1.0}, {"huber": True}),
        ("dqn", {"actions_exploration": "constant"}, {"exploration": "constant"}),
        ("dqn", {"update_mode": {"batch_size": 8}}, {"batch_size": 8}),
        ("dqn", {"update_mode": {"frequency": 8}}, {"update_frequency": 8}),
        ("ppo", {"update_mode": {"batch_size": 8}}, {"rollout_timesteps": 8}),
        ("ppo", {"update_mode": {"unit": "episodes", "batch_size": 8}}, {"rollout_episodes": 8}),
        ("ppo", {"baseline_mode": "states"}, {"share_network": False}),
    ],
)
def test_a_thing_that_is_said_twice_is_refused(checked, agent, old, new):
    (written,), (meant,) = old, new
    with pytest.raises(SpecError, match=r"say the same thing; give one of them$") as caught:
        checked(agent, **old, **new)
    assert f'"{meant}"' in str(caught.value)
    assert written in str(caught.value)


def test_a_rollout_of_episodes_ends_when_the_memory_is_full(checked):
    memory = {"type": "latest", "capacity": 500, "include_next_states": False}
    settings = checked("vpg", update_mode={"unit": "episodes", "batch_size": 8, "frequency": 8}, memory=memory)
    assert (settings.rollout_episodes, settings.rollout_timesteps) == (8, 500)


def test_a_rollout_has_one_length(checked):
    with pytest.raises(SpecError, match="horizon"):
        checked("ppo", horizon=32, update_mode={"unit": "timesteps", "batch_size": 64})


EXPLAINED = {
    "batching_capacity": (100, "observations are never batched behind the agent's back"),
    "batched_observe": (True, ""),
    "device": ("/gpu:0", "JAX chooses the device"),
    "execution": ({"type": "single"}, "how the work is spread is the experiment's run_mode"),
    "network": ([], "the network is a field of the experiment, beside the agent"),
    "saver": ({"directory": "x"}, "when to save is the experiment's saver_frequency"),
    "scope": ("dqn", "parameters have names of their own"),
    "summarizer": ({"directory": "x"}, "when to write summaries is the experiment's summary_frequency"),
    "states": ({"shape": [4]}, "the environment says what its states are"),
    "actions": ({"num_actions": 4}, "the environment says what its actions are"),
}


@pytest.mark.parametrize("agent", ["ppo", "dqn", "sac", "pqn"])
@pytest.mark.parametrize("word", EXPLAINED)
def test_an_old_word_without_a_meaning_is_explained(checked, agent, word):
    value, reason = EXPLAINED[word]
    with pytest.raises(SpecError) as caught:
        checked(agent, **{word: value})
    assert f'"{word}" has no meaning here: {reason}' in str(caught.value)
    # TensorForce wrote null for what was not there.
    assert checked(agent, **{word: None}) == checked(agent)


def test_the_unrolled_loop_of_trpo_is_explained(checked):
    with pytest.raises(SpecError, match='"ls_unroll_loop" has no meaning here: loops are compiled as loops'):
        checked("trpo", ls_unroll_loop=True)


@pytest.mark.parametrize(
    ("agent", "settings", "reason"),
    [
        (
            "ppo",
            {"update_mode": {"unit": "episodes", "batch_size": 10}, "learning_rate_decay": "linear"},
            "learning_rate_decay needs to know how many updates there will be",
        ),
        ("ppo", {"update_mode": {"unit": "episodes", "batch_size": 10}, "horizon": 9}, "horizon and rollout_episodes"),
        ("ppo", {"update_mode": {"unit": "sequences"}}, 'unit must be "timesteps" or "episodes", not \'sequences\''),
        (
            "dqn",
            {"update_mode": {"unit": "episodes", "batch_size": 10}},
            'update_mode.unit is "episodes", but an agent with a replay memory learns from timesteps',
        ),
        ("ppo", {"update_mode": {"batch_size": 64, "frequency": 32}}, "update_mode.frequency is 32"),
        ("ppo", {"update_mode": {"frequency": 32}}, "update_mode.frequency is 32"),
        ("dqn", {"update_mode": {"batchsize": 64}}, 'update_mode has no "batchsize"; it has unit, batch_size and'),
        ("ppo", {"update_mode": {"batchsize": 64}}, 'update_mode has no "batchsize"; it has unit, batch_size and'),
        ("ppo", {"update_mode": 64}, "update_mode"),
        ("dqn", {"update_mode": "timesteps"}, "update_mode"),
        ("dqn", {"update_mode": {"batch_size": 0}}, "it must be at least 1"),
        ("ppo", {"memory": "replay"}, 'memory "replay" is for agents such as dqn and sac'),
        ("vpg", {"memory": {"type": "prioritized_replay"}}, 'memory "prioritized_replay" is for agents such as dqn'),
        ("ppo", {"memory": {"type": "latest", "capasity": 9}}, "capasity"),
        ("ppo", {"memory": {"type": ["latest"]}}, "memory"),
        ("ppo", {"baseline_mode": ["states"]}, "baseline_mode must be"),
        ("ppo", {"baseline_mode": "other"}, 'baseline_mode must be "states", "network" or null, not'),
        ("dqn", {"optimizer": "synchronization"}, "it moves a target network; use target_sync_frequency and"),
        ("dqn", {"optimizer": {"type": "global_optimizer"}}, "sharing an optimiser is what the run modes do"),
        ("dqn", {"exploration": "gaussian_noise"}, 'unknown exploration "gaussian_noise"'),
        ("dqn", {"exploration": {"type": "epsilon_aneal"}}, 'did you mean "epsilon_anneal"'),
        ("ppo", {"actions_exploration": "epsilon_decay"}, "this agent explores by drawing from its policy"),
        (
            "ppo",
            {"baseline_optimizer": {"type": "adam", "learning_rate": {"type": "linear", "initial_value": 1e-3}}},
            "baseline_learning_rate falls in proportion to learning_rate",
        ),
        ("ppo", {"double_q_model": True}, 'unknown field "double_q_model"'),
        ("ppo", {"huber_loss": 1.0}, 'unknown field "huber_loss"'),
        ("dqn", {"gae_lambda": 0.9}, 'unknown field "gae_lambda"'),
        ("impala", {"likelihood_ratio_clipping": 0.2}, "likelihood_ratio_clipping"),
        ("pqn", {"memory": "replay"}, '"memory" has no meaning here: this agent learns from what it just saw'),
        ("pqn", {"update_mode": {"batch_size": 9}}, '"update_mode" has no meaning here'),
        ("random", {"discount": 0.9}, 'unknown field "discount"'),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_reason(checked, agent, settings, reason):
    with pytest.raises(SpecError, match=reason):
        checked(agent, **settings)


def test_the_sentence_names_the_file():
    spec = AgentSpec.model_validate({"type": "dqn", "memory": "latest"})
    spec.written_in(Origins("configs/agents/old.json"))
    with pytest.raises(SpecError) as caught:
        spec.settings_as(agents.settings_class("dqn"))
    assert str(caught.value) == (
        'wrong value "latest" in configs/agents/old.json at memory; '
        'memory "latest" keeps what was just seen, as ppo and vpg do; use "replay" here'
    )


@pytest.mark.parametrize(
    ("agent", "word", "value", "setting"),
    [
        ("ppo", "likelihood_ratio_clipping", -1.0, "clip"),
        ("ppo", "distributions", "betta", "distribution"),
        ("dqn", "huber_loss", -1.0, "huber"),
        ("dqn", "double_q_model", 3, "double"),
        ("dqn", "actions_exploration", {"type": "constant", "constant": 7.0}, "exploration"),
        ("dqn", "update_mode", {"batch_size": -1}, "batch_size"),
        ("ppo", "step_optimizer", {"type": "adam", "beta1": 7.0}, "optimizer"),
    ],
)
def test_the_sentence_about_an_old_word_says_where_it_stands(checked, agent, word, value, setting):
    with pytest.raises(SpecError) as caught:
        checked(agent, **{word: value})
    assert f" at {setting}" in str(caught.value) or f" at {word}" in str(caught.value)


@pytest.mark.parametrize("written", [{"type": "beta"}, {"action": {"type": "beta"}}])
def test_distributions_as_tensorforce_wrote_them_are_understood_or_explained(checked, written):
    try:
        assert checked("ppo", distributions=written).distribution == "beta"
    except SpecError as error:
        sentence = str(error)
    else:
        return
    assert "distribution" in sentence
