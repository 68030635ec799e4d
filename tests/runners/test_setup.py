"""What a user is told of an experiment before it runs."""

from __future__ import annotations

import pytest
from runs import TINY_DQN, experiment, train

from steppe.errors import UserError
from steppe.runners.host import HostEngine
from steppe.runners.setup import make_engine, notices_for


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"total_timesteps": 24}, True),
        ({"total_timesteps": 28}, True),
        # The last iteration of 4 environments goes over the end.
        ({"total_timesteps": 29}, False),
        ({"total_timesteps": 32}, False),
        ({"episodes": 1}, False),
    ],
)
def test_a_run_too_short_to_learn_is_told(fields, is_told, tmp_path):
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


def test_vectorization_of_what_only_runs_compiled_is_refused():
    with pytest.raises(UserError, match="only runs compiled; leave out backend, wrappers and vectorization"):
        make_engine(experiment({"id": "GridWorld-v0", "vectorization": "processes"}, {"type": "random"}))
