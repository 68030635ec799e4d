"""A replay memory that many workers fill loses and mixes up nothing, and updates have the requested ratio."""

from __future__ import annotations

import json
from functools import cache

import jax
import numpy as np
import pytest
from runs import experiment

from steppe.errors import UserError
from steppe.runners.compilation import prepare_jax
from steppe.runners.engines.asynchronous.cores._base import Clock, Pace
from steppe.runners.engines.asynchronous.cores.replay_core import BLOCK
from steppe.runners.engines.asynchronous.learner.core_factory import make_core
from steppe.specs.spaces import Box, Discrete

OBSERVED, CHOICE = Box((2,)), Discrete(3)
DQN = {
    "type": "dqn",
    "batch_size": 16,
    "learning_starts": 100,
    "update_frequency": 4,
    "memory": {"capacity": 512},
    "n_step": 3,
}


def core_of(agent=DQN, asynchronous=None, environment="CartPole-v1", **fields):
    """A core that has just begun; cores of the same settings are compiled once."""
    core = compiled(json.dumps([environment, agent, {"asynchronous": asynchronous or {}, **fields}]))
    core.begin(1)
    return core


@cache
def compiled(words):
    prepare_jax()
    environment, agent, fields = json.loads(words)
    fields |= {"run_mode": "async", "num_envs": 1, "network": [{"type": "dense", "size": 8}]}
    return make_core(experiment(environment, agent, **fields), (OBSERVED, CHOICE), None)


def batch_of(core, worker, rows=40, environments=2, first=0):
    """Observations (worker + environment / 10, time); rewards are the time; one episode ends in the middle."""
    from steppe.runners.engines.asynchronous.wire.batches import BatchFormat

    batch = BatchFormat(core.task, *core.spaces).allocate(rows, environments)
    times = first + np.arange(rows + 1)
    for environment in range(environments):
        seen = np.stack([np.full(rows + 1, worker + environment / 10), times], -1)
        batch.observations[:, environment], batch.next_observations[:, environment] = seen[:-1], seen[1:]
    batch.rewards[:] = times[:-1, None]
    batch.terminated[rows // 2, 0] = True
    return batch


def memory_of(core):
    kept = core._learner.memory
    return jax.tree.map(np.asarray, kept.timesteps), int(kept.filled)


def test_pieces_of_different_workers_lie_one_behind_the_other_each_ending_in_a_cut():
    core = core_of()
    core.take_in(batch_of(core, 1, rows=48))
    core.take_in(batch_of(core, 2, rows=50, environments=1))
    timesteps, filled = memory_of(core)
    assert filled == 2 * BLOCK == 128
    assert core._staged == 48 * 2 + 50 - 128
    who, when = timesteps.observations[:128, 0].T
    np.testing.assert_allclose(who, [*[1.0] * 48, *[1.1] * 48, *[2.0] * 32], rtol=1e-6)
    np.testing.assert_array_equal(when, [*range(48), *range(48), *range(32)])
    assert np.flatnonzero(timesteps.truncated[:128, 0]).tolist() == [47, 95]
    assert np.flatnonzero(timesteps.terminated[:128, 0]).tolist() == [24, 96 + 25]
    core.take_in(batch_of(core, 3, rows=64, environments=1))
    timesteps, filled = memory_of(core)
    assert filled == 192
    assert np.flatnonzero(timesteps.truncated[:192, 0]).tolist() == [47, 95, 145]


def test_n_step_returns_never_run_from_one_worker_into_another():
    core = core_of()
    for worker in range(1, 7):
        core.take_in(batch_of(core, worker, rows=32))
    drawn = core.agent.memory.sample(core._learner.memory, jax.random.key(3), 512)
    seen, following = np.asarray(drawn.observations), np.asarray(drawn.next_observations)
    np.testing.assert_array_equal(seen[:, 0], following[:, 0])
    passed = following[:, 1] - seen[:, 1]
    assert set(passed.tolist()) == {1.0, 2.0, 3.0}
    discount, time = 0.99, seen[:, 1]
    sums = sum(discount**k * (time + k) * (k < passed) for k in range(3))
    np.testing.assert_allclose(drawn.rewards, sums, rtol=1e-5)
    is_terminal = np.asarray(drawn.discounts) == 0.0
    np.testing.assert_allclose(np.asarray(drawn.discounts)[~is_terminal], discount ** passed[~is_terminal], rtol=1e-5)


def test_the_oldest_timesteps_are_written_over():
    core = core_of()
    for worker in range(1, 30):
        core.take_in(batch_of(core, worker, rows=32, environments=1))
    timesteps, filled = memory_of(core)
    assert filled == 512
    assert set(timesteps.observations[:, 0, 0].tolist()) == set(map(float, range(13, 29)))


def test_learning_begins_with_enough_timesteps_and_keeps_the_ratio():
    core = core_of(asynchronous={"update_to_data": 0.25})
    core.take_in(batch_of(core, 1, rows=40))
    assert (core.can_learn, core.wants_data) == (False, True)
    core.take_in(batch_of(core, 1, rows=40))
    assert (core.can_learn, core.wants_data) == (True, False)
    taken, data = 0, 80
    for _ in range(12):
        while core.can_learn:
            learned = core.learn(0.02)
            assert learned.is_healthy
            assert np.isfinite(learned.metrics["loss"])
            taken += learned.updates
        core.take_in(batch_of(core, 2, rows=40))
        data += 80
    assert core.updates == taken == int(core._learner.agent.updates)
    assert taken == pytest.approx(0.25 * (data - 80), abs=1)


def test_without_a_ratio_it_learns_as_often_as_in_run_mode_single():
    assert core_of()._pace.ratio == 0.25
    assert core_of(DQN | {"update_frequency": 8, "updates": 2})._pace.ratio == 0.25
    multi = DQN | {"optimizer": {"type": "multi_step", "num_steps": 5, "optimizer": "adam"}}
    core = core_of(multi)
    assert core._pace.ratio == 1.25
    for _ in range(3):
        core.take_in(batch_of(core, 1, rows=40))
    assert core.learn(0.0).updates % 5 == 0


def test_as_many_as_can_be_never_refuses_data():
    core = core_of(asynchronous={"update_to_data": "max"})
    for _ in range(4):
        core.take_in(batch_of(core, 1, rows=40))
        assert core.wants_data
    assert core.can_learn
    assert core.learn(0.0).updates >= 1
    assert core.can_learn


@pytest.mark.parametrize("memory", ["replay", "prioritized_replay"])
def test_a_restored_core_continues_exactly(memory):
    agent = DQN | {"memory": {"type": memory, "capacity": 512}}
    core = core_of(agent)
    for worker in range(3):
        core.take_in(batch_of(core, worker, rows=45))
    core.learn(0.0)
    saved = copied(core.snapshot())
    counts = core.updates, core._staged, core._pace.owed
    core.take_in(batch_of(core, 9, rows=45))
    core.learn(0.0)
    expected = copied(core.snapshot())
    core.begin(7)
    core.restore(saved, 5)
    assert (core.updates, core._staged, core._pace.owed) == counts
    core.take_in(batch_of(core, 9, rows=45))
    core.learn(0.0)
    found = core.snapshot()
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def copied(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def test_prioritised_drawing_follows_the_errors():
    core = core_of(DQN | {"memory": {"type": "prioritized_replay", "capacity": 512}})
    for worker in range(3):
        core.take_in(batch_of(core, worker, rows=45))
    before = np.asarray(core._learner.memory.tree)
    core.learn(0.0)
    assert (np.asarray(core._learner.memory.tree) != before).any()


def test_observations_are_normalised_by_the_statistics_of_all_workers():
    environment = {"id": "CartPole-v1", "normalize_observations": True}
    core = core_of(environment=environment)
    core.take_in(batch_of(core, 1, rows=64, environments=1))
    core.take_in(batch_of(core, 3, rows=64, environments=1))
    mean = core.weights()["normalizer/mean"]
    np.testing.assert_allclose(mean, [2.0, 31.5], rtol=1e-4)


def test_a_falling_learning_rate_ends_with_the_data():
    falling = DQN | {"learning_rate_decay": "linear"}
    core = core_of(falling, {"update_to_data": 0.5}, total_timesteps=6400)
    assert core.agent.total_updates() == pytest.approx(3200, rel=0.02)
    with pytest.raises(UserError, match="learning_rate_decay"):
        core_of(falling, {"update_to_data": "max"}, total_timesteps=6400)


def test_a_learner_that_diverges_says_so():
    core = core_of()
    broken = batch_of(core, 1, rows=80)
    broken.rewards[:] = 1e38
    broken.observations[:] = 1e30
    core.take_in(broken)
    core.take_in(broken)
    assert not core.learn(0.0).is_healthy


def test_debts_and_clocks():
    pace = Pace(0.5)
    pace.count(5)
    assert (pace.is_due, pace.wants_data, pace.most(100)) == (True, False, 2)
    pace.paid(2)
    assert (pace.is_due, pace.wants_data) == (False, True)
    assert pace.owed == 0.5
    clock = Clock()
    assert clock.fitting(1.0) == 1
    clock.took(10, 0.1)
    assert clock.fitting(0.5) == 50
    assert clock.fitting(0.0) == 1
    assert clock.fitting(1e9) == Clock.LARGEST
