"""From outputs to actions: the same code in NumPy and JAX, against distributions computed by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from steppe.policies import heads
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

RNG = np.random.default_rng
MODULES = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
BOUNDED = Box((2,), (-1.0, 0.0), (3.0, 0.5))


def drawn_noise(kind, space, count, seed=0):
    return heads.draw_noise(heads.noise_of(kind, space), (count,), RNG(seed))


def sampled(kind, outputs, space, xp=np, count=20_000, seed=0, **options):
    """`count` actions of the same outputs."""
    rows = np.broadcast_to(np.asarray(outputs, np.float32), (count, len(outputs)))
    noise = drawn_noise(kind, space, count, seed)
    return np.asarray(heads.sample(kind, xp.asarray(rows), xp.asarray(noise), space, xp, **options))


@MODULES
def test_greedy_takes_the_largest_of_each_choice(xp):
    logits = xp.asarray([[0.1, 2.0, 1.0, -3.0, -2.0], [3.0, 2.0, 5.0, 9.0, -2.0]])
    for kind in ("categorical", "q_values"):
        np.testing.assert_array_equal(heads.greedy(kind, logits, Discrete(5), xp), [1, 3])
        np.testing.assert_array_equal(heads.greedy(kind, logits, MultiDiscrete((3, 2)), xp), [[1, 1], [2, 0]])
        np.testing.assert_array_equal(heads.greedy(kind, logits[:, :4], MultiDiscrete((2, 2)), xp), [[1, 0], [0, 1]])


@MODULES
def test_greedy_is_the_middle_of_each_distribution(xp):
    outputs = np.array([[0.5, -1.0, 2.0, 0.1]], np.float32)
    given = xp.asarray(outputs)
    np.testing.assert_array_equal(heads.greedy("gaussian", given, Box((4,)), xp), outputs)
    np.testing.assert_allclose(heads.greedy("deterministic", given, Box((4,)), xp), np.tanh(outputs), rtol=1e-6)
    np.testing.assert_allclose(
        heads.greedy("squashed_gaussian", given, Box((2,)), xp), np.tanh(outputs[:, :2]), rtol=1e-6
    )
    alpha, beta = np.split(1 + np.log1p(np.exp(outputs.astype(np.float64))), 2, -1)
    np.testing.assert_allclose(
        heads.greedy("beta", given, Box((2,)), xp), stats.beta(alpha, beta, -1, 2).mean(), rtol=1e-5
    )
    np.testing.assert_array_equal(heads.greedy("bernoulli", given, MultiDiscrete((2,) * 4), xp), [[1, 0, 1, 1]])
    np.testing.assert_array_equal(heads.greedy("bernoulli", given[:, 1:2], Discrete(2), xp), [0])


@MODULES
def test_categorical_samples_follow_the_softmax_of_each_choice(xp):
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5], np.float32)
    drawn = sampled("categorical", logits, MultiDiscrete((3, 2)), xp)
    assert drawn.shape == (20_000, 2)
    joint = np.outer(special.softmax(logits[:3].astype(np.float64)), special.softmax(logits[3:].astype(np.float64)))
    observed = np.bincount(np.ravel_multi_index(drawn.T, (3, 2)), minlength=6)
    assert stats.chisquare(observed, 20_000 * joint.ravel()).pvalue > 0.01


@MODULES
def test_bernoulli_samples_have_the_probability_of_their_logits(xp):
    logits = np.array([0.7, -1.2], np.float32)
    drawn = sampled("bernoulli", logits, MultiDiscrete((2, 2)), xp)
    assert drawn.shape == (20_000, 2)
    assert drawn.dtype == np.int32
    np.testing.assert_allclose(drawn.mean(0), special.expit(logits), atol=0.01)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03
    assert sampled("bernoulli", logits[:1], Discrete(2), xp).shape == (20_000,)


@MODULES
def test_gaussian_samples_have_the_mean_and_deviation(xp):
    mean, log_std = np.array([1.0, -2.0], np.float32), np.log(np.array([0.5, 3.0], np.float32))
    drawn = sampled("gaussian", mean, Box((2,)), xp, log_std=log_std)
    for i, deviation in enumerate((0.5, 3.0)):
        assert stats.kstest(drawn[:, i], stats.norm(mean[i], deviation).cdf).pvalue > 0.01


@MODULES
@pytest.mark.parametrize("outputs", [[0.0, -3.0, 2.0, 5.0], [-20.0, 30.0, -20.0, -20.0]], ids=["everyday", "extreme"])
def test_beta_samples_follow_their_concentrations(xp, outputs):
    drawn = sampled("beta", outputs, BOUNDED, xp)
    alpha, beta = np.split(1 + np.logaddexp(0.0, np.array(outputs)), 2)
    assert np.all(np.abs(drawn) <= 1)
    for i in range(2):
        assert stats.kstest(drawn[:, i], stats.beta(alpha[i], beta[i], -1, 2).cdf).pvalue > 0.01
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


@MODULES
def test_squashed_samples_are_the_tanh_of_normal_ones(xp):
    outputs = np.array([0.3, -0.5, -1.0, 0.2], np.float32)
    drawn = sampled("squashed_gaussian", outputs, BOUNDED, xp)
    for i in range(2):
        before = np.arctanh(np.clip(drawn[:, i].astype(np.float64), -1 + 1e-7, 1 - 1e-7))
        assert stats.kstest(before, stats.norm(outputs[i], np.exp(outputs[2 + i])).cdf).pvalue > 0.01


def test_the_deviation_of_squashed_samples_is_clipped_to_its_range():
    low, high = (sampled("squashed_gaussian", [0.5, 0.0, log_std, 0.0], BOUNDED)[:, 0] for log_std in (-99.0, 99.0))
    np.testing.assert_allclose(low, np.tanh(0.5), atol=1e-5)
    assert np.all(np.isfinite(high))


@MODULES
def test_deterministic_samples_have_noise_within_the_bounds(xp):
    outputs = np.array([0.3, -2.0], np.float32)
    drawn = sampled("deterministic", outputs, BOUNDED, xp, sigma=0.2)
    assert stats.kstest(drawn[:, 0], stats.norm(np.tanh(0.3), 0.2).cdf).pvalue > 0.01
    assert drawn[:, 1].min() == -1.0
    np.testing.assert_allclose(
        sampled("deterministic", outputs, BOUNDED, xp), np.broadcast_to(np.tanh(outputs), (20_000, 2)), rtol=1e-5
    )


@MODULES
@pytest.mark.parametrize("kind", ["deterministic", "squashed_gaussian"])
def test_a_share_of_continuous_actions_is_uniformly_random(xp, kind):
    outputs = [0.3, -2.0, -20.0, -20.0] if kind == "squashed_gaussian" else [0.3, -2.0]
    drawn = sampled(kind, outputs, BOUNDED, xp, epsilon=0.4)
    explored = np.abs(drawn[:, 0] - np.tanh(0.3)) > 1e-4
    assert explored.mean() == pytest.approx(0.4, abs=0.015)
    for i in range(2):
        assert stats.kstest(drawn[explored, i], stats.uniform(-1, 2).cdf).pvalue > 0.01
    # All elements of an action explore together, or none does (now and then one comes close to the policy's own).
    assert np.mean((np.abs(drawn[:, 1] - np.tanh(-2.0)) > 1e-4) != explored) < 0.001


@MODULES
def test_q_values_explore_uniformly_with_probability_epsilon(xp):
    values = [0.0, 3.0, 1.0, 2.0]
    drawn = sampled("q_values", values, Discrete(4), xp, epsilon=0.4)
    assert stats.chisquare(np.bincount(drawn, minlength=4), 20_000 * np.array([0.1, 0.7, 0.1, 0.1])).pvalue > 0.01
    assert np.all(sampled("q_values", values, Discrete(4), xp, epsilon=0.0) == 1)


@MODULES
def test_q_values_of_several_choices_explore_together(xp):
    space = MultiDiscrete((2, 3))
    drawn = sampled("q_values", [0.0, 3.0, 1.0, 2.0, 0.5], space, xp, epsilon=0.3)
    assert drawn.shape == (20_000, 2)
    joint = np.full((2, 3), 0.3 / 6)
    joint[1, 1] += 0.7
    observed = np.bincount(np.ravel_multi_index(drawn.T, (2, 3)), minlength=6)
    assert stats.chisquare(observed, 20_000 * joint.ravel()).pvalue > 0.01
    # With as many rows as choices, each row still explores independently.
    rows = heads.sample(
        "q_values", np.zeros((2, 5)), np.array([[0.0, 0, 1, 0, 0, 1], [0.9, 0, 1, 0, 0, 1]]), space, np, epsilon=0.5
    )
    np.testing.assert_array_equal(rows, [[1, 2], [0, 0]])


def test_random_actions_fill_the_space_evenly():
    drawn = sampled("random", [], MultiDiscrete((2, 3)))
    assert stats.chisquare(np.bincount(np.ravel_multi_index(drawn.T, (2, 3)), minlength=6)).pvalue > 0.01
    drawn = sampled("random", [], BOUNDED)
    assert stats.kstest(drawn[:, 0], stats.uniform(-1, 4).cdf).pvalue > 0.01
    assert stats.kstest(drawn[:, 1], stats.uniform(0, 0.5).cdf).pvalue > 0.01
    assert stats.kstest(sampled("random", [], Box((1,)))[:, 0], stats.norm.cdf).pvalue > 0.01
    whole = sampled("random", [], Box((1,), (2.0,), (5.0,), "int32"))
    assert stats.chisquare(np.bincount(whole[:, 0].astype(int), minlength=6)[2:]).pvalue > 0.01


@MODULES
def test_postprocess_clips_shapes_and_counts_from_start(xp):
    box = Box((2, 1), (-1.0, -2.0), (1.0, 2.0))
    action = heads.postprocess("gaussian", xp.asarray([[5.0, -5.0], [0.5, 0.25]]), box, xp)
    np.testing.assert_array_equal(action, [[[1.0], [-2.0]], [[0.5], [0.25]]])
    counted = heads.postprocess("categorical", xp.asarray([0, 2]), Discrete(3, start=-1), xp)
    np.testing.assert_array_equal(counted, [-1, 1])
    several = heads.postprocess("q_values", xp.asarray([[0, 2]]), MultiDiscrete((2, 3)), xp)
    np.testing.assert_array_equal(several, [[0, 2]])
    whole = Box((1,), (0.0,), (10.0,), "int32")
    assert heads.postprocess("random", xp.asarray([[3.7]]), whole, xp).dtype == np.int32
    assert heads.postprocess("random", xp.asarray([[3.7]]), whole, xp)[0, 0] == 4
    np.testing.assert_array_equal(heads.postprocess("gaussian", xp.asarray([[1e9]]), Box((1,)), xp), [[1e9]])


@MODULES
@pytest.mark.parametrize("kind", heads.STRETCHED)
def test_actions_within_one_are_stretched_over_the_bounds(xp, kind):
    actions = xp.asarray([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]])
    taken = heads.postprocess(kind, actions, BOUNDED, xp)
    np.testing.assert_allclose(taken, [[-1.0, 0.0], [1.0, 0.375], [3.0, 0.5]], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "space", "outputs", "columns"),
    [
        ("categorical", Discrete(3), 3, 3),
        ("categorical", MultiDiscrete((3, 2)), 5, 5),
        ("bernoulli", Discrete(2), 1, 1),
        ("bernoulli", MultiDiscrete((2, 2, 2)), 3, 3),
        ("gaussian", Box((2, 2)), 4, 4),
        ("beta", Box((3,), (0.0,), (1.0,)), 6, 2 * 4 * 6),
        ("squashed_gaussian", Box((3,), (0.0,), (1.0,)), 6, 3 + 1 + 3),
        ("deterministic", Box((3,), (0.0,), (1.0,)), 3, 3 + 1 + 3),
        ("q_values", Discrete(3), 3, 4),
        ("q_values", MultiDiscrete((3, 2)), 5, 6),
        ("random", Box((2, 2), (0.0,), (1.0,)), 0, 4),
        ("random", MultiDiscrete((3, 2)), 0, 5),
        ("constant", Discrete(3), 1, 0),
    ],
)
def test_noise_is_finite_float32_with_the_right_columns(kind, space, outputs, columns):
    assert heads.outputs_size(kind, space) == outputs
    noise = heads.draw_noise(heads.noise_of(kind, space), (2, 5), RNG(0))
    assert noise.shape == (2, 5, columns)
    assert noise.dtype == np.float32
    assert np.all(np.isfinite(noise))


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        ("gumbel", stats.gumbel_r),
        ("logistic", stats.logistic),
        ("normal", stats.norm),
        ("uniform", stats.uniform),
    ],
)
def test_noise_follows_its_distribution(distribution, expected):
    noise = heads.draw_noise(((distribution, 1),), (20_000,), RNG(0))
    assert stats.kstest(noise[:, 0], expected.cdf).pvalue > 0.01


def test_noise_of_two_distributions_is_concatenated():
    noise = heads.draw_noise((("normal", 2), ("uniform", 3)), (5000,), RNG(0))
    assert noise.shape == (5000, 5)
    assert stats.kstest(noise[:, :2].ravel(), stats.norm.cdf).pvalue > 0.01
    assert stats.kstest(noise[:, 2:].ravel(), stats.uniform.cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        ("categorical", MultiDiscrete((3, 2))),
        ("bernoulli", MultiDiscrete((2, 2))),
        ("gaussian", BOUNDED),
        ("beta", BOUNDED),
        ("squashed_gaussian", BOUNDED),
        ("deterministic", BOUNDED),
        ("q_values", MultiDiscrete((3, 2))),
        ("random", BOUNDED),
    ],
)
def test_numpy_and_jax_draw_the_same_actions_from_the_same_noise(kind, space):
    rng = RNG(3)
    outputs = rng.normal(0.0, 2.0, (50, heads.outputs_size(kind, space))).astype(np.float32)
    noise = drawn_noise(kind, space, 50, seed=4)
    options = {"log_std": np.array([0.2, -0.3], np.float32), "epsilon": 0.3, "sigma": 0.2}
    first = heads.sample(kind, outputs, noise, space, np, **options)
    second = heads.sample(kind, jnp.asarray(outputs), jnp.asarray(noise), space, jnp, **options)
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        heads.postprocess(kind, first, space), heads.postprocess(kind, second, space, jnp), rtol=1e-4, atol=1e-5
    )
