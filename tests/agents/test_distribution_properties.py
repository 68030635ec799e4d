"""Probabilities of any outputs and actions against SciPy's, or against sums and integrals over all actions."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from steppe.agents.core.distributions import distribution_for
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

ROWS = 3
NVEC = (2, 4, 3)
BOUNDED = Box((2,), (-1.0,), (1.0,))
FAMILIES = {
    "one choice": (Discrete(5), "categorical"),
    "several choices": (MultiDiscrete(NVEC), "categorical"),
    "yes or no": (MultiDiscrete((2, 2)), "bernoulli"),
    "gaussian": (BOUNDED, "gaussian"),
    "beta": (BOUNDED, "beta"),
}
TOLERANCE = {"rtol": 1e-4, "atol": 2e-4}
quickly = settings(deadline=None, max_examples=40, derandomize=True)


@pytest.fixture(scope="module")
def families():
    """Each distribution with compiled methods, which all examples share, since their shapes are equal."""
    made = {name: distribution_for(space, "ppo", word) for name, (space, word) in FAMILIES.items()}
    methods = ("log_prob", "entropy", "kl")
    return {name: {method: jax.jit(getattr(each, method)) for method in methods} for name, each in made.items()}


def rows(columns, most=8.0):
    """float32 [ROWS, columns]."""
    numbers = st.lists(st.floats(-most, most, width=32), min_size=ROWS * columns, max_size=ROWS * columns)
    return numbers.map(lambda values: np.array(values, np.float32).reshape(ROWS, columns))


def choices(nvec):
    """int32 [ROWS, choices]."""
    each = st.tuples(*(st.integers(0, n - 1) for n in nvec))
    return st.lists(each, min_size=ROWS, max_size=ROWS).map(lambda drawn: np.array(drawn, np.int32))


def softmaxes(logits, nvec):
    """Float64 probabilities [ROWS, n] for each choice."""
    return [special.softmax(part.astype(np.float64), -1) for part in np.split(logits, np.cumsum(nvec)[:-1], -1)]


def check_divergence(family, old, new, expected, log_stds=(None, None), **tolerance):
    """Checks KL(old || new), and that KL(old || old) is zero."""
    np.testing.assert_allclose(family["kl"](old, log_stds[0], new, log_stds[1]), expected, **(TOLERANCE | tolerance))
    np.testing.assert_allclose(family["kl"](old, log_stds[0], old, log_stds[0]), np.zeros(ROWS), atol=1e-5)


@pytest.mark.parametrize(("name", "nvec"), [("one choice", (5,)), ("several choices", NVEC)])
@quickly
@given(data=st.data())
def test_discrete_choices(families, name, nvec, data):
    family = families[name]
    old, new, actions = data.draw(rows(sum(nvec))), data.draw(rows(sum(nvec))), data.draw(choices(nvec))
    before, after = softmaxes(old, nvec), softmaxes(new, nvec)
    expected = sum(np.log(p[np.arange(ROWS), actions[:, i]]) for i, p in enumerate(before))
    taken = actions[:, 0] if len(nvec) == 1 else actions
    np.testing.assert_allclose(family["log_prob"](old, None, taken), expected, **TOLERANCE)
    np.testing.assert_allclose(
        family["entropy"](old, None), sum(stats.entropy(p, axis=-1) for p in before), **TOLERANCE
    )
    divergence = sum(stats.entropy(p, q, axis=-1) for p, q in zip(before, after, strict=True))
    check_divergence(family, old, new, divergence)


@quickly
@given(old=rows(2), new=rows(2), actions=choices((2, 2)))
def test_yes_or_no(families, old, new, actions):
    family = families["yes or no"]
    yes, later = special.expit(old.astype(np.float64)), special.expit(new.astype(np.float64))
    expected = stats.bernoulli(yes).logpmf(actions).sum(-1)
    np.testing.assert_allclose(family["log_prob"](old, None, actions), expected, **TOLERANCE)
    np.testing.assert_allclose(family["entropy"](old, None), stats.bernoulli(yes).entropy().sum(-1), **TOLERANCE)
    divergence = special.rel_entr(yes, later) + special.rel_entr(1 - yes, 1 - later)
    check_divergence(family, old, new, divergence.sum(-1))


@quickly
@given(old=rows(2, 3), new=rows(2, 3), spreads=st.tuples(rows(2, 1.5), rows(2, 1.5)), actions=rows(2, 3))
def test_numbers_without_bounds(families, old, new, spreads, actions):
    family = families["gaussian"]
    # `log_std` is a separate parameter, the same for all rows.
    log_std, later = spreads[0][0], spreads[1][0]
    normal, other = (
        stats.norm(mean.astype(np.float64), np.exp(each.astype(np.float64)))
        for mean, each in ((old, log_std), (new, later))
    )
    expected = normal.logpdf(actions.astype(np.float64)).sum(-1)
    np.testing.assert_allclose(family["log_prob"](old, log_std, actions), expected, **TOLERANCE)
    np.testing.assert_allclose(family["entropy"](old, log_std), normal.entropy().sum(-1), **TOLERANCE)
    # The difference of two log-densities is quadratic, so three points give its mean exactly (Gauss-Hermite).
    points, weights = np.polynomial.hermite_e.hermegauss(3)
    places = old + np.exp(log_std.astype(np.float64)) * points[:, None, None]
    differences = normal.logpdf(places) - other.logpdf(places)
    divergence = np.einsum("p,prc->r", weights / weights.sum(), differences)
    check_divergence(family, old, new, divergence, (log_std, later))


@quickly
@given(old=rows(4, 4), new=rows(4, 4), actions=rows(2, 0.9375))
def test_numbers_within_bounds(families, old, new, actions):
    family = families["beta"]
    density, other = (
        stats.beta(*np.split(1 + np.log1p(np.exp(outputs.astype(np.float64))), 2, -1), loc=-1, scale=2)
        for outputs in (old, new)
    )
    expected = density.logpdf(actions.astype(np.float64)).sum(-1)
    np.testing.assert_allclose(family["log_prob"](old, None, actions), expected, **TOLERANCE)
    np.testing.assert_allclose(family["entropy"](old, None), density.entropy().sum(-1), **TOLERANCE)
    width = 2 / 8000
    places = (np.arange(8000) * width + width / 2 - 1)[:, None, None]
    differences = density.pdf(places) * (density.logpdf(places) - other.logpdf(places))
    check_divergence(family, old, new, differences.sum((0, 2)) * width, atol=3e-3)
