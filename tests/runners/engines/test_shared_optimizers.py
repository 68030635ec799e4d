"""In-place optimisers take the steps of optax, and lose none if many threads step at once."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from steppe.agents.core.kernels import in_one_kernel
from steppe.agents.core.learning_rate import LearningRate
from steppe.agents.core.optimizers import OptimizerSettings, make_transform
from steppe.errors import CheckpointError, UserError
from steppe.runners.engines import shared_optimizers
from steppe.runners.engines.shared_optimizers import SharedOptimizer, UpdateRule, shared_steps
from steppe.specs.learning.optimizer import OptimizerSpec

KINDS = {
    "adam": {},
    "nadam": {},
    "adagrad": {},
    "adadelta": {},
    "rmsprop": {},
    "rmsprop with momentum": {"momentum": 0.8},
    "momentum": {},
    "momentum of Nesterov": {"use_nesterov": True},
    "gradient_descent": {},
}
GRADIENTS = st.lists(st.lists(st.floats(-10.0, 10.0, width=32), min_size=3, max_size=3), min_size=1, max_size=5)


def spec_of(kind, **more):
    return TypeAdapter(OptimizerSpec).validate_python({"type": kind.split()[0], **KINDS.get(kind, {}), **more})


def optimizer_of(spec, size, rate):
    return SharedOptimizer(UpdateRule(spec, rate), size)


def steps_of_optax(spec, rate, params, gradients):
    transform = make_transform(spec, rate, None)
    state = transform.init(params)
    for gradient in gradients:
        change, state = transform.update(gradient, state, params)
        params = optax.apply_updates(params, change)
    return np.asarray(params)


def stepped(optimizer, params, gradients):
    params = params.copy()
    for gradient in gradients:
        optimizer.step(params, gradient)
    return params


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(gradients=GRADIENTS, rate=st.floats(1e-4, 0.5))
def test_each_step_is_that_of_optax(kind, gradients, rate):
    gradients = [np.array(gradient, np.float32) for gradient in gradients]
    params = np.array([0.5, -2.0, 0.0], np.float32)
    spec = spec_of(kind)
    expected = steps_of_optax(spec, rate, params, gradients)
    np.testing.assert_allclose(
        stepped(optimizer_of(spec, 3, rate), params, gradients), expected, rtol=2e-4, atol=2e-5 * rate
    )


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_several_blocks_are_stepped_whole(kind, monkeypatch):
    rng = np.random.default_rng(1)
    params, *gradients = rng.normal(size=(4, 103)).astype(np.float32)
    whole = stepped(optimizer_of(spec_of(kind), 103, 0.1), params, gradients)
    monkeypatch.setattr(shared_optimizers, "BLOCK", 25)
    np.testing.assert_array_equal(stepped(optimizer_of(spec_of(kind), 103, 0.1), params, gradients), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_computed_by_a_compiled_program_is_the_same(kind):
    rng = np.random.default_rng(3)
    params, *gradients = rng.normal(size=(5, 40)).astype(np.float32)
    spec = spec_of(kind)
    expected = optimizer_of(spec, 40, 0.1)
    optimizer = optimizer_of(spec, 40, 0.1)
    moved = params.copy()

    @jax.jit
    def computed_by(gradient, statistics, taken):
        return optimizer.rule.compute(gradient, statistics, taken, jnp)

    for gradient in gradients:
        computed = computed_by(gradient, optimizer.statistics, optimizer.taken)
        optimizer.move(moved, np.asarray(computed.change), np.array(computed.increments).reshape(-1, 40))
    np.testing.assert_allclose(moved, stepped(expected, params, gradients), rtol=1e-4, atol=1e-6)
    for name, values in expected.arrays().items():
        np.testing.assert_allclose(optimizer.arrays()[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("decay", ["linear", "exponential", "cosine"])
def test_a_falling_rate_falls_in_a_compiled_program_too(decay):
    options = OptimizerSettings(learning_rate=0.5, learning_rate_decay=decay, final_learning_rate=0.1)
    rule = UpdateRule(spec_of("gradient_descent"), LearningRate.of(options, 40, 0.5).schedule())
    computed_by = jax.jit(in_one_kernel(lambda taken: rule.compute(jnp.ones(3), jnp.zeros((0, 3)), taken, jnp).change))
    falls = LearningRate.of(options, 40, 0.5).on_host()
    for taken in (0, 13, 40, 60):
        np.testing.assert_allclose(computed_by(taken), np.full(3, falls(taken)), rtol=1e-5)


def test_concurrent_additions_to_statistics_survive():
    optimizer, params = optimizer_of(spec_of("rmsprop", decay=0.5), 2, 0.1), np.zeros(2, np.float32)
    before = optimizer.statistics.copy()
    # Both are computed from the same statistics, as by two threads at once.
    computed = [optimizer.rule.compute(np.full(2, size, np.float32), before, 0, np) for size in (2.0, 4.0)]
    for each in computed:
        optimizer.move(params, each.change, np.array(each.increments))
    np.testing.assert_allclose(optimizer.arrays()["nu"], 0.5 * (0.5 * 2.0**2) + 0.5 * 4.0**2)
    np.testing.assert_allclose(params, -computed[0].change - computed[1].change)


@pytest.mark.parametrize("decay", ["linear", "exponential", "cosine"])
def test_learning_rates_fall_as_those_of_optax_do(decay):
    options = OptimizerSettings(learning_rate=1e-2, learning_rate_decay=decay, final_learning_rate=1e-4)
    rate = LearningRate.of(options, 50, 2e-2)
    ours, theirs = rate.on_host(), rate.schedule()
    for taken in (0, 1, 17, 49, 50, 80):
        assert ours(taken) == pytest.approx(float(theirs(taken)), rel=1e-5)


def test_a_falling_learning_rate_needs_to_know_when_it_ends():
    options = OptimizerSettings(learning_rate_decay="linear")
    with pytest.raises(UserError, match="needs total_timesteps"):
        LearningRate.of(options, None, 0.1)


def test_a_step_by_schedule_uses_the_number_of_steps_before_it():
    optimizer = optimizer_of(spec_of("gradient_descent"), 1, lambda taken: float(taken))
    params = np.zeros(1, np.float32)
    for _ in range(4):
        optimizer.step(params, np.ones(1, np.float32))
    assert params[0] == -(0 + 1 + 2 + 3)


@pytest.mark.parametrize("kind", KINDS)
def test_restored_statistics_go_on_bit_for_bit(kind):
    rng = np.random.default_rng(2)
    params, *gradients = rng.normal(size=(7, 40)).astype(np.float32)
    whole = stepped(optimizer_of(spec_of(kind), 40, 0.1), params, gradients)
    first = optimizer_of(spec_of(kind), 40, 0.1)
    half = stepped(first, params, gradients[:3])
    kept = first.arrays()
    stepped(first, half, gradients)  # this must not change the copies
    second = optimizer_of(spec_of(kind), 40, 0.1)
    second.restore(kept)
    np.testing.assert_array_equal(stepped(second, half, gradients[3:]), whole)


def test_statistics_of_another_optimizer_are_refused():
    kept = optimizer_of(spec_of("rmsprop"), 4, 0.1).arrays()
    for other in (optimizer_of(spec_of("adam"), 4, 0.1), optimizer_of(spec_of("rmsprop"), 5, 0.1)):
        with pytest.raises(CheckpointError, match="other settings"):
            other.restore(kept)


def test_no_step_of_any_thread_goes_uncounted():
    optimizer, params = optimizer_of(spec_of("adam"), 3, 1e-3), np.zeros(3, np.float32)

    def work():
        for _ in range(500):
            computed = optimizer.rule.compute(np.ones(3, np.float32), optimizer.statistics, optimizer.taken, np)
            optimizer.move(params, computed.change, np.array(computed.increments))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert optimizer.arrays()["count"] == 2000
    # Adam's steps against a constant gradient have the length of the learning rate; few are lost to races.
    assert np.all(np.abs(params + 2.0) < 0.2)


def test_wrappers_come_down_to_repeats_a_fraction_and_a_bound():
    inner = {"type": "clipped_step", "clipping_value": 0.01, "optimizer": "momentum"}
    spec = spec_of(
        "multi_step", num_steps=5, optimizer={"type": "subsampling_step", "fraction": 0.5, "optimizer": inner}
    )
    steps = shared_steps(spec, "multi-threaded")
    assert (steps.repeats, steps.fraction) == (5, 0.5)
    params = np.zeros(2, np.float32)
    optimizer_of(steps.optimizer, 2, 1.0).step(params, np.array([0.005, -3.0], np.float32))
    np.testing.assert_allclose(params, [-0.005, 0.01])


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"type": "natural_gradient"}, '"natural_gradient" keeps each step within a divergence of one policy'),
        (
            {"type": "multi_step", "optimizer": {"type": "optimized_step", "optimizer": "adam"}},
            '"optimized_step" searches along each step for a lower loss',
        ),
        (
            {"type": "clipped_step", "clipping_value": 0.1, "optimizer": {"type": "multi_step", "optimizer": "adam"}},
            '"multi_step" is out of its place',
        ),
    ],
)
def test_optimizers_that_need_their_own_model_are_refused(spec, why):
    with pytest.raises(UserError, match=why) as error:
        shared_steps(spec_of(spec.pop("type"), **spec), "distributed")
    assert 'run_mode "distributed"' in str(error.value)
