"""Trajectories of many workers become batches of one shape, each learned from once."""

from __future__ import annotations

import json
from functools import cache

import jax
import numpy as np
import pytest
from runs import experiment

from steppe.agents._base import Trajectory
from steppe.errors import UserError
from steppe.runners.compilation import prepare_jax
from steppe.runners.engines.asynchronous.learner.core_factory import make_core
from steppe.runners.engines.asynchronous.wire.batches import BatchFormat
from steppe.specs.spaces import Box, Discrete

OBSERVED, CHOICE = Box((2,)), Discrete(3)
PUSH = Box((2,), (-1.0,), (1.0,))


def core_of(agent=None, environment="CartPole-v1", **fields):
    """A core that has just begun; cores of the same settings are compiled once."""
    core = compiled(json.dumps([environment, {"type": "impala", "horizon": 4} | (agent or {}), fields]))
    core.begin(1)
    return core


@cache
def compiled(words):
    prepare_jax()
    environment, agent, fields = json.loads(words)
    fields = {"run_mode": "async", "num_envs": 3, "network": [{"type": "dense", "size": 8}]} | fields
    action = CHOICE if environment == "CartPole-v1" else PUSH
    return make_core(experiment(environment, agent, **fields), (OBSERVED, action), None)


def batch_of(core, worker, environments, seed=0):
    rng = np.random.default_rng([seed, worker])
    batch = BatchFormat(core.task, *core.spaces).allocate(4, environments)
    for each in (batch.observations, batch.next_observations, batch.rewards, batch.outputs):
        each[:] = rng.normal(size=each.shape)
    batch.observations[..., 0] = worker
    batch.actions[:] = rng.integers(0, 3, batch.actions.shape)
    return batch


def test_trajectories_of_any_worker_fill_the_stack():
    core = core_of()
    core.take_in(batch_of(core, 1, 2))
    assert (core.can_learn, core.wants_data) == (False, True)
    core.take_in(batch_of(core, 2, 5))
    assert (core.can_learn, core.wants_data) == (True, False)
    assert core._stack.observations[0, :, 0].tolist() == [1, 1, 2]
    learned = core.learn(0.0)
    assert (learned.updates, core.updates, learned.is_healthy) == (1, 1, True)
    assert {"loss", "entropy"} <= learned.metrics.keys()
    # The rest of the second worker's trajectories is the next batch.
    assert core.can_learn
    assert core._stack.observations[0, :, 0].tolist() == [2, 2, 2]
    core.learn(0.0)
    assert (core.can_learn, core.wants_data, core.updates) == (False, True, 2)


def test_batches_that_are_not_learned_from_yet_are_counted():
    core = core_of()
    counts = [core.unsaved]
    for worker, environments in ((1, 2), (2, 4)):
        core.take_in(batch_of(core, worker, environments))
        counts.append(core.unsaved)
    for _ in range(2):
        core.learn(0.0)
        counts.append(core.unsaved)
    # After one update there are still three trajectories of the second batch.
    assert counts == [0, 1, 2, 1, 0]
    # A batch may arrive while the stack is full.
    for worker in (1, 2):
        core.take_in(batch_of(core, worker, 3))
    assert core.unsaved == 2
    core.restore(core.snapshot(), 1)
    assert core.unsaved == 0


def test_stacked_trajectories_teach_the_same_as_the_agents_own():
    core = core_of()
    agent, state = core.agent, core._learner.agent
    batch = batch_of(core, 1, 3)
    zeros = np.zeros_like(batch.rewards)
    trajectory = Trajectory(
        batch.observations,
        batch.actions,
        batch.rewards,
        batch.terminated,
        batch.truncated,
        batch.next_observations,
        batch.outputs,
        zeros,
        {},
        {},
    )
    expected, _ = jax.jit(agent.update)(state, trajectory)
    params = np.array(expected.params)
    core.take_in(batch)
    core.learn(0.0)
    np.testing.assert_allclose(core._learner.agent.params, params, rtol=1e-6)


def test_the_width_is_a_setting():
    core = core_of(asynchronous={"trajectories_per_update": 5})
    core.take_in(batch_of(core, 1, 3))
    assert not core.can_learn
    core.take_in(batch_of(core, 2, 3))
    assert core.can_learn


def test_a_restored_core_has_the_same_agent():
    core = core_of()
    core.take_in(batch_of(core, 1, 3))
    core.learn(0.0)
    saved = {name: array.copy() for name, array in core.snapshot().items()}
    core.begin(2)
    core.take_in(batch_of(core, 1, 2))
    core.restore(saved, 3)
    assert (core.updates, core.wants_data, core._columns) == (1, True, 0)
    for name, array in core.snapshot().items():
        np.testing.assert_array_equal(array, saved[name], err_msg=name)


def test_recurrent_policies_send_their_states():
    network = [{"type": "lstm", "size": 4}]
    core = core_of({"share_network": True}, network=network)
    assert core.task.keeps == ("outputs", "internals")
    batch = batch_of(core, 1, 3)
    assert len(batch.internals) == 2
    core.take_in(batch)
    assert core.learn(0.0).is_healthy


def test_a_value_network_with_a_memory_of_its_own_is_refused():
    with pytest.raises(UserError, match=r"set agent\.share_network"):
        core_of(network=[{"type": "lstm", "size": 4}])


def test_the_spread_of_a_gaussian_policy_comes_from_the_worker():
    core = core_of(environment="Pendulum-v1")
    batch = batch_of(core, 1, 3)
    batch.log_std = np.array([0.5, -1.0], np.float32)
    core.take_in(batch)
    assert core._stack.log_std.shape == (4, 3, 2)
    np.testing.assert_array_equal(core._stack.log_std[2, 1], batch.log_std)
    assert core.learn(0.0).is_healthy
