"""Probabilities against SciPy and plain NumPy, and drawn actions against the probabilities."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import special, stats

from steppe.agents.distributions import distribution_for
from steppe.errors import UserError
from steppe.records import heads
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def probabilities_of(logits, choices):
    """One [..., n] array of probabilities for each choice."""
    return [special.softmax(part.astype(np.float64), -1) for part in np.split(logits, np.cumsum(choices)[:-1], -1)]


@pytest.mark.parametrize("lead", [(7,), (4, 3)])
def test_the_log_probability_of_one_choice(lead):
    distribution = distribution_for(Discrete(5), "ppo")
    logits, actions = 3 * normal(*lead, 5), RNG.integers(0, 5, lead).astype(np.int32)
    expected = np.take_along_axis(special.log_softmax(logits, -1), actions[..., None], -1)[..., 0]
    np.testing.assert_allclose(distribution.log_prob(logits, None, actions), expected, rtol=1e-5, atol=1e-5)


def test_the_log_probability_does_not_depend_on_where_the_numbering_starts():
    logits, actions = normal(6, 4), np.array([0, 1, 2, 3, 0, 1], np.int32)
    plain, moved = (distribution_for(Discrete(4, start), "ppo") for start in (0, 7))
    np.testing.assert_array_equal(plain.log_prob(logits, None, actions), moved.log_prob(logits, None, actions))


@pytest.mark.parametrize("nvec", [(2, 5, 3), (4, 4), (1, 6)])
@pytest.mark.parametrize("lead", [(7,), (4, 3)])
def test_the_log_probability_of_several_choices_is_the_sum_of_theirs(nvec, lead):
    distribution = distribution_for(MultiDiscrete(nvec), "ppo")
    assert distribution.outputs == distribution.noise_size == sum(nvec)
    logits = 2 * normal(*lead, sum(nvec))
    actions = np.stack([RNG.integers(0, n, lead) for n in nvec], -1).astype(np.int32)
    expected = np.zeros(lead)
    for index in np.ndindex(lead):
        for i, p in enumerate(probabilities_of(logits[index], nvec)):
            expected[index] += np.log(p[actions[index][i]])
    np.testing.assert_allclose(distribution.log_prob(logits, None, actions), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lead", [(7,), (4, 3)])
def test_the_log_density_of_continuous_actions(lead):
    distribution = distribution_for(Box((3,), (-1.0,), (1.0,)), "ppo")
    means, log_std, actions = normal(*lead, 3), normal(3), 3 * normal(*lead, 3)
    expected = stats.norm(means, np.exp(log_std.astype(np.float64))).logpdf(actions).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(means, log_std, actions), expected, rtol=1e-4, atol=1e-4)


def test_the_entropy_of_discrete_choices():
    one = distribution_for(Discrete(5), "ppo")
    logits = 2 * normal(4, 3, 5)
    expected = stats.entropy(special.softmax(logits.astype(np.float64), -1), axis=-1)
    np.testing.assert_allclose(one.entropy(logits, None), expected, rtol=1e-5, atol=1e-6)
    nvec = (2, 5, 3)
    several = distribution_for(MultiDiscrete(nvec), "ppo")
    logits = 2 * normal(6, 10)
    expected = sum(stats.entropy(p, axis=-1) for p in probabilities_of(logits, nvec))
    np.testing.assert_allclose(several.entropy(logits, None), expected, rtol=1e-5, atol=1e-6)


def test_the_entropy_of_continuous_actions():
    distribution = distribution_for(Box((3,)), "ppo")
    log_std = normal(3)
    expected = stats.norm(0.0, np.exp(log_std.astype(np.float64))).entropy().sum()
    entropy = distribution.entropy(normal(4, 2, 3), log_std)
    assert entropy.shape == (4, 2)
    np.testing.assert_allclose(entropy, expected, rtol=1e-5)


def test_extreme_logits_give_finite_probabilities_and_gradients():
    distribution = distribution_for(Discrete(3), "ppo")
    logits = np.array([[1e4, -1e4, 0.0], [80.0, -80.0, 80.0]], np.float32)
    actions = np.array([1, 0], np.int32)

    def total(logits):
        return distribution.log_prob(logits, None, actions).sum() + distribution.entropy(logits, None).sum()

    value, slope = jax.value_and_grad(total)(logits)
    assert np.isfinite(value)
    assert np.all(np.isfinite(slope))


def test_probabilities_of_all_actions_sum_to_one():
    nvec = (2, 3, 2)
    distribution = distribution_for(MultiDiscrete(nvec), "ppo")
    every = np.array(list(np.ndindex(nvec)), np.int32)
    logits = np.broadcast_to(normal(7), (len(every), 7))
    assert np.exp(distribution.log_prob(logits, None, every)).sum() == pytest.approx(1.0, abs=1e-5)


def test_drawn_choices_come_as_often_as_the_softmax_says():
    space = Discrete(5)
    distribution = distribution_for(space, "ppo")
    logits = np.array([0.0, 1.0, -1.0, 2.0, -2.5], np.float32)
    noise = distribution.draw_noise(jax.random.key(11), (20_000,))
    drawn = np.asarray(heads.sample("categorical", logits, noise, space, xp=jax.numpy))
    observed = np.bincount(drawn, minlength=5)
    assert stats.chisquare(observed, 20_000 * special.softmax(logits.astype(np.float64))).pvalue > 0.01


def test_drawn_choices_of_unequal_sizes_are_independent_and_follow_their_softmax():
    nvec = (2, 4, 3)
    space = MultiDiscrete(nvec)
    distribution = distribution_for(space, "ppo")
    logits = np.array([0.5, -0.5, 1.0, 0.0, -1.0, 0.3, 0.0, 0.7, -0.7], np.float32)
    noise = distribution.draw_noise(jax.random.key(12), (30_000,))
    drawn = np.asarray(heads.sample("categorical", logits, noise, space, xp=jax.numpy))
    assert drawn.shape == (30_000, 3)
    first, second, third = probabilities_of(logits, nvec)
    joint = first[:, None, None] * second[None, :, None] * third[None, None, :]
    observed = np.bincount(np.ravel_multi_index(drawn.T, nvec), minlength=joint.size)
    assert stats.chisquare(observed, 30_000 * joint.ravel()).pvalue > 0.01


def test_drawn_continuous_actions_have_the_means_and_spreads_of_the_policy():
    space = Box((2,), (-1.0,), (1.0,))
    distribution = distribution_for(space, "ppo")
    means, log_std = np.array([2.0, -1.0], np.float32), np.array([-1.0, 0.5], np.float32)
    noise = distribution.draw_noise(jax.random.key(13), (20_000,))
    drawn = np.asarray(heads.sample("gaussian", means, noise, space, xp=jax.numpy, log_std=log_std))
    for i in range(2):
        assert stats.kstest(drawn[:, i], stats.norm(means[i], np.exp(log_std[i])).cdf).pvalue > 0.01
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


def test_whole_numbers_in_a_box_are_refused():
    sentence = r'^agent "vpg" needs continuous or discrete actions, not whole numbers in a box$'
    with pytest.raises(UserError, match=sentence):
        distribution_for(Box((2,), (0.0,), (5.0,), "int32"), "vpg")
