"""TensorForce's settings are translated or refused with a reason; none is silently ignored."""

from __future__ import annotations

import numpy as np
import pytest

from steppe import agents
from steppe.errors import SpecError
from steppe.spec_files import read_agent
from steppe.specs.spaces import Box, Discrete

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
    spec = read_agent(given)
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
    assert (given.target_sync_frequency, given.target_update_weight) == (100 // 8, 0.9)
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
    spec = read_agent(f"{name}_agent")
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
    ("ppo", "batch_size", 64, "rollout_timesteps", 64),
    ("dqn", "first_update", 64, "learning_starts", 64),
    ("sac", "update_mode", {"first_update": 64}, "learning_starts", 64),
    ("dqn", "repeat_update", 3, "updates", 3),
    ("naf", "double_q_model", True, "double", True),
    ("naf", "huber_loss", 2.0, "huber", 2.0),
    ("naf", "huber_loss", None, "huber", False),
    ("constant", "action_values", 1, "action", 1),
    ("constant", "action_values", {"action": 1}, "action", 1),
    ("ppo", "distributions", {"type": "gaussian", "mean": 0.0, "log_stddev": -1.0}, "initial_log_std", -1.0),
    ("ppo", "distributions", {"action": {"type": "gaussian", "log_stddev": -1.0}}, "distribution", "gaussian"),
    ("ppo", "distributions_spec", "beta", "distribution", "beta"),
    ("dqn", "discount", None, "discount", 0.99),
    (
        "dqn",
        "learning_rate",
        {"type": "linear", "initial_value": 0.1, "final_value": 0.0},
        "learning_rate_decay",
        "linear",
    ),
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


@pytest.mark.parametrize("word", ["preprocessing", "states_preprocessing_spec", "reward_preprocessing_spec"])
def test_old_names_of_preprocessing_are_understood(checked, word):
    setting = "reward_preprocessing" if "reward" in word else "states_preprocessing"
    stages = getattr(checked("dqn", **{word: [{"type": "clip", "min": -1, "max": 1}]}), setting).root
    assert [(stage.type, stage.min_value) for stage in stages] == [("clip", -1)]


@pytest.mark.parametrize("word", ["memory", "optimizer", "discount", "update_mode", "learning_rate"])
@pytest.mark.parametrize("agent", ["ppo", "trpo", "dqn", "sac", "pqn"])
def test_null_is_what_would_be_without_it(checked, agent, word):
    assert checked(agent, **{word: None}) == checked(agent)


@pytest.mark.parametrize("word", ["actions_exploration", "exploration", "explorations_spec"])
def test_exploration_is_understood_in_all_its_spellings(checked, word):
    meant = checked("dqn", exploration={"type": "epsilon_anneal", "initial_epsilon": 0.5, "final_epsilon": 0.2})
    old = {"epsilon_start": 0.5, "epsilon_final": 0.2, "epsilon_timesteps": 10_000}
    assert checked("dqn", **{word: {"type": "epsilon_anneal"} | old}) == meant
    first = {"type": "epsilon_anneal", "epsilon": 0.5, "final_value": 0.2}
    assert checked("dqn", **{word: {"action": first}}) == meant
    assert checked("dqn", **{word: {"type": "epsilon_decay", "epsilon": 0.5}}).exploration.initial_epsilon == 0.5


def test_an_object_without_a_type_changes_the_default(checked):
    given = checked("dqn", exploration={"initial_epsilon": 0.5}).exploration
    assert (given.type, given.initial_epsilon, given.final_epsilon) == ("epsilon_anneal", 0.5, 0.02)
    assert checked("dqn", optimizer={"learning_rate": 0.5}) == checked("dqn", learning_rate=0.5)
    given = checked("trpo", baseline_optimizer={"learning_rate": 0.5, "num_steps": 3})
    assert (given.baseline_optimizer.num_steps, given.baseline_learning_rate) == (3, 0.5)


def test_unrolled_loops_of_optimisers_may_be_said_not_to_be(checked):
    step = {"type": "optimized_step", "ls_unroll_loop": False, "ls_mode": "exponential", "optimizer": "adam"}
    old = {"type": "multi_step", "num_steps": 5, "unroll_loop": False, "optimizer": step}
    new = {"type": "multi_step", "num_steps": 5, "optimizer": {"type": "optimized_step", "optimizer": "adam"}}
    assert checked("vpg", optimizer=old) == checked("vpg", optimizer=new)
    old = {"type": "evolutionary", "num_samples": 8, "unroll_loop": False, "learning_rate": 0.1}
    new = {"type": "evolutionary", "num_samples": 8}
    assert checked("vpg", optimizer=old) == checked("vpg", optimizer=new, learning_rate=0.1)


def test_no_baseline_in_the_old_files_is_no_baseline(checked):
    nothing = {"baseline_mode": None, "baseline": None, "baseline_optimizer": None}
    for agent in ("vpg", "ppo", "trpo"):
        given = checked(agent, **nothing, gae_lambda=None)
        assert not given.learns_values
        assert checked(agent, baseline=None, baseline_optimizer=None) == checked(agent)


def test_a_baseline_for_each_state_is_understood_where_there_is_one(checked):
    given = checked("ppo", baseline={"state": {"type": "mlp", "sizes": [8]}})
    assert given.baseline.layers() == checked("ppo", baseline={"type": "mlp", "sizes": [8]}).baseline.layers()


def test_the_critic_of_ddpg_by_its_sizes(checked):
    layers = checked("ddpg", critic_network={"size_t0": 8, "size_t1": 6}).critic_network.root
    assert [(layer.type, layer.size, layer.activation) for layer in layers] == [
        ("dense", 8, "relu"),
        ("dense", 6, "relu"),
    ]
    wrapped = {"type": "layered", "layers": [{"type": "dense", "size": 8}]}
    assert [layer.size for layer in checked("ddpg", critic_network=wrapped).critic_network.root] == [8]


def test_old_targets_are_moved_after_so_many_timesteps(checked):
    mode = {"update_mode": {"unit": "timesteps", "batch_size": 8, "frequency": 4}}
    assert checked("dqn", **mode, target_sync_frequency=1000).target_sync_frequency == 250
    assert checked("dqn", **mode, repeat_update=2, target_sync_frequency=1000).target_sync_frequency == 500
    steps = {"type": "multi_step", "num_steps": 3, "optimizer": "adam"}
    assert checked("dqn", **mode, optimizer=steps, target_sync_frequency=1000).target_sync_frequency == 750
    assert checked("dqn", **mode, target_sync_frequency=1).target_sync_frequency == 1
    assert checked("dqn", batch_size=8, update_frequency=4, target_sync_frequency=1000).target_sync_frequency == 1000


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


LATEST_EPISODES = {
    "update_mode": {"unit": "episodes", "batch_size": 10, "frequency": 10, "first_update": 20},
    "memory": {"type": "latest", "include_next_states": True, "capacity": 10000},
}


def test_n_step_learning_from_the_latest_episodes_becomes_a_replay_memory(checked, notices_of):
    settings, usual = checked("dqn_nstep", **LATEST_EPISODES), checked("dqn_nstep")
    assert settings == usual.model_copy(update={"memory": usual.memory.model_copy(update={"capacity": 10_000})})
    (notice,) = notices_of("dqn_nstep", **LATEST_EPISODES)
    assert notice == (
        'update_mode in episodes and memory "latest": this agent has a replay memory instead, and learns from 128 '
        "timesteps of it every 2 timesteps"
    )
    (notice,) = notices_of("dqn_nstep", memory="latest", update_mode={"batch_size": 16, "frequency": 2})
    assert notice.endswith("learns from 16 timesteps of it every 2 timesteps")
    (notice,) = notices_of("dqn_nstep", update_mode={"unit": "episodes"}, batch_size=32)
    assert notice.startswith("update_mode in episodes: this agent has a replay memory instead, and learns from 32 ")
    assert notices_of("dqn_nstep", memory="replay", update_mode={"unit": "timesteps"}) == ()


@pytest.mark.parametrize("agent", ["dqn", "ddqn", "dqfd"])
@pytest.mark.parametrize("word", ["update_mode", "memory"])
def test_agents_that_had_a_replay_memory_do_not_learn_from_the_latest_episodes(checked, agent, word):
    settings = {"demonstrations": "a.npz"} if agent == "dqfd" else {}
    with pytest.raises(SpecError, match="replay"):
        checked(agent, **{word: LATEST_EPISODES[word]}, **settings)


def test_a_rollout_has_one_length(checked):
    with pytest.raises(SpecError, match="horizon"):
        checked("ppo", horizon=32, update_mode={"unit": "timesteps", "batch_size": 64})


EXPLAINED = {
    "device": ("/gpu:0", "JAX chooses the device"),
    "execution": ({"type": "multi"}, "how the work is spread is the experiment's run_mode"),
    "network": ([], "the network is a field of the experiment, beside the agent"),
    "network_spec": ([], "the network is a field of the experiment, beside the agent"),
    "saver": ({"directory": "x", "seconds": 60}, 'checkpoints go to .*the experiment\'s saver_frequency \\("60s"\\)'),
    "summarizer": ({"directory": "x"}, "metrics go to the run's own folder, .*the experiment's summary_frequency"),
    "session_config": ({}, "there is no TensorFlow session"),
    "distributed_spec": ({}, "how the work is spread is the experiment's run_mode"),
    "states": ({"shape": [4]}, "the environment says what its states are"),
    "actions": ({"num_actions": 4}, "the environment says what its actions are"),
}


@pytest.mark.parametrize("agent", ["ppo", "dqn", "sac", "pqn", "random"])
@pytest.mark.parametrize("word", EXPLAINED)
def test_an_old_word_that_asks_for_something_is_explained(checked, notices_of, agent, word):
    value, reason = EXPLAINED[word]
    with pytest.raises(SpecError, match=rf'"{word}(\.\w+)?" has no meaning here: {reason}'):
        checked(agent, **{word: value})
    # In TensorForce null means that a part is missing.
    assert checked(agent, **{word: None}) == checked(agent)
    assert notices_of(agent, **{word: None}) == ()


SAYS_NOTHING = {
    "variable_noise": None,
    "entropy_regularization": 0.0,
    "likelihood_ratio_clipping": None,
    "huber_loss": None,
    "distributions": None,
    "double_q_model": False,
    "actions_exploration": None,
    "update_mode": None,
    "memory": None,
    "saver": None,
    "execution": None,
}


@pytest.mark.parametrize("agent", ["vpg", "trpo", "pqn", "ddpg", "sac", "random", "constant"])
def test_words_that_say_nothing_may_stand_anywhere(checked, agent):
    fields = agents.settings_class(agent).model_fields
    old = {
        word: value
        for word, value in SAYS_NOTHING.items()
        if word not in ("actions_exploration",) or "exploration" not in fields
    }
    given = checked(agent, **old)
    assert given == (checked(agent, entropy_coefficient=0.0) if "entropy_coefficient" in fields else checked(agent))


@pytest.mark.parametrize(
    ("agent", "settings", "reason"),
    [
        (
            "ppo",
            {"update_mode": {"unit": "episodes", "batch_size": 10}, "learning_rate_decay": "linear"},
            "learning_rate_decay needs to know how many updates there will be",
        ),
        ("ppo", {"update_mode": {"unit": "episodes", "batch_size": 10}, "horizon": 9}, "horizon and rollout_episodes"),
        ("ppo", {"update_mode": {"unit": "sequences"}}, 'unit must be "timesteps" or "episodes", not "sequences"'),
        (
            "dqn",
            {"update_mode": {"unit": "episodes", "batch_size": 10}},
            'update_mode.unit is "episodes", but an agent with a replay memory learns from timesteps',
        ),
        ("ppo", {"update_mode": {"batch_size": 64, "frequency": 32}}, "update_mode.frequency is 32"),
        ("ppo", {"update_mode": {"frequency": 32}}, "update_mode.frequency is 32"),
        ("dqn", {"update_mode": {"batchsize": 64}}, 'update_mode has no "batchsize"; did you mean "batch_size"'),
        ("ppo", {"update_mode": {"zzz": 64}}, 'update_mode has no "zzz"; it has unit, batch_size and'),
        ("ppo", {"update_mode": {"units": "episodes"}}, 'update_mode has no "units"; did you mean "unit"'),
        ("ppo", {"update_mode": {"unit": "timestep"}}, 'not "timestep"; did you mean "timesteps"'),
        ("ppo", {"update_mode": {"unit": "episodes"}}, "batch_size does not say how many"),
        ("ppo", {"update_mode": {"batch_size": 8, "first_update": 9}}, "learns whenever a rollout is full"),
        ("ppo", {"update_mode": 0}, "update_mode must be an object with unit, batch_size and frequency, not 0"),
        ("ppo", {"update_mode": []}, r"update_mode must be an object .*, not \[\]"),
        ("dqn", {"update_mode": False}, "update_mode must be an object .*, not false"),
        (
            "ppo",
            {"batch_size": 8, "update_mode": {"batch_size": 8}},
            '"batch_size" and "update_mode.batch_size" say the',
        ),
        (
            "ppo",
            {"memory": {"type": "latest", "capacity": 10}, "update_mode": {"batch_size": 256}},
            "memory.capacity 10 is less than update_mode.batch_size 256",
        ),
        ("ppo", {"memory": {"type": "latest", "capacity": "many"}}, "capacity must be a whole number"),
        (
            "ppo",
            {"memory": {"type": "latest", "include_next_states": "x"}},
            "include_next_states must be true or false",
        ),
        ("ppo", {"memory": "lastest"}, 'unknown memory "lastest"; did you mean "latest"'),
        ("ppo", {"memory": 17}, 'memory must be "latest" or an object, not 17'),
        ("ppo", {"memory": []}, 'memory must be "latest" or an object'),
        ("dqn", {"memory": {"random_sampling": False}}, "memory.random_sampling; .* too alike to learn from"),
        ("dqn", {"memory": {"prioritization_constant": 0.1}}, "memory.prioritization_constant; .*priority_exponent"),
        ("ppo", {"first_update": 9}, '"first_update" has no meaning here: this agent learns from what it just saw'),
        ("ppo", {"repeat_update": 9}, '"repeat_update" has no meaning here: use epochs'),
        ("ppo", {"baseline_mode": "state"}, 'not "state"; did you mean "states"'),
        (
            "ppo",
            {"baseline_mode": None, "baseline": {"type": "mlp", "sizes": [4]}},
            "there is no baseline, but baseline",
        ),
        (
            "ppo",
            {"baseline_mode": "network", "baseline": "none"},
            'baseline_mode "network" has policy and value network',
        ),
        (
            "vpg",
            {"baseline_mode": None, "gae_lambda": 0.9},
            r"gae_lambda needs a value network.*\(baseline_mode null\)",
        ),
        (
            "trpo",
            {"baseline_mode": "network"},
            r'the value network needs layers of its own: .*\(baseline_mode "states"\)',
        ),
        ("ppo", {"baseline": {"a": {"type": "mlp", "sizes": [4]}, "b": {"type": "mlp", "sizes": [4]}}}, "as one state"),
        ("ppo", {"distributions": {"type": "beta", "min_value": 0.0}}, '"min_value" of a distribution has no meaning'),
        ("ppo", {"distributions": {"type": "gaussian", "mean": 1.0}}, '"mean" of a distribution has no meaning here'),
        ("ppo", {"distributions": {"type": "beta", "log_stddev": 1.0}}, "only gaussian has a spread of its own"),
        ("ppo", {"distributions": {"type": "categorical", "probabilities": [1]}}, "the network puts it out"),
        ("ppo", {"distributions": {"a": {"type": "beta"}, "b": {"type": "beta"}}}, "one action is drawn as a whole"),
        (
            "dqn",
            {"actions_exploration": {"a": {"type": "constant"}, "b": {"type": "constant"}}},
            "one action explores as",
        ),
        ("dqn", {"variable_noise": 0.1}, '"variable_noise" has no meaning here: .*"noisy": true'),
        ("ddpg", {"variable_noise": 0.1}, '"variable_noise" has no meaning here: .*use exploration'),
        ("sac", {"variable_noise": 0.1}, '"variable_noise" has no meaning here: .*use temperature or target_entropy'),
        ("sac", {"entropy_regularization": 0.1}, "use temperature or target_entropy"),
        ("dqn", {"entropy_regularization": 0.1}, "no random policy whose entropy could count; use exploration"),
        ("sac", {"actions_exploration": "constant"}, "by drawing from its policy; use temperature or target_entropy"),
        ("vpg", {"likelihood_ratio_clipping": 0.2}, 'only ppo clips ratios; write "type": "ppo", or leave it out'),
        ("vpg", {"optimization_steps": 5}, 'it is for ppo; write "type": "ppo", or use {"type": "multi_step"}'),
        ("trpo", {"likelihood_ratio_clipping": 0.2}, "only ppo clips ratios; learning_rate bounds the steps here"),
        ("dqn", {"distributions": "beta"}, '"distributions" has no meaning here'),
        ("td3", {"double_q_model": True}, "two critics, of which the lower counts, serve the same end"),
        ("ddpg", {"huber_loss": 1.0}, '"huber_loss" has no meaning here: errors count squared here'),
        ("dqn", {"baseline": {"type": "mlp", "sizes": [4]}}, '"baseline" has no meaning here'),
        ("ppo", {"target_sync_frequency": 9}, "this agent has no target network"),
        ("random", {"actions_exploration": "constant"}, "this agent does not learn"),
        ("random", {"update_mode": {"batch_size": 9}}, "this agent does not learn"),
        ("dqn", {"normalize_rewards": True}, '"normalize_rewards" has no meaning here: write "reward_preprocessing"'),
        ("dqn", {"distributed": True}, "the experiment's run_mode"),
        ("dqn", {"keep_last_timestep": False}, "every timestep is learned from"),
        ("dqn", {"execution": {"type": "distributed"}}, "at execution.type; .*the experiment's run_mode"),
        ("dqn", {"execution": {"type": "single", "session_config": {}}}, "there is no TensorFlow session"),
        ("dqn", {"saver": {"load": True}}, 'at saver.load; .*"steppe experiment resume NAME"'),
        ("dqn", {"saver": {"secnds": 5}}, '"saver" has no "secnds"; did you mean "seconds"'),
        ("dqn", {"preprocessing": ["center"]}, 'there is no stage "center"; use "standardize"'),
        (
            "dqn",
            {"optimizer": {"type": "multi_step", "unroll_loop": True, "optimizer": "adam"}},
            '"unroll_loop" cannot',
        ),
        ("dqn", {"optimizer": {"type": "evolutionary", "unroll_loop": True}}, '"unroll_loop" cannot'),
        (
            "dqn",
            {"learning_rate": {"type": "decaying", "decay": "exponential", "decay_steps": 9, "decay_rate": 0.5}},
            'at learning_rate; a learning rate falls until total_timesteps here, .*"type": "exponential"',
        ),
        ("ddpg", {"critic_network": "my_net"}, "at critic_network; it must be a list of layers"),
        (
            "ppo",
            {"baseline": {"type": "network", "network": "my_net"}},
            "at baseline.network; it must be a list",
        ),
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
        ("dqn", {"exploration": "gaussian_noise"}, '"gaussian_noise" is for continuous actions'),
        ("dqn", {"exploration": {"type": "epsilon_aneal"}}, 'did you mean "epsilon_anneal"'),
        ("ppo", {"actions_exploration": "epsilon_decay"}, "this agent explores by drawing from its policy"),
        (
            "ppo",
            {"baseline_optimizer": {"type": "adam", "learning_rate": {"type": "linear", "initial_value": 1e-3}}},
            "baseline_learning_rate falls in proportion to learning_rate",
        ),
        ("ppo", {"double_q_model": True}, '"double_q_model" has no meaning here: it is for dqn and naf'),
        ("ppo", {"huber_loss": 1.0}, '"huber_loss" has no meaning here: errors count squared'),
        ("dqn", {"gae_lambda": 0.9}, '"gae_lambda" has no meaning here: .*use n_step'),
        ("pqn", {"gae_lambda": 0.9}, '"gae_lambda" has no meaning here: .*use trace_lambda'),
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
    spec = read_agent({"type": "dqn", "memory": "latest"}, "configs/agents/old.json")
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
