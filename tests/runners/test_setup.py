"""Notices about an experiment before it runs."""

from __future__ import annotations

import pytest
from runs import TINY_DQN, experiment, train

from steppe.errors import UserError
from steppe.runners.engines.host.engine import HostEngine
from steppe.runners.setup import make_engine, notices_for


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"total_timesteps": 24}, True),
        ({"total_timesteps": 28}, True),
        # The last iteration of 4 environments exceeds the limit.
        ({"total_timesteps": 29}, False),
        ({"total_timesteps": 32}, False),
        ({"episodes": 1}, False),
    ],
)
def test_a_run_too_short_to_learn_gets_a_notice(fields, is_told, tmp_path):
    spec = experiment(agent={**TINY_DQN, "update_frequency": 1}, **fields)
    notices = notices_for(spec)
    assert ["nothing will be learned" in notice for notice in notices] == [True] * is_told
    if is_told:
        assert "learning_starts, 32" in notices[0]
    if "total_timesteps" in fields:
        assert (train(tmp_path / "run", spec).update == 0) == is_told


def test_agents_that_learn_from_rollouts_are_never_too_short():
    assert notices_for(experiment(total_timesteps=1)) == []


@pytest.mark.parametrize("agent", ["ppo", "vpg", "dqn", "sac", "pqn"])
def test_a_decay_without_an_end_is_found_before_anything_is_made(agent):
    environment = "Pendulum-v1" if agent == "sac" else "CartPole-v1"
    spec = experiment(environment, {"type": agent, "learning_rate_decay": "linear"}, episodes=5)
    with pytest.raises(UserError, match='learning_rate_decay "linear" needs total_timesteps'):
        make_engine(spec)


def test_vectorization_asks_for_the_original_in_place_of_the_twin():
    environment = {"id": "CartPole-v1", "vectorization": "sync"}
    spec = experiment(environment, {"type": "random"}, total_timesteps=10)
    engine = make_engine(spec)
    try:
        assert isinstance(engine, HostEngine)
    finally:
        engine.close()
    assert notices_for(spec) == [
        'vectorization "sync" steps gymnasium\'s CartPole-v1; leave it out for the compiled twin, which is many times '
        "faster"
    ]
    assert notices_for(experiment({**environment, "backend": "gymnasium"}, {"type": "random"})) == []


def test_vectorization_of_an_environment_that_only_runs_compiled_is_refused():
    with pytest.raises(UserError, match="only runs compiled; leave out backend, wrappers and vectorization"):
        make_engine(experiment({"id": "GridWorld-v0", "vectorization": "processes"}, {"type": "random"}))


def test_whole_episodes_ask_for_the_original_in_place_of_the_twin():
    agent = {"type": "vpg", "rollout_episodes": 2}
    assert notices_for(experiment(agent=agent)) == [
        "rollout_episodes (update_mode in episodes) steps gymnasium's CartPole-v1; give rollout_timesteps for the "
        "compiled twin, which is many times faster"
    ]
    assert notices_for(experiment({"id": "CartPole-v1", "backend": "gymnasium"}, agent)) == []
    assert notices_for(experiment(agent="vpg")) == []


@pytest.mark.parametrize(
    ("mode", "fields", "notice"),
    [
        ("single", {"num_workers": 2}, 'num_workers has no effect in run mode "single", which has one worker'),
        (
            "single",
            {"num_parameter_servers": 2},
            'num_parameter_servers has no effect in run mode "single", which has one worker',
        ),
        (
            "multi-threaded",
            {"num_parameter_servers": 2},
            'num_parameter_servers has no effect in run mode "multi-threaded", whose threads share one model',
        ),
        (
            "single",
            {"distributed": {"synchronous": True, "overlap": True}},
            'distributed.synchronous, distributed.overlap have no effect in run mode "single", only in "distributed"',
        ),
        (
            "async",
            {"distributed": {"max_staleness": 3}},
            'distributed.max_staleness has no effect in run mode "async", only in "distributed"',
        ),
        (
            "distributed",
            {"asynchronous": {"queue_size": 3}},
            'asynchronous.queue_size has no effect in run mode "distributed", only in "async"',
        ),
        (
            "multi-threaded",
            {"ray": {"gpus_per_worker": 0.5}},
            'ray.gpus_per_worker has no effect in run mode "multi-threaded", only in "distributed" and "async"',
        ),
    ],
)
def test_settings_of_another_run_mode_get_a_notice(mode, fields, notice):
    assert notices_for(experiment(run_mode=mode, **fields)) == [notice]


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        ("single", {"num_workers": 3, "distributed": {"synchronous": False}, "ray": {}}),
        ("multi-threaded", {"num_workers": 2}),
        (
            "distributed",
            {"num_parameter_servers": 2, "distributed": {"overlap": True}, "ray": {"cpus_per_worker": 0.5}},
        ),
        ("async", {"num_workers": 2, "asynchronous": {"queue_size": 3}, "ray": {"gpus_per_worker": 0.5}}),
    ],
)
def test_used_and_default_settings_get_no_notice(mode, fields):
    assert notices_for(experiment(run_mode=mode, **fields)) == []
