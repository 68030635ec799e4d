"""The shared model: steps, targets, statistics and snapshots."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.agents.core import normalizers
from steppe.errors import CheckpointError
from steppe.runners.engines.compiled.packing import Packing
from steppe.runners.engines.threads.model import SharedModel, SharedStatistics
from steppe.runners.engines.threads.optimizer_plan import plan_for
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

PLAIN = {"optimizer": "gradient_descent", "learning_rate": 1.0}


def make(type="a3c", action=None, normalizes=False, **settings):
    situation = AgentContext(
        Box((3,)),
        action or Discrete(2),
        NetworkSpec([{"type": "dense", "size": 4}]),
        num_envs=2,
        normalize_observations=normalizes,
        normalize_rewards=normalizes,
    )
    agent = agents.make(AgentSpec.model_validate({"type": type, **PLAIN, **settings}), situation)
    return SharedModel(agent, plan_for(agent.for_workers(2)), agent.init(jax.random.key(0)))


def step(model, phase=0, gradient=1.0, turn=0):
    """A step against a gradient, with the current statistics of the model."""
    changes = []
    for params, _, optimizer in model._phases[phase]:
        part = np.full(params.size, gradient, np.float32) if np.isscalar(gradient) else gradient[: params.size]
        told = optimizer.rule.compute(part, optimizer.statistics, optimizer.taken, np)
        changes.append(np.array([told.change, *told.increments]))
    return model.step(phase, changes, turn)


def reading_of(model):
    packing = Packing(model.example(), largest=None)
    return packing.views(np.zeros(packing.words, np.uint32))


def test_a_step_is_in_place_and_returns_the_number_of_steps_before():
    model = make()
    before, place = model.params.copy(), model.params.ctypes.data
    assert step(model) == 0
    assert step(model) == 1
    np.testing.assert_allclose(model.params, before - 2.0, rtol=1e-6)
    assert model.params.ctypes.data == place
    assert model.updates == 2


def test_a_reading_is_a_copy_of_all_that_a_thread_needs():
    model = make("dqn", normalizes=True, optimizer="adam")
    reading = reading_of(model)
    step(model)
    model.observations.merge(np.full(3, 2.0), np.ones(3), 8)
    model.read(reading)
    np.testing.assert_array_equal(reading.params, model.params)
    np.testing.assert_array_equal(reading.target, model.target)
    (((statistics, taken),),) = reading.optimizers
    np.testing.assert_array_equal(statistics, model._phases[0][0][2].statistics)
    assert (statistics.shape, taken) == ((2, model.params.size), 1)
    np.testing.assert_array_equal(reading.observations.mean, [2.0, 2.0, 2.0])
    assert (reading.updates, reading.observations.samples, reading.returns.samples) == (1, 8, 0)
    step(model)
    assert np.all(reading.params != model.params)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_target_moves_when_the_updates_of_all_workers_are_a_multiple_of_its_frequency(weight):
    model = make("dqn", target_sync_frequency=3, target_update_weight=weight)
    start = model.target.copy()
    for update in range(1, 7):
        before = model.target.copy()
        step(model)
        expected = before + weight * (model.params - before) if update % 3 == 0 else before
        np.testing.assert_allclose(model.target, expected, rtol=1e-6)
    assert np.all(model.target != start)


def test_a_delayed_actor_and_the_targets_wait_for_the_critics():
    model = make("td3", Box((1,), (-1.0,), (1.0,)), target_update_weight=1.0)
    actor = slice(0, 4)
    before, target = model.params.copy(), model.target.copy()
    step(model, turn=0)
    np.testing.assert_array_equal(model.params[actor], before[actor])
    np.testing.assert_array_equal(model.target, target)
    assert np.all(model.params[-4:] != before[-4:])
    step(model, turn=1)
    assert np.all(model.params[actor] != before[actor])
    np.testing.assert_array_equal(model.target, model.params)


def test_statistics_of_all_threads_are_those_of_everything_they_saw():
    rng = np.random.default_rng(1)
    values = rng.normal(5.0, 3.0, (40, 6, 2, 3)).astype(np.float32)
    shared = SharedStatistics(normalizers.empty((3,)))

    def work(batches):
        for batch in batches:
            shared.merge(batch.mean((0, 1)), batch.var((0, 1)), 12)

    threads = [threading.Thread(target=work, args=(values[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mean, variance, samples = shared.copied()
    assert samples == 480
    np.testing.assert_allclose(mean, values.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(variance, values.var((0, 1, 2)), rtol=1e-4)


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"optimizer": "rmsprop", "baseline_optimizer": "adam"}])
def test_a_restored_model_continues_like_the_original(settings):
    rng = np.random.default_rng(2)
    one, other = make(normalizes=True, **settings), make(normalizes=True, **settings)
    phases = 2 if "baseline_optimizer" in settings else 1

    def go_on(model, seed):
        rng = np.random.default_rng(seed)
        for phase in range(phases):
            step(model, phase, rng.normal(size=model.params.size).astype(np.float32))
        model.observations.merge(rng.normal(size=3), np.ones(3), 10)

    go_on(one, rng.integers(100))
    kept = one.arrays()
    other.restore(kept)
    go_on(one, 7)
    go_on(other, 7)
    first, second = one.arrays(), other.arrays()
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_arrays_that_do_not_fit_are_refused():
    arrays = make("dqn").arrays()
    for name in ("params", "target"):
        with pytest.raises(CheckpointError, match=f'"{name}".*other settings'):
            make("dqn").restore({**arrays, name: np.zeros(3, np.float32)})


def test_a_parameter_that_is_no_number_is_noticed():
    model = make()
    assert model.is_finite()
    model.params[3] = np.nan
    assert not model.is_finite()
