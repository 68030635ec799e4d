"""Running statistics against NumPy's over all values."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.agents.core import normalizers
from steppe.agents.core.normalizers import CLIP, Statistics, empty, merge, normalize, scale

compiled_merge = jax.jit(merge, static_argnums=2)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    batches=st.lists(st.sampled_from([(1, 1), (3, 2), (8, 1)]), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 5.0, -200.0]),
)
def test_merging_batch_by_batch_equals_mean_and_variance_of_all_values(seed, batches, offset):
    rng = np.random.default_rng(seed)
    values = [(offset + rng.normal(scale=(1.0, 10.0, 0.1), size=(*b, 3))).astype(np.float32) for b in batches]
    statistics = empty((3,))
    for batch in values:
        statistics = compiled_merge(statistics, batch)
    together = np.concatenate([batch.reshape(-1, 3) for batch in values]).astype(np.float64)
    assert statistics.samples == len(together)
    np.testing.assert_allclose(statistics.mean, together.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(statistics.variance, together.var(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_what_has_no_weight_does_not_count(shape):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(6, 2, *shape)).astype(np.float32)
    weights = np.full((6, 2), 1.5, np.float32)
    weights[4:] = 0.0
    before = merge(empty(shape), rng.normal(2.0, size=(5, 2, *shape)).astype(np.float32))
    for weighted, plain in zip(
        compiled_merge(before, values, None, weights), compiled_merge(before, values[:4]), strict=True
    ):
        np.testing.assert_allclose(weighted, plain, rtol=1e-5)


def test_scalars_are_measured_too():
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    statistics = compiled_merge(empty(()), values)
    assert statistics.mean == pytest.approx(5.5)
    assert statistics.variance == pytest.approx(values.var())


def sharded_merge(statistics, values):
    """`values` [devices, T, N, ...] merged on each device with all others: the devices' statistics."""
    return jax.vmap(partial(merge, axis="devices"), in_axes=(None, 0), axis_name="devices")(statistics, values)


def test_devices_that_merge_together_agree_on_the_statistics_of_all_values():
    rng = np.random.default_rng(2)
    seen, values = rng.normal(size=(5, 2, 3)).astype(np.float32), rng.normal(2, 3, (2, 4, 3, 3)).astype(np.float32)
    statistics = sharded_merge(merge(empty((3,)), seen), values)
    together = np.concatenate([seen.reshape(-1, 3), values.reshape(-1, 3)])
    for device in range(2):
        assert statistics.samples[device] == len(together)
        np.testing.assert_allclose(statistics.mean[device], together.mean(0), rtol=1e-4)
        np.testing.assert_allclose(statistics.variance[device], together.var(0), rtol=1e-4)


def test_devices_keep_the_variance_of_values_far_from_zero():
    values = np.random.default_rng(3).normal(10_000.0, 1.0, (2, 64, 4, 1)).astype(np.float32)
    statistics = sharded_merge(empty((1,)), values)
    np.testing.assert_allclose(statistics.variance[0], values.astype(np.float64).var(), rtol=0.01)


def test_one_device_keeps_the_variance_of_values_far_from_zero():
    values = np.random.default_rng(3).normal(10_000.0, 1.0, (64, 8, 1)).astype(np.float32)
    statistics = empty((1,))
    for batch in np.split(values, 4):
        statistics = compiled_merge(statistics, batch)
    np.testing.assert_allclose(statistics.variance, values.astype(np.float64).var(), rtol=0.01)


def test_before_anything_was_seen_normalizing_changes_nothing():
    values = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(normalize(empty((3,)), values), values, rtol=1e-6)
    np.testing.assert_allclose(scale(empty(()), values), values, rtol=1e-6)


def test_normalized_values_have_mean_0_and_variance_1():
    values = np.random.default_rng(1).normal((5.0, -3.0), (2.0, 0.1), (50, 4, 2)).astype(np.float32)
    normalized = np.asarray(normalize(merge(empty((2,)), values), values))
    np.testing.assert_allclose(normalized.mean((0, 1)), 0.0, atol=1e-4)
    np.testing.assert_allclose(normalized.std((0, 1)), 1.0, rtol=1e-3)


def test_normalized_values_are_held_within_the_clip():
    statistics = Statistics(np.float32(1.0), np.float32(4.0), np.float32(10.0))
    values = np.array([1.0, 3.0, 1e6, -1e6], np.float32)
    np.testing.assert_allclose(normalize(statistics, values), [0.0, 1.0, CLIP, -CLIP], rtol=1e-6)


def test_rewards_are_scaled_but_not_shifted():
    statistics = Statistics(np.float32(100.0), np.float32(4.0), np.float32(10.0))
    rewards = np.array([0.0, 2.0, -2.0, 1e6], np.float32)
    np.testing.assert_allclose(scale(statistics, rewards), [0.0, 1.0, -1.0, CLIP], rtol=1e-6)


def test_a_constant_observation_does_not_blow_up():
    statistics = merge(empty((1,)), np.full((16, 2, 1), 3.0, np.float32))
    assert statistics.variance == pytest.approx(0.0)
    assert np.all(np.isfinite(normalize(statistics, np.float32(3.0))))
    assert normalizers.normalize(statistics, np.float32(3.0)).item() == pytest.approx(0.0)


def test_statistics_stay_right_when_the_count_no_longer_grows():
    # 2 ** 24 + 1 is 2 ** 24 in float32.
    statistics = Statistics(np.zeros((), np.float32), np.full((), 4.0, np.float32), np.float32(2**24))
    values = np.random.default_rng(0).normal(0.0, 2.0, (4000, 1, 1)).astype(np.float32)
    after, _ = jax.lax.scan(lambda at, value: (merge(at, value), None), statistics, values)
    assert after.variance == pytest.approx(4.0, rel=1e-3)
    many, _ = jax.lax.scan(lambda at, _: (merge(at, jnp.zeros((1, 1))), None), statistics, None, length=100_000)
    assert many.variance < 4.0
