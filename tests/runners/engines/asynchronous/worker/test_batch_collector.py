"""A worker's batches are the timesteps of its environments."""

from __future__ import annotations

import numpy as np
import pytest

from steppe.envs._base import EpisodesCut
from steppe.envs.gymnasium.vector import EnvStep, GymnasiumEnvs
from steppe.runners.engines.asynchronous.wire.batches import BatchFormat
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.asynchronous.worker.batch_collector import BatchCollector
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box, Discrete


class Counts:
    """N environments with observations (environment, step) and episodes of 5 + i steps, every second one truncated."""

    def __init__(self, num_envs=2):
        self.num_envs = num_envs
        self.observation_space, self.action_space = Box((2,)), Discrete(3)
        self.resets, self.breaks_at = [], None

    def reset(self, seed):
        self.resets.append(seed)
        self._at, self._played = np.zeros(self.num_envs), np.zeros(self.num_envs, int)
        return self._seen(self._at)

    def step(self, actions):
        if self.breaks_at is not None:
            self.breaks_at -= 1
            if self.breaks_at < 0:
                self.breaks_at = None
                self._at[:] = 0
                raise EpisodesCut("broken", self._seen(self._at))
        self._at += 1
        following = self._seen(self._at)
        over = self._at >= 5 + np.arange(self.num_envs)
        terminated, truncated = over & (self._played % 2 == 0), over & (self._played % 2 == 1)
        self._played += over
        self._at[over] = 0
        rewards = (1.0 + actions).astype(np.float32)
        return EnvStep(self._seen(self._at), rewards, terminated, truncated, following, rewards, over)

    def _seen(self, at):
        return np.stack([np.arange(self.num_envs), at], -1).astype(np.float32)


class Actor:
    """Takes the action step modulo 3; its recurrent state counts the actions of the episode."""

    version = 4
    log_std = None

    def __init__(self):
        self.greedy = 0

    def initial(self, environments):
        return {"acted": np.zeros((environments, 1), np.float32)}

    def draw(self, rows, environments, rng):
        return [None] * rows

    def act(self, observations, noise, state):
        assert (state["acted"][:, 0] == observations[:, 1]).all(), "what is remembered is of another episode"
        return (observations[:, 1] % 3).astype(np.int32), observations, {"acted": state["acted"] + 1}

    def act_greedily(self, observations, state):
        self.greedy += 1
        return self.act(observations, None, state)[0], {"acted": state["acted"] + 1}

    def to_env_actions(self, actions):
        return actions


def collector(task, envs=None, actor=None):
    envs = envs or Counts()
    form = BatchFormat(task, envs.observation_space, envs.action_space)
    return BatchCollector(envs, actor or Actor(), task, form, np.random.default_rng(0))


def test_batches_hold_consecutive_timesteps_and_the_ends_of_episodes():
    mine = collector(Task(least=24, most=24))
    first, second = mine.collect(), mine.collect()
    assert first.observations.shape == (12, 2, 2)
    batch = mine.collect()
    assert batch.version == 4
    ended = batch.ended
    going = ~ended[:-1]
    np.testing.assert_array_equal(batch.next_observations[:-1][going], batch.observations[1:][going])
    # The successor of an episode's last step is its true one, and the next row begins a new episode.
    np.testing.assert_array_equal(batch.next_observations[ended][:, 1], 5 + batch.next_observations[ended][:, 0])
    assert (batch.observations[1:][ended[:-1]][:, 1] == 0).all()
    np.testing.assert_array_equal(batch.actions, batch.observations[..., 1] % 3)
    assert not (batch.terminated & batch.truncated).any()
    assert mine.timesteps == 72
    del second


def test_returns_and_lengths_are_of_whole_episodes_also_across_batches():
    mine = collector(Task(least=6, most=6))
    batches = [mine.collect() for _ in range(8)]
    lengths = [length for batch in batches for length in batch.lengths]
    scores = [score for batch in batches for score in batch.returns]
    assert set(lengths) == {5, 6}
    # The action, which is the step modulo 3, plus 1.
    assert set(zip(lengths, scores, strict=True)) == {(5, 9.0), (6, 12.0)}


def test_batches_of_episodes_end_with_one():
    mine = collector(Task(least=1, most=100), Counts(1))
    for _ in range(4):
        batch = mine.collect()
        assert batch.ended[:, 0].tolist() == [False] * 4 + [True]
        assert batch.lengths == [5]
    assert collector(Task(least=1, most=3), Counts(1)).collect().timesteps == 3


def test_batches_are_longer_than_a_few_rows_however_many_environments():
    assert Task(least=64, most=64).rows_for(1) == (64, 64)
    assert Task(least=64, most=64).rows_for(16) == (4, 16)
    assert Task(least=3, most=3).rows_for(16)[1] == 3
    assert Task(rows=20).rows_for(16) == (20, 20)


def test_running_returns_are_discounted_sums_of_each_episode():
    mine = collector(Task(least=24, most=24, keeps=("running_returns",), discount=0.5))
    batch = mine.collect()
    sums = np.zeros(2)
    for t in range(12):
        sums = 0.5 * sums + batch.rewards[t]
        np.testing.assert_allclose(batch.running_returns[t], sums, rtol=1e-6)
        sums[batch.ended[t]] = 0.0


def test_rewards_are_preprocessed_and_returns_are_not():
    mine = collector(Task(least=24, most=24, rewards=[{"type": "clip", "min_value": 0.0, "max_value": 1.5}]))
    batch = mine.collect()
    assert batch.rewards.max() == 1.5
    assert set(batch.returns) == {9.0, 12.0}


def test_greedy_episodes_are_played_as_often_as_asked_and_are_in_no_batch():
    task = Task(least=5, most=5, evaluation_share=0.25)
    envs, actor = Counts(1), Actor()
    mine = collector(task, envs, actor)
    episodes = evaluations = 0
    for _ in range(40):
        batch = mine.collect()
        episodes += len(batch.returns)
        assert batch.observations[0, 0, 1] == 0, "no episode is cut for an evaluation"
        if mine.evaluates_next:
            assert mine.evaluate() == [(9.0, 5)]
            evaluations += 1
    assert evaluations == pytest.approx(0.25 * episodes, abs=1)
    assert actor.greedy == 5 * evaluations
    assert len(set(envs.resets)) == len(envs.resets) == 1 + 2 * evaluations


def test_each_environment_plays_one_episode_of_an_evaluation():
    mine = collector(Task(evaluation_share=1.0), Counts(3))
    assert sorted(mine.evaluate()) == [(9.0, 5), (12.0, 6), (13.0, 7)]


def test_with_one_environment_a_batch_ends_early_rather_than_an_episode_be_cut():
    mine = collector(Task(least=12, most=12, evaluation_share=0.5), Counts(1))
    while not mine.evaluates_next:
        batch = mine.collect()
    assert batch.ended[-1, 0]
    assert batch.timesteps <= 12


def test_interrupted_episodes_are_marked_as_truncated():
    envs = Counts(1)
    mine = collector(Task(least=12, most=12), envs)
    envs.breaks_at = 3
    batch = mine.collect()
    assert batch.timesteps == 12
    assert batch.truncated[2, 0]
    assert batch.observations[3, 0, 1] == 0
    assert batch.lengths[0] == 5


def test_after_every_step_somebody_may_look():
    looks = []
    mine = collector(Task(least=24, most=24))
    mine.tick = lambda: looks.append(1)
    mine.collect()
    mine.evaluate()
    assert len(looks) == 12 + 6


def test_different_workers_see_different_episodes():
    with GymnasiumEnvs(EnvironmentSpec(id="CartPole-v1", backend="gymnasium"), 1) as envs:
        task = Task(least=10, most=10)
        form = BatchFormat(task, envs.observation_space, envs.action_space)

        def first(number):
            seed = np.random.SeedSequence(7, spawn_key=(0, number))
            actor = Actor()
            actor.act = lambda observations, noise, state: (np.zeros(1, np.int32), None, state)
            return (
                BatchCollector(envs, actor, task, form, np.random.default_rng(seed)).collect().observations[0, 0].copy()
            )

        assert not np.array_equal(first(0), first(1))
        np.testing.assert_array_equal(first(1), first(1))
