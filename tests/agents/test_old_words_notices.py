"""Notices name the settings of TensorForce that have another meaning, and no others."""

from __future__ import annotations

import pytest

from steppe import agents
from steppe.errors import SpecError
from steppe.runners.setup import notices_for
from steppe.spec_files import read_agent, read_experiment
from steppe.specs.loading.validation import Origins

ALL_AGENTS = ["ppo", "trpo", "dqn", "ddpg", "naf", "pqn", "random", "constant"]
NOTHING_ASKED = {
    "saver": {"directory": None, "seconds": 600},
    "summarizer": {"directory": None, "labels": [], "seconds": 120},
    "execution": {"type": "single", "session_config": None, "distributed_spec": None},
}


@pytest.mark.parametrize("agent", ALL_AGENTS)
def test_what_asks_for_nothing_is_dropped_with_one_notice(checked, notices_of, agent):
    assert checked(agent, **NOTHING_ASKED) == checked(agent)
    (notice,) = notices_of(agent, **NOTHING_ASKED)
    assert notice == (
        "execution, saver and summarizer of the agent have no effect; the experiment's run_mode, "
        'saver_frequency ("600s") and summary_frequency ("120s") say this'
    )


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("batched_observe", 512),
        ("batched_observe", True),
        ("batching_capacity", 1000),
        ("scope", "ddqn"),
        ("ls_unroll_loop", False),
        ("log_level", "info"),
        ("keep_last_timestep", True),
    ],
)
@pytest.mark.parametrize("agent", ALL_AGENTS)
def test_a_word_without_effect_is_told(notices_of, agent, word, value):
    (notice,) = notices_of(agent, **{word: value})
    assert notice.startswith(f"{word} of the agent has no effect")


@pytest.mark.parametrize("agent", ALL_AGENTS)
def test_settings_of_today_need_no_notice(notices_of, agent):
    assert notices_of(agent) == ()
    assert notices_of(agent, states_preprocessing=["flatten"]) == ()


@pytest.mark.parametrize(
    ("agent", "settings", "beginning"),
    [
        ("ddpg", {"critic_network": {"size_t0": 8, "size_t1": 6}}, "critic_network is two dense layers of 8 and 6"),
        (
            "dqn",
            {"update_mode": {"frequency": 4}, "target_sync_frequency": 1000},
            "target_sync_frequency 1000 counts timesteps in this old file; with one update every 4 timesteps that is "
            "every 250 updates",
        ),
        ("vpg", {"baseline_mode": None, "rollout_episodes": 2}, "baseline_mode null: no value network is learned"),
        ("vpg", {"baseline": "none"}, "without a baseline what follows the end of a rollout counts as nothing"),
        ("trpo", {"max_gradient_norm": 0.5}, "max_gradient_norm is for the value network only"),
        ("dqn", {"memory": {"type": "prioritized_replay", "buffer_size": 9}}, "memory.buffer_size has no effect"),
        ("ppo", {"memory": {"type": "latest", "capacity": 9}}, "memory.capacity has no effect without update_mode"),
    ],
)
def test_what_means_something_else_here_is_told(notices_of, agent, settings, beginning):
    (notice,) = notices_of(agent, **settings)
    assert notice.startswith(beginning)


def experiment(agent, **fields):
    return read_experiment({"name": "a", "environment": "CartPole-v1", "agent": agent, **fields})


def test_notices_of_an_experiment_know_its_network_and_its_environments():
    spec = experiment({"type": "ppo", "rollout_timesteps": 64, "scope": "ppo"})
    assert spec.notices == ("scope of the agent has no effect",)
    (notice,) = agents.notices(spec, num_envs=5)
    assert notice == "rollout_timesteps 64 is rounded up to 65, a multiple of num_envs 5"
    assert agents.notices(spec, num_envs=4) == []
    spec = experiment("random", network=[{"type": "dense", "size": 4}])
    assert agents.notices(spec, num_envs=4) == ['the network has no effect: agent "random" does not learn']


@pytest.mark.parametrize(
    ("agent", "settings", "place"),
    [
        (
            "dqn",
            {"actions_exploration": {"type": "epsilon_anneal", "initial_epsilon": 1.5}},
            "actions_exploration.initial_",
        ),
        (
            "dqn",
            {"actions_exploration": {"action": {"type": "constant", "constant": 7}}},
            "actions_exploration.action.",
        ),
        ("dqn", {"actions_exploration": {"type": "epsilon_aneal"}}, "actions_exploration.type;"),
        ("ppo", {"update_mode": {"batch_size": "64"}}, "update_mode.batch_size;"),
        ("ppo", {"batch_size": "64"}, "batch_size;"),
        ("dqn", {"update_mode": {"frequency": 0}}, "update_mode.frequency;"),
        ("dqn", {"optimizer": {"type": "adam", "learning_rate": "1e-3"}}, "optimizer.learning_rate;"),
        (
            "ppo",
            {"step_optimizer": {"type": "multi_step", "optimizer": {"type": "adam", "learning_rate": 0}}},
            "step_optimizer.optimizer.learning_rate;",
        ),
        ("ppo", {"step_optimizer": {"type": "adam", "beta1": 7.0}}, "step_optimizer.beta1;"),
        ("ppo", {"learning_rate": {"initial_value": -1}}, "learning_rate.initial_value;"),
        ("ppo", {"likelihood_ratio_clipping": "big"}, "likelihood_ratio_clipping;"),
        ("ppo", {"distributions": {"type": "gaussian", "log_stddev": "x"}}, "distributions.log_stddev;"),
        ("ddpg", {"critic_network": {"size_t0": 0}}, "critic_network.size_t0;"),
    ],
)
def test_a_mistake_in_an_old_word_is_found_where_it_was_written(agent, settings, place):
    with pytest.raises(SpecError, match=f" in old.json at {place}".replace(".", r"\.")):
        read_agent({"type": agent, **settings}, "old.json").settings_as(agents.settings_class(agent))


def test_a_mistake_in_an_override_is_found_there():
    part = ("likelihood_ratio_clipping",)
    origins = Origins("--agent").with_part(part, "--set", "agent.likelihood_ratio_clipping")
    spec = read_agent({"type": "ppo", "likelihood_ratio_clipping": "big"}, origins)
    with pytest.raises(
        SpecError, match=r'^wrong value "big" in --set at agent\.likelihood_ratio_clipping; it must be a nu'
    ):
        spec.settings_as(agents.settings_class("ppo"))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("PPOAgent", "ppo"),
        ("tensorforce.agents.DQNAgent", "dqn"),
        ("ppo-agent", "ppo"),
        ("DQNNstepAgent", "dqn_nstep"),
        ("DQFDAgent", "dqfd"),
    ],
)
def test_an_agent_may_be_named_as_its_old_class(written, name):
    assert read_agent(written).type == name


@pytest.mark.parametrize("written", ["rainbow", "c51", "categorical_dqn_agent", "double_dqn", "reinforce", "acktr"])
def test_names_that_others_use_are_explained(written):
    name = written.removesuffix("_agent")
    with pytest.raises(SpecError, match=f'^there is no agent "{name}" at type; .*(dqn|vpg|trpo)"'):
        agents.agent_class(read_agent(written))


@pytest.mark.parametrize("written", ["acktr_agent", "ACKTRAgent", "tensorforce.agents.ACKTRAgent"])
def test_acktr_of_an_old_file_is_trained_as_trpo_and_is_told(written):
    old = {"type": written, "update_mode": {"unit": "episodes", "batch_size": 20}, "learning_rate": 0.01}
    spec = read_experiment({"name": "a", "environment": "CartPole-v1", "agent": old})
    assert (spec.agent.type, spec.agent.is_for_tensorforce) == ("trpo", True)
    settings = spec.agent.settings_as(agents.settings_class("trpo"))
    assert (settings.learning_rate, settings.rollout_episodes, settings.cg_damping) == (0.01, 20, 0.001)
    (notice,) = [each for each in notices_for(spec) if "acktr" in each]
    assert notice.startswith('agent "acktr" of TensorForce is trained as "trpo"')
    same = read_experiment({"name": "a", "environment": "CartPole-v1", "agent": old | {"type": "trpo_agent"}})
    assert spec.agent == same.agent
    assert not [each for each in notices_for(same) if "acktr" in each]


@pytest.mark.parametrize("agent", ["ddpg", "ppo"])
def test_batch_normalization_of_networks_in_the_agent_is_told(agent):
    layers = [{"type": "dense", "size": 8}, {"type": "tf_layer", "layer": "batch_normalization"}]
    own = {"critic_network": layers} if agent == "ddpg" else {"baseline": {"type": "custom", "network": layers}}
    written = {"name": "a", "environment": "Pendulum-v1", "agent": {"type": agent, **own}}
    for given in (written, written | {"network": layers}):
        assert len([each for each in notices_for(read_experiment(given)) if "layer_norm" in each]) == 1
