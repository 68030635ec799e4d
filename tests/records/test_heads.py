"""Outputs to actions: the same code in NumPy and JAX, against distributions worked out by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from steppe.records import heads
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

RNG = np.random.default_rng
MODULES = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


@MODULES
def test_greedy_takes_the_largest_of_each_choice(xp):
    logits = xp.asarray([[0.1, 2.0, 1.0, -3.0, -2.0], [3.0, 2.0, 5.0, 9.0, -2.0]])
    np.testing.assert_array_equal(heads.greedy("categorical", logits, Discrete(5), xp), [1, 3])
    np.testing.assert_array_equal(heads.greedy("q_values", logits, Discrete(5), xp), [1, 3])
    np.testing.assert_array_equal(heads.greedy("categorical", logits, MultiDiscrete((3, 2)), xp), [[1, 1], [2, 0]])
    np.testing.assert_array_equal(
        heads.greedy("categorical", logits[:, :4], MultiDiscrete((2, 2)), xp), [[1, 0], [0, 1]]
    )
    np.testing.assert_array_equal(heads.greedy("gaussian", logits, Box((5,)), xp), logits)


@MODULES
@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Discrete(5), [0, 0]),
        (MultiDiscrete((3, 2)), [[0, 0], [0, 0]]),
        (Box((2,), (-1.0, 0.0), (3.0, 10.0)), [[1.0, 5.0], [1.0, 5.0]]),
        (Box((1, 2)), [[0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_a_random_head_without_noise_takes_the_first_choice_or_the_middle(xp, space, expected):
    np.testing.assert_array_equal(heads.greedy("random", xp.zeros((2, 0)), space, xp), expected)


@MODULES
def test_categorical_samples_follow_the_softmax_of_each_choice(xp):
    space = MultiDiscrete((3, 2))
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5], np.float32)
    noise = heads.draw_noise("categorical", space, (20_000,), RNG(0))
    drawn = np.asarray(heads.sample("categorical", xp.asarray(logits), xp.asarray(noise), space, xp))
    assert drawn.shape == (20_000, 2)
    for column, part in enumerate((logits[:3], logits[3:])):
        frequencies = np.bincount(drawn[:, column], minlength=len(part)) / len(drawn)
        np.testing.assert_allclose(frequencies, np.exp(part) / np.exp(part).sum(), atol=0.015)


@MODULES
def test_gaussian_samples_have_the_mean_and_deviation(xp):
    mean, log_std = np.array([1.0, -2.0], np.float32), np.log(np.array([0.5, 3.0], np.float32))
    noise = heads.draw_noise("gaussian", Box((2,)), (40_000,), RNG(0))
    drawn = np.asarray(heads.sample("gaussian", mean, xp.asarray(noise), Box((2,)), xp, log_std=log_std))
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(drawn.std(0), [0.5, 3.0], rtol=0.03)


@MODULES
def test_q_values_explore_uniformly_with_probability_epsilon(xp):
    noise = heads.draw_noise("q_values", Discrete(4), (20_000,), RNG(0))
    values = xp.asarray(np.tile(np.array([0.0, 3.0, 1.0, 2.0], np.float32), (20_000, 1)))
    drawn = np.asarray(heads.sample("q_values", values, xp.asarray(noise), Discrete(4), xp, epsilon=0.4))
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.1, 0.7, 0.1, 0.1], atol=0.015)
    never = heads.sample("q_values", values, xp.asarray(noise), Discrete(4), xp, epsilon=0.0)
    assert np.all(np.asarray(never) == 1)


def test_random_actions_fill_the_space_evenly():
    noise = heads.draw_noise("random", MultiDiscrete((2, 3)), (9_000,), RNG(0))
    drawn = heads.sample("random", None, noise, MultiDiscrete((2, 3)))
    np.testing.assert_allclose(np.bincount(drawn[:, 1]) / 9_000, [1 / 3] * 3, atol=0.02)
    box = Box((2,), (-1.0, 0.0), (3.0, 10.0))
    drawn = heads.sample("random", None, heads.draw_noise("random", box, (9_000,), RNG(0)), box)
    assert np.all((drawn >= [-1, 0]) & (drawn <= [3, 10]))
    np.testing.assert_allclose(drawn.mean(0), [1, 5], atol=0.1)
    unbounded = Box((1,))
    drawn = heads.sample("random", None, heads.draw_noise("random", unbounded, (9_000,), RNG(0)), unbounded)
    assert float(drawn.std()) == pytest.approx(1.0, rel=0.05)


@MODULES
def test_postprocess_clips_shapes_and_counts_from_start(xp):
    box = Box((2, 1), (-1.0, -2.0), (1.0, 2.0))
    action = heads.postprocess(xp.asarray([[5.0, -5.0], [0.5, 0.25]]), box, xp)
    np.testing.assert_array_equal(action, [[[1.0], [-2.0]], [[0.5], [0.25]]])
    np.testing.assert_array_equal(heads.postprocess(xp.asarray([0, 2]), Discrete(3, start=-1), xp), [-1, 1])
    np.testing.assert_array_equal(heads.postprocess(xp.asarray([[0, 2]]), MultiDiscrete((2, 3)), xp), [[0, 2]])
    whole = Box((1,), (0.0,), (10.0,), "int32")
    assert heads.postprocess(xp.asarray([[3.7]]), whole, xp).dtype == np.int32
    assert heads.postprocess(xp.asarray([[3.7]]), whole, xp)[0, 0] == 4
    np.testing.assert_array_equal(heads.postprocess(xp.asarray([[1e9]]), Box((1,)), xp), [[1e9]])


def test_noise_is_finite_float32_with_the_right_columns():
    for kind, space, columns in [
        ("categorical", Discrete(3), 3),
        ("categorical", MultiDiscrete((3, 2)), 5),
        ("gaussian", Box((2, 2)), 4),
        ("q_values", Discrete(3), 4),
        ("random", Box((2, 2), (0.0,), (1.0,)), 4),
        ("constant", Discrete(3), 0),
    ]:
        noise = heads.draw_noise(kind, space, (2, 5), RNG(0))
        assert noise.shape == (2, 5, columns)
        assert noise.dtype == np.float32
        assert np.all(np.isfinite(noise))
