"""Probabilities against SciPy and plain NumPy, and drawn actions against the probabilities."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from steppe.agents.core.distributions import distribution_for
from steppe.errors import UserError
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

RNG = np.random.default_rng(5)


def compiled(space, name="auto"):
    """The distribution with compiled methods, which take a tenth of the time."""
    made = distribution_for(space, "ppo", name)
    methods = {method: jax.jit(getattr(made, method)) for method in ("log_prob", "entropy", "kl")}
    return SimpleNamespace(kind=made.kind, outputs=made.outputs, **methods)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def probabilities_of(logits, choices):
    """One [..., n] array of probabilities for each choice."""
    return [special.softmax(part.astype(np.float64), -1) for part in np.split(logits, np.cumsum(choices)[:-1], -1)]


@pytest.mark.parametrize("lead", [(7,), (4, 3)])
def test_the_log_probability_of_one_choice(lead):
    distribution = compiled(Discrete(5))
    logits, actions = 3 * normal(*lead, 5), RNG.integers(0, 5, lead).astype(np.int32)
    expected = np.take_along_axis(special.log_softmax(logits, -1), actions[..., None], -1)[..., 0]
    np.testing.assert_allclose(distribution.log_prob(logits, None, actions), expected, rtol=1e-5, atol=1e-5)


def test_the_log_probability_does_not_depend_on_where_the_numbering_starts():
    logits, actions = normal(6, 4), np.array([0, 1, 2, 3, 0, 1], np.int32)
    plain, moved = (compiled(Discrete(4, start)) for start in (0, 7))
    np.testing.assert_array_equal(plain.log_prob(logits, None, actions), moved.log_prob(logits, None, actions))


@pytest.mark.parametrize(("nvec", "lead"), [((2, 5, 3), (7,)), ((4, 4), (4, 3)), ((1, 6), (7,))])
def test_the_log_probability_of_several_choices_is_the_sum_of_theirs(nvec, lead):
    distribution = compiled(MultiDiscrete(nvec))
    assert distribution.outputs == sum(nvec)
    logits = 2 * normal(*lead, sum(nvec))
    actions = np.stack([RNG.integers(0, n, lead) for n in nvec], -1).astype(np.int32)
    expected = np.zeros(lead)
    for index in np.ndindex(lead):
        for i, p in enumerate(probabilities_of(logits[index], nvec)):
            expected[index] += np.log(p[actions[index][i]])
    np.testing.assert_allclose(distribution.log_prob(logits, None, actions), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lead", [(7,), (4, 3)])
def test_the_log_density_of_continuous_actions(lead):
    distribution = compiled(Box((3,), (-1.0,), (1.0,)))
    means, log_std, actions = normal(*lead, 3), normal(3), 3 * normal(*lead, 3)
    expected = stats.norm(means, np.exp(log_std.astype(np.float64))).logpdf(actions).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(means, log_std, actions), expected, rtol=1e-4, atol=1e-4)


def test_the_entropy_of_discrete_choices():
    one = compiled(Discrete(5))
    logits = 2 * normal(4, 3, 5)
    expected = stats.entropy(special.softmax(logits.astype(np.float64), -1), axis=-1)
    np.testing.assert_allclose(one.entropy(logits, None), expected, rtol=1e-5, atol=1e-6)
    nvec = (2, 5, 3)
    several = compiled(MultiDiscrete(nvec))
    logits = 2 * normal(6, 10)
    expected = sum(stats.entropy(p, axis=-1) for p in probabilities_of(logits, nvec))
    np.testing.assert_allclose(several.entropy(logits, None), expected, rtol=1e-5, atol=1e-6)


def test_the_entropy_of_continuous_actions():
    distribution = compiled(Box((3,)))
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

    value, slope = jax.jit(jax.value_and_grad(total))(logits)
    assert np.isfinite(value)
    assert np.all(np.isfinite(slope))


def test_probabilities_of_all_actions_sum_to_one():
    nvec = (2, 3, 2)
    distribution = compiled(MultiDiscrete(nvec))
    every = np.array(list(np.ndindex(nvec)), np.int32)
    logits = np.broadcast_to(normal(7), (len(every), 7))
    assert np.exp(distribution.log_prob(logits, None, every)).sum() == pytest.approx(1.0, abs=1e-5)


def drawn(agent, outputs, count, seed=11):
    """`count` actions drawn in JAX by an agent whose network always has the same [outputs]."""
    noise = agent.draw_noise(jax.random.key(seed), (count,))
    rows = jnp.broadcast_to(outputs, (count, len(outputs)))
    log_std = jnp.asarray([-1.0, 0.5])
    return np.asarray(jax.jit(lambda rows, noise: agent.choose(rows, noise, 0, {}, log_std, jnp)[0])(rows, noise))


def test_drawn_choices_come_as_often_as_the_softmax_says(make_agent):
    logits = np.array([0.0, 1.0, -1.0, 2.0, -2.5], np.float32)
    actions = drawn(make_agent("ppo", Discrete(5)), logits, 20_000)
    observed = np.bincount(actions, minlength=5)
    assert stats.chisquare(observed, 20_000 * special.softmax(logits.astype(np.float64))).pvalue > 0.01


def test_drawn_choices_of_unequal_sizes_are_independent_and_follow_their_softmax(make_agent):
    nvec = (2, 4, 3)
    logits = np.array([0.5, -0.5, 1.0, 0.0, -1.0, 0.3, 0.0, 0.7, -0.7], np.float32)
    actions = drawn(make_agent("ppo", MultiDiscrete(nvec)), logits, 30_000)
    assert actions.shape == (30_000, 3)
    first, second, third = probabilities_of(logits, nvec)
    joint = first[:, None, None] * second[None, :, None] * third[None, None, :]
    observed = np.bincount(np.ravel_multi_index(actions.T, nvec), minlength=joint.size)
    assert stats.chisquare(observed, 30_000 * joint.ravel()).pvalue > 0.01


def test_drawn_yes_or_no_choices_are_independent_and_as_likely_as_their_logits_say(make_agent):
    logits = np.array([1.2, -0.7], np.float32)
    actions = drawn(make_agent("ppo", MultiDiscrete((2, 2)), distribution="bernoulli"), logits, 20_000)
    yes = special.expit(logits.astype(np.float64))
    joint = np.outer([1 - yes[0], yes[0]], [1 - yes[1], yes[1]]).ravel()
    observed = np.bincount(actions @ np.array([2, 1]), minlength=4)
    assert stats.chisquare(observed, 20_000 * joint).pvalue > 0.01
    single = drawn(make_agent("ppo", Discrete(2), distribution="bernoulli"), logits[:1], 20_000)
    assert single.shape == (20_000,)
    assert single.mean() == pytest.approx(yes[0], abs=0.015)


def test_drawn_continuous_actions_have_the_means_and_spreads_of_the_policy(make_agent):
    means = np.array([2.0, -1.0], np.float32)
    actions = drawn(make_agent("ppo", Box((2,), (-1.0,), (1.0,))), means, 20_000)
    for i, log_std in enumerate([-1.0, 0.5]):
        assert stats.kstest(actions[:, i], stats.norm(means[i], np.exp(log_std)).cdf).pvalue > 0.01
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


def test_drawn_bounded_actions_follow_their_beta_distributions(make_agent):
    agent = make_agent("ppo", Box((2,), (-1.0,), (1.0,)), distribution="beta")
    outputs = np.array([2.0, -1.0, 0.3, 4.0], np.float32)
    actions = drawn(agent, outputs, 20_000)
    alpha, beta = 1 + np.log1p(np.exp(outputs.astype(np.float64))).reshape(2, 2)
    for i in range(2):
        assert stats.kstest(actions[:, i], stats.beta(alpha[i], beta[i], -1, 2).cdf).pvalue > 0.01
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


def beta_of(outputs):
    """SciPy's distribution over -1 .. 1."""
    concentrations = 1 + np.logaddexp(0.0, outputs.astype(np.float64))
    size = outputs.shape[-1] // 2
    return stats.beta(concentrations[..., :size], concentrations[..., size:], -1, 2)


@pytest.mark.parametrize("lead", [(7,), (4, 3)])
def test_the_log_probability_of_yes_or_no_choices(lead):
    distribution = compiled(MultiDiscrete((2, 2, 2)), "bernoulli")
    assert (distribution.kind, distribution.outputs) == ("bernoulli", 3)
    logits, actions = 2 * normal(*lead, 3), RNG.integers(0, 2, (*lead, 3)).astype(np.int32)
    expected = stats.bernoulli(special.expit(logits.astype(np.float64))).logpmf(actions).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(logits, None, actions), expected, rtol=1e-4, atol=1e-5)
    one = compiled(Discrete(2), "bernoulli")
    assert one.outputs == 1
    expected = stats.bernoulli(special.expit(logits[..., 0].astype(np.float64))).logpmf(actions[..., 0])
    np.testing.assert_allclose(one.log_prob(logits[..., :1], None, actions[..., 0]), expected, rtol=1e-4, atol=1e-5)


def test_yes_or_no_of_one_logit_is_the_softmax_of_two():
    logits, actions = normal(9, 1), RNG.integers(0, 2, 9).astype(np.int32)
    two = np.concatenate([np.zeros_like(logits), logits], -1)
    bernoulli, categorical = (compiled(Discrete(2), name) for name in ("bernoulli", "categorical"))
    for name in ("log_prob", "entropy"):
        given = (actions,) if name == "log_prob" else ()
        first, second = getattr(bernoulli, name)(logits, None, *given), getattr(categorical, name)(two, None, *given)
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lead", [(7,), (4, 3)])
def test_the_log_density_and_entropy_of_bounded_actions(lead):
    distribution = compiled(Box((3,), (-2.0,), (5.0,)), "beta")
    assert (distribution.kind, distribution.outputs) == ("beta", 6)
    outputs = 2 * normal(*lead, 6)
    actions = np.tanh(normal(*lead, 3))
    expected = beta_of(outputs).logpdf(actions.astype(np.float64)).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(outputs, None, actions), expected, rtol=1e-3, atol=1e-4)
    expected = beta_of(outputs).entropy().sum(-1)
    np.testing.assert_allclose(distribution.entropy(outputs, None), expected, rtol=1e-4, atol=1e-4)


def test_bounded_actions_at_their_very_bounds_have_finite_densities_and_gradients():
    distribution = distribution_for(Box((2,), (-1.0,), (1.0,)), "ppo", "beta")
    outputs = np.array([[30.0, -30.0, -30.0, 30.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    actions = np.array([[-1.0, 1.0], [1.0, -1.0]], np.float32)

    def total(outputs):
        return distribution.log_prob(outputs, None, actions).sum() + distribution.entropy(outputs, None).sum()

    value, slope = jax.jit(jax.value_and_grad(total))(outputs)
    assert np.isfinite(value)
    assert np.all(np.isfinite(slope))


def test_the_entropy_of_yes_or_no_choices():
    logits = 2 * normal(6, 3)
    distribution = compiled(MultiDiscrete((2, 2, 2)), "bernoulli")
    expected = stats.bernoulli(special.expit(logits.astype(np.float64))).entropy().sum(-1)
    np.testing.assert_allclose(distribution.entropy(logits, None), expected, rtol=1e-4, atol=1e-6)


FAMILIES = {
    "categorical": (Discrete(4), 4),
    "several": (MultiDiscrete((2, 3)), 5),
    "bernoulli": (MultiDiscrete((2, 2, 2)), 3),
    "gaussian": (Box((2,)), 2),
    "beta": (Box((2,), (-1.0,), (1.0,)), 4),
}


def family(name):
    space, outputs = FAMILIES[name]
    return distribution_for(space, "ppo", "auto" if name == "several" else name), space, outputs


@pytest.mark.parametrize("name", FAMILIES)
def test_the_divergence_is_the_mean_difference_of_log_probabilities(name):
    """The mean is over all actions if they are finite, else over many samples of SciPy's."""
    distribution, space, size = family(name)
    rng = np.random.default_rng(6)
    old, new = rng.normal(0.0, 0.7, (2, size)).astype(np.float32)
    old_log_std, new_log_std = (np.array([0.3, -0.4], np.float32), np.array([0.1, 0.2], np.float32))
    weights = None
    match name:
        case "categorical":
            actions = np.arange(4)
        case "several" | "bernoulli":
            actions = np.array(list(np.ndindex(space.nvec)))
        case "gaussian":
            actions = stats.norm(old, np.exp(old_log_std)).rvs((60_000, 2), random_state=rng)
        case "beta":
            actions = beta_of(old).rvs((60_000, 2), random_state=rng)
    actions = actions.astype(np.float32 if isinstance(space, Box) else np.int32)
    rows = [np.broadcast_to(outputs, (len(actions), size)) for outputs in (old, new)]
    log_prob, kl = jax.jit(distribution.log_prob), jax.jit(distribution.kl)
    first = np.asarray(log_prob(rows[0], old_log_std, actions), np.float64)
    second = np.asarray(log_prob(rows[1], new_log_std, actions), np.float64)
    if not isinstance(space, Box):
        weights = np.exp(first)
    expected = np.average(first - second, weights=weights)
    tolerance = 1e-5 if weights is not None else 4 * (first - second).std() / np.sqrt(len(actions))
    divergence = kl(old, old_log_std, new, new_log_std)
    assert divergence.item() == pytest.approx(expected, abs=tolerance)
    assert expected > 5 * tolerance
    assert kl(old, old_log_std, old, old_log_std).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probabilities_entropies_and_divergences_have_finite_gradients(name):
    distribution, space, size = family(name)
    outputs, other = 3 * normal(5, size), 3 * normal(5, size)
    log_std = normal(size)
    if isinstance(space, Box):
        actions = np.tanh(normal(5, space.size))
    else:
        actions = np.zeros((5, *space.shape), np.int32)

    def total(outputs, log_std):
        given = distribution.log_prob(outputs, log_std, actions) + distribution.entropy(outputs, log_std)
        return (given + distribution.kl(other, log_std, outputs, log_std)).sum()

    for slope in jax.jit(jax.grad(total, (0, 1)))(outputs, log_std):
        assert np.all(np.isfinite(slope))


@pytest.mark.parametrize("name", ["gaussian", "beta"])
def test_densities_integrate_to_one(name):
    space = Box((1,), (-1.0,), (1.0,))
    distribution = compiled(space, name)
    outputs = np.array([0.3, -0.2], np.float32)[: distribution.outputs]
    reach = 1.0 if name == "beta" else 6.0
    actions = np.linspace(-reach, reach, 20_001, dtype=np.float32)[:, None]
    rows = np.broadcast_to(outputs, (len(actions), len(outputs)))
    density = np.exp(distribution.log_prob(rows, np.array([-0.3], np.float32), actions))
    assert np.trapezoid(density, actions[:, 0]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("space", "name", "needed"),
    [
        (Discrete(3), "bernoulli", "choices between two"),
        (MultiDiscrete((2, 3)), "bernoulli", "choices between two"),
        (Discrete(3), "gaussian", "continuous actions"),
        (Discrete(2), "beta", "continuous actions"),
        (Box((2,)), "beta", "actions with bounds"),
        (Box((2,), (-1.0,), (1.0,)), "categorical", "discrete choices"),
        (Box((2,), (-1.0,), (1.0,)), "bernoulli", "discrete choices"),
    ],
)
def test_a_family_that_does_not_fit_the_actions_is_refused(space, name, needed):
    sentence = f'^distribution "{name}" is for {needed}, which this environment does not have; use "auto"$'
    with pytest.raises(UserError, match=sentence):
        distribution_for(space, "ppo", name)


def test_whole_numbers_in_a_box_are_refused():
    sentence = r'^agent "vpg" needs continuous or discrete actions, not whole numbers in a box$'
    with pytest.raises(UserError, match=sentence):
        distribution_for(Box((2,), (0.0,), (5.0,), "int32"), "vpg")
