"""Rollouts counted in episodes, TensorForce's update_mode with unit episodes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from runs import experiment, train

from steppe.agents._base import Trajectory
from steppe.errors import UserError
from steppe.runners.engines.learning import Learner, learn
from steppe.runners.setup import notices_for
from steppe.tracking.metrics import read_metrics

BY_EPISODES = {"type": "vpg", "update_mode": {"unit": "episodes", "batch_size": 3}, "normalize_advantages": False}
LSTM = [{"type": "dense", "size": 8}, {"type": "lstm", "size": 4}]


@pytest.fixture
def episodic(engine_for):
    def make(environment="CartPole-v1", agent=BY_EPISODES, num_envs=1, **fields):
        return engine_for(environment, agent, num_envs=num_envs, **fields)

    return make


def test_one_environment_learns_from_exactly_so_many_whole_episodes(episodic):
    engine = episodic(max_timesteps_per_episode=50)
    for _ in range(5):
        trajectory, taken, ended = collect(engine)
        assert ended == 3
        assert taken < engine.agent.horizon
        rows = (trajectory.terminated | trajectory.truncated)[:taken, 0]
        assert rows.sum() == 3
        assert rows[-1]


def test_several_environments_stop_together_and_unfinished_episodes_go_on(episodic):
    engine = episodic("worlds:World", num_envs=4)  # ten timesteps each, so all four end together
    trajectory, taken, ended = collect(engine)
    assert (taken, ended) == (40, 4)
    engine = episodic("CartPole-v1", num_envs=4)
    trajectory, taken, ended = collect(engine)
    steps = taken // 4
    assert ended >= 3
    # Episodes that did not end in the last row are truncated there, so that they bootstrap and nothing flows across.
    assert (trajectory.terminated | trajectory.truncated)[steps - 1].all()
    assert (engine._collector._lengths > 0).any()


def test_a_padded_rollout_teaches_the_same_as_the_short_one(episodic):
    engine = episodic("worlds:World", {**BY_EPISODES, "rollout_timesteps": 96}, num_envs=1)
    state = engine._learner.agent
    trajectory, taken, ended = collect(engine)
    assert (taken, ended, engine.agent.horizon) == (30, 3, 96)
    full, _ = learn(engine.agent, Learner(state, ()), trajectory)
    short, _ = learn(engine.agent, Learner(state, ()), _rows(trajectory, 30)._replace(weights=()))
    moved = np.abs(short.agent.params - state.params).max()
    np.testing.assert_allclose(full.agent.params, short.agent.params, atol=1e-3 * moved)
    assert trajectory.weights.mean() == pytest.approx(1.0)
    for leaf in jax.tree.leaves(trajectory._replace(weights=())):
        np.testing.assert_array_equal(leaf[30:60], leaf[:30])
        np.testing.assert_array_equal(leaf[90:], leaf[:6])


def test_a_full_memory_ends_the_rollout_too(episodic):
    memory = {"type": "latest", "capacity": 64}
    engine = episodic(
        "worlds:World", {**BY_EPISODES, "memory": memory, "update_mode": {"unit": "episodes", "batch_size": 99}}
    )
    _, taken, ended = collect(engine)
    assert (taken, ended) == (64, 6)


def test_the_memory_of_an_old_file_is_raised_for_a_network_that_remembers(tmp_path):
    old = {"type": "vpg_agent", "memory": {"type": "latest", "capacity": 10}}
    old["update_mode"] = {"unit": "episodes", "batch_size": 3, "frequency": 3}
    spec = experiment("worlds:World", old, num_envs=1, network=LSTM, max_timesteps_per_episode=20, total_timesteps=90)
    (notice,) = [notice for notice in notices_for(spec) if "remembers" in notice]
    assert notice == (
        "the network remembers, so each update learns from 3 whole episodes; memory.capacity (10) is raised if they "
        "need more"
    )
    outcome = train(tmp_path, spec)
    assert (outcome.timestep, outcome.episode, outcome.update) == (90, 9, 3)
    assert not [notice for notice in notices_for(experiment("worlds:World", old, num_envs=1)) if "remembers" in notice]


def test_timesteps_of_short_rollouts_are_counted_exactly(tmp_path):
    agent = {"type": "ppo", "update_mode": {"unit": "episodes", "batch_size": 6}, "learning_rate": 3e-3}
    outcome = train(
        tmp_path, experiment("worlds:World", agent, num_envs=2, total_timesteps=6000, summary_frequency="1t")
    )
    assert outcome.timestep == 6000
    assert outcome.episode == 600
    assert [each["timestep"] for each in read_metrics(tmp_path)][:3] == [60, 120, 180]
    assert outcome.mean_return > 8


@pytest.mark.learning
def test_a_recurrent_policy_learns_from_whole_episodes(tmp_path):
    agent = {
        "type": "ppo",
        "update_mode": {"unit": "episodes", "batch_size": 8},
        "minibatches": 1,
        "learning_rate": 1e-2,
    }
    spec = experiment("worlds:World", agent, num_envs=1, network=LSTM, total_timesteps=6000)
    assert train(tmp_path, spec).mean_return > 7.5


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"network": LSTM, "num_envs": 2}, "set num_envs to 1"),
        ({"network": LSTM, "agent": {**BY_EPISODES, "rollout_timesteps": 64}}, "may be too few for 3 episodes"),
        ({"environment": {"id": "CartPole-v1", "backend": "compiled"}}, 'leave out "backend": "compiled"'),
        ({"environment": "GridWorld", "agent": {"type": "ppo", "rollout_episodes": 2}}, "GridWorld only runs compiled"),
    ],
)
def test_episode_counts_with_compiled_environments_are_refused(episodic, fields, sentence):
    with pytest.raises(UserError, match=sentence):
        episodic(**fields)


def collect(engine):
    collected = engine._collector.collect(engine._learner.agent, 0)
    return collected.trajectory, collected.timesteps, len(collected.returns)


def _rows(trajectory: Trajectory, count: int) -> Trajectory:
    return jax.tree.map(lambda leaf: leaf[:count].copy(), trajectory)
