"""Notices about environments: text that is left out, and limits without effect."""

from __future__ import annotations

import pytest
from runs import experiment, train

from steppe.envs.registry import notices_of_limit
from steppe.runners.setup import make_engine
from steppe.specs.environment import EnvironmentSpec

LIMIT = (
    "max_timesteps_per_episode 7,000 has no effect: episodes of CartPole-v1 end after 500 timesteps by themselves; "
    '"max_episode_steps": 7000 in its settings (environment.settings) makes them longer'
)


def test_a_run_says_that_text_is_left_out_while_it_trains_and_at_its_end(tmp_path):
    pytest.importorskip("minigrid")
    seen = []
    spec = experiment("MiniGrid-Empty-5x5-v0", total_timesteps=64)
    outcome = train(tmp_path, spec, show=lambda progress: seen.append(progress.notices))
    (notice,) = outcome.notices
    assert 'also observes text, "mission", which is left out' in notice
    assert seen[-1] == (notice,)


@pytest.mark.parametrize("run_mode", ["single", "multi-threaded", "distributed", "async"])
@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
def test_a_time_limit_beyond_the_environments_own_gets_a_notice(run_mode, backend):
    environment = {"id": "CartPole-v1", "backend": backend}
    agent = "impala" if run_mode == "async" else "ppo"
    engine = make_engine(experiment(environment, agent, max_timesteps_per_episode=7000, run_mode=run_mode))
    engine.close()
    assert engine.notices == (LIMIT,)


@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
@pytest.mark.parametrize(("settings", "limit"), [({}, None), ({}, 400), ({}, 500), ({"max_episode_steps": 7000}, 7000)])
def test_a_limit_that_holds_is_no_notice(backend, settings, limit):
    environment = {"id": "CartPole-v1", "backend": backend, "settings": settings}
    engine = make_engine(experiment(environment, max_timesteps_per_episode=limit))
    engine.close()
    assert engine.notices == ()
    assert engine.agent.context.episode_limit == (limit or 500)


@pytest.mark.parametrize(
    ("environment", "way_out"),
    [
        ({"id": "ALE/Pong-v5"}, 'a larger "max_frames" in its settings'),
        ({"id": "MiniGrid-Empty-5x5-v0"}, '"max_steps": 9 in its settings'),
        ({"id": "my_module:MyEnv"}, "only the code that makes it"),
        ({"id": "remote", "settings": {"address": "127.0.0.1:1"}}, "where it is served"),
    ],
)
def test_the_way_to_longer_episodes_is_that_of_the_environment(environment, way_out):
    (notice,) = notices_of_limit(EnvironmentSpec(**environment), 9, 5)
    assert way_out in notice
