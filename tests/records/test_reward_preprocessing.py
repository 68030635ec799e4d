"""Preprocessing of rewards against plain NumPy."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.policies.preprocessing import RewardPreprocessing
from steppe.specs.learning.preprocessing import RewardPreprocessingSpec

MODULES = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


def rewards(stages, values, xp=np):
    return RewardPreprocessing(RewardPreprocessingSpec.model_validate(stages))(xp.asarray(values), xp)


@MODULES
def test_rewards_are_divided_and_clipped_in_order(xp):
    values = np.array([[-10.0, 0.5, 3.0], [1.0, 2.0, 40.0]], np.float32)
    divide, clip = {"type": "divide", "scale": 10}, {"type": "clip", "min": -0.5, "max": 2}
    np.testing.assert_allclose(rewards([divide, clip], values, xp), np.clip(values / 10, -0.5, 2), rtol=1e-6)
    np.testing.assert_allclose(rewards([clip, divide], values, xp), np.clip(values, -0.5, 2) / 10, rtol=1e-6)


@MODULES
def test_rewards_are_standardized_over_the_rollout(xp):
    values = np.random.default_rng(6).normal(5, 3, (7, 4))
    made = rewards({"type": "standardize", "across_batch": True}, values, xp)
    np.testing.assert_allclose(made, (values - values.mean()) / values.std(), atol=1e-5)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(rewards({"type": "standardize", "across_batch": True}, np.ones((3, 2)), xp), 0.0)


def test_reward_stages_declare_their_needs():
    def made(stages):
        return RewardPreprocessing(RewardPreprocessingSpec.model_validate(stages))

    clip = {"type": "clip", "min": -1, "max": 1}
    assert (made([clip]).normalizes, made([clip]).spans_rollout) == (False, False)
    assert (made([clip, "running_standardize"]).normalizes, made([clip]).spans_rollout) == (True, False)
    assert made([{"type": "standardize", "across_batch": True}]).spans_rollout
    np.testing.assert_array_equal(made([clip, "running_standardize"])(np.array([-3.0, 0.5])), [-1.0, 0.5])
    assert hash(made([clip])) == hash(made([clip]))


def test_a_rollout_on_several_devices_is_standardized_as_one():
    stages = RewardPreprocessing(
        RewardPreprocessingSpec.model_validate([{"type": "standardize", "across_batch": True}])
    )
    values = np.random.default_rng(0).normal(3.0, 2.0, (6, 4)).astype(np.float32)
    halves = np.stack([values[:, :2], values[:, 2:]])
    average = partial(jax.lax.pmean, axis_name="devices")
    spread = jax.vmap(lambda half: stages(half, jnp, average), axis_name="devices")(halves)
    np.testing.assert_allclose(np.concatenate(list(spread), 1), stages(values), atol=1e-5)
