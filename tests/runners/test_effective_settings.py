"""The effective settings in a run's experiment.json."""

from __future__ import annotations

import json

import pytest
from runs import experiment, train

from steppe.runners.effective_settings import effective
from steppe.runners.setup import make_engine


def told(*arguments, **fields):
    spec = experiment(*arguments, **fields)
    engine = make_engine(spec)
    engine.close()
    return json.loads(json.dumps(effective(spec, engine.agent)))


def test_effective_settings_hold_all_defaults_and_name_the_given_ones():
    noted = told("CartPole-v1", {"type": "ppo", "learning_rate": 0.001, "optimizer": {"type": "adam", "beta1": 0.8}})
    agent = noted["agent"]
    assert (agent["type"], agent["learning_rate"], agent["clip"], agent["gae_lambda"]) == ("ppo", 0.001, 0.2, 0.95)
    assert agent["optimizer"] == {"type": "adam", "beta1": 0.8, "beta2": 0.999, "epsilon": 1e-05}
    of_agent = {path for path in noted["given"] if path.startswith("agent.")}
    assert of_agent == {"agent.type", "agent.learning_rate", "agent.optimizer.type", "agent.optimizer.beta1"}


def test_settings_left_to_the_agent_are_shown_with_their_chosen_values():
    agent = told("Pendulum-v1", {"type": "ppo", "rollout_timesteps": 256}, num_envs=4)["agent"]
    assert (agent["distribution"], agent["share_network"], agent["horizon"]) == ("gaussian", False, 64)


@pytest.mark.parametrize(
    ("fields", "num_envs", "expected"), [({}, 8, 16), ({"minibatches": 2}, 8, 2), ({"horizon": 32}, 2, 2)]
)
def test_the_minibatches_that_ppo_chose_are_shown(fields, num_envs, expected):
    noted = told("CartPole-v1", {"type": "ppo"} | fields, num_envs=num_envs)
    assert noted["agent"]["minibatches"] == expected
    assert ("agent.minibatches" in noted["given"]) == ("minibatches" in fields)


def test_epochs_and_minibatches_have_no_effect_beside_optimization_steps():
    noted = told("CartPole-v1", {"type": "ppo", "optimization_steps": 5})
    assert {"agent.epochs", "agent.minibatches"} <= set(noted["without_effect"])


def test_critic_settings_that_are_null_are_shown_as_those_of_the_actor():
    agent = told("Pendulum-v1", {"type": "sac", "learning_rate": 0.002})["agent"]
    assert (agent["critic_learning_rate"], agent["critic_optimizer"]) == (0.002, agent["optimizer"])
    assert agent["target_entropy"] == -1.0
    apart = told("Pendulum-v1", {"type": "sac", "critic_learning_rate": 0.004, "critic_optimizer": "adagrad"})["agent"]
    assert (apart["critic_learning_rate"], apart["critic_optimizer"]["type"]) == (0.004, "adagrad")


def test_settings_that_only_explain_others_have_no_effect_without_them():
    assert "agent.final_learning_rate" in told("CartPole-v1", "ppo")["without_effect"]
    assert "agent.initial_log_std" in told("CartPole-v1", "ppo")["without_effect"]
    assert "agent.initial_log_std" not in told("Pendulum-v1", "ppo")["without_effect"]
    assert "agent.memory.priority_exponent" in told("CartPole-v1", "dqn")["without_effect"]
    prioritised = told("CartPole-v1", {"type": "dqn", "memory": "prioritized_replay"})
    assert "agent.memory.priority_exponent" not in prioritised["without_effect"]


def test_layers_are_shown_with_their_number_of_parameters():
    network = told("CartPole-v1", "ppo", network=[{"type": "dense", "size": 8}, {"type": "dense", "size": 3}])[
        "network"
    ]
    assert [(layer["output"], layer["parameters"]) for layer in network["layers"]] == [
        ([8], 4 * 8 + 8),
        ([3], 8 * 3 + 3),
    ]
    policy, value = 40 + 27 + 3 * 2 + 2, 40 + 27 + 3 + 1
    assert network["parameters_of"] == {"policy": policy, "value": value}
    assert network["parameters"] == policy + value
    assert told("CartPole-v1", "random")["network"] is None


@pytest.mark.parametrize(
    ("environment", "fields", "expected"),
    [
        ("CartPole-v1", {}, ("compiled", None, 8, 500)),
        ("CartPole-v1", {"run_mode": "async"}, ("gymnasium", "sync", 8, 500)),
        ({"id": "CartPole-v1", "backend": "gymnasium"}, {"num_envs": 2}, ("gymnasium", "sync", 2, 500)),
        ("Pendulum-v1", {"max_timesteps_per_episode": 30}, ("compiled", None, 8, 30)),
    ],
)
def test_the_environment_is_shown_with_its_real_settings(environment, fields, expected):
    spec = experiment(environment, "ppo", **({"num_envs": 8} | fields))
    engine = make_engine(spec.model_copy(update={"run_mode": "single"}))
    engine.close()
    noted = effective(spec, engine.agent)["environment"]
    names = ("backend", "vectorization", "num_envs", "max_timesteps_per_episode")
    assert tuple(noted[name] for name in names) == expected


def test_a_run_shows_its_settings_before_its_first_timestep(tmp_path):
    seen = []
    train(tmp_path, experiment(total_timesteps=512), show=seen.append)
    (progress,) = [each for each in seen if each.effective is not None]
    assert progress.timestep == 0
    assert progress.effective["limits"]["total_timesteps"] == 512
