"""Off-policy estimates against known true values."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from served_graphs import question, run, serving

from steppe.serve import Feedback
from steppe.serve.ledger import make_ledger
from steppe.serve.ledger._base import LoggedDecision
from steppe.serve.report import compare, estimate

TRUTH = {"a": 10.0, "b": 12.0, "c": 30.0}


def log_of(rng, number, noise=8.0):
    """Decisions with probabilities that change over time, as a bandit's do."""
    names = list(TRUTH)
    for index in range(number):
        propensities = np.array([0.4, 0.4, 0.2]) if index < number / 2 else np.array([0.05, 0.15, 0.8])
        chosen = rng.choice(3, p=propensities)
        reward = rng.normal(TRUTH[names[chosen]], noise)
        yield LoggedDecision(names[chosen], "1-x", float(propensities[chosen]), True, True, 1, reward)


def test_estimates_are_near_the_truth_and_intervals_have_their_coverage():
    rng = np.random.default_rng(0)
    covered, total, errors = {"plain": 0, "normalised": 0}, 0, []
    for _ in range(150):
        for found in estimate(log_of(rng, 400), confidence=0.9).policies:
            truth = TRUTH[found.policy]
            plain, normalised = found.inverse_propensity, found.self_normalised
            covered["plain"] += plain.low <= truth <= plain.high
            covered["normalised"] += normalised.low <= truth <= normalised.high
            errors.append((plain.value - truth, normalised.value - truth))
            total += 1
    bias = np.mean(errors, 0)
    spread = np.std(errors, 0)
    assert np.abs(bias).max() < 0.35
    assert spread[1] < 0.6 * spread[0]
    for share in (covered["plain"] / total, covered["normalised"] / total):
        assert 0.84 < share < 0.95


def test_policies_are_ranked_and_the_plain_mean_is_kept():
    comparison = estimate(log_of(np.random.default_rng(1), 2000))
    assert [found.policy for found in comparison.policies] == ["c", "b", "a"]
    assert (comparison.decisions, comparison.rewarded, comparison.versions) == (2000, 2000, ())
    best = comparison.policies[0]
    assert best.mean == pytest.approx(30.0, abs=1.0)
    assert 0 < best.effective <= best.rewarded
    assert comparison.mean < 28.0


def test_named_and_open_decisions_do_not_count():
    log = [
        LoggedDecision("a", "1", 0.5, True, True, 1, 4.0),
        LoggedDecision("b", "1", 0.5, True, True, 1, 8.0),
        LoggedDecision("a", "1", 1.0, False, True, 1, 1e6),
        LoggedDecision("a", "1", 0.5, True, False, 3, 1e6),
        LoggedDecision("b", "1", 0.5, True, True, 0, 0.0),
    ]
    comparison = estimate(log)
    values = {found.policy: found.inverse_propensity.value for found in comparison.policies}
    assert values == {"a": 4.0, "b": 8.0}
    assert comparison.rewarded == 2
    assert any("were not rewarded" in notice for notice in comparison.notices)


def test_versions_are_compared_if_there_are_several():
    log = [LoggedDecision("a", version, 0.5, True, True, 1, value) for version, value in (("1", 1.0), ("2", 3.0))]
    versions = estimate([*log, LoggedDecision("b", "9", 0.5, True, True, 1, 0.0)]).versions
    assert [(found.policy, found.version, found.mean) for found in versions] == [("a", "1", 1.0), ("a", "2", 3.0)]


def test_few_decisions_give_no_verdict_and_no_division_by_zero():
    assert "nothing has been decided" in estimate([]).notices[0]
    assert "no decision has been rewarded" in estimate([LoggedDecision("a", "1", 1.0, True, True, 0, 0.0)]).notices[0]
    (one,) = estimate([LoggedDecision("a", "1", 1.0, True, True, 1, 2.0)]).policies
    assert (one.self_normalised.value, one.self_normalised.low, one.inverse_propensity.high) == (2.0, None, None)
    certain = [LoggedDecision(name, "1", 1.0, True, True, 1, 2.0) for name in "ab"]
    assert any("with certainty" in notice for notice in estimate(certain).notices)


def returns_of(**returns):
    return [
        LoggedDecision(name, "1", 0.5, True, True, 1, each) for name, several in returns.items() for each in several
    ]


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        ({"a": [1.0] * 20}, None),
        (
            {"a": [10.0, 12.0] * 10, "b": [1.0, 2.0] * 10},
            '"a" is best, with more than 99.9% confidence: 11 against 1.5 of "b"',
        ),
        (
            {"a": [10.0, 0.0] * 10, "b": [9.0, 0.0] * 10},
            'it is not decided which is best: "a" leads "b", 5 against 4.5, with',
        ),
        (
            {"a": [9.0] * 20, "b": [9.0] * 9},
            'it is too early to say which policy is best: "b" has only 9 rewarded decisions',
        ),
        (
            {"a": [9.0] * 20, "b": [99.0]},
            'it is too early to say which policy is best: "b" has only 1 rewarded decision',
        ),
        ({"a": [0.1] * 20, "b": [0.1] * 30}, '"b" and "a" are equally good so far: 0.1 against 0.1'),
        ({"a": [3.0] * 20, "b": [2.0] * 30}, '"a" is best, with more than 99.9% confidence'),
    ],
    ids=["one policy", "clear", "open", "few", "one decision", "a tie", "no spread"],
)
def test_the_verdict_names_the_best_policy_and_its_confidence(returns, sentence):
    verdict = estimate(returns_of(**returns)).verdict
    assert verdict == sentence if sentence is None else verdict.startswith(sentence)


def test_the_confidence_is_that_of_two_normal_estimates():
    rng = np.random.default_rng(5)
    first, second = rng.normal(1.0, 1.0, 50), rng.normal(0.7, 1.0, 50)
    errors = first.var() / 50 + second.var() / 50
    expected = NormalDist().cdf((first.mean() - second.mean()) / np.sqrt(errors))
    assert 0.6 < expected < 0.95
    assert f"with {expected:.0%} confidence" in estimate(returns_of(a=first, b=second)).verdict


def test_of_equal_policies_the_one_with_more_returns_comes_first():
    assert [each.policy for each in estimate(returns_of(a=[0.3], b=[0.3] * 3)).policies] == ["b", "a"]


def test_the_log_of_a_served_router_gives_the_true_means(tmp_path):
    graph = {"kind": "router", "bandit": {"type": "epsilon_greedy", "epsilon": 0.5}, "branches": ["p0", "p1", "p2"]}
    truth = [1.0, 2.0, 5.0]

    async def play():
        rng = np.random.default_rng(3)
        async with serving(tmp_path, graph) as endpoint:
            for number in range(400):
                sequence = str(number)
                action = int(endpoint.answer(question(sequence_id=sequence)).actions[0])
                reward = float(rng.normal(truth[action], 0.5))
                await endpoint.feedback(Feedback(reward, sequence_id=sequence, sequence_end=True))

    run(play())
    ledger = make_ledger(tmp_path / "serving" / "ledger.sqlite", "router")
    ledger.open()
    for found in compare(ledger).policies:
        expected = truth[int(found.policy[1])]
        assert found.self_normalised.value == pytest.approx(expected, abs=0.3)
        assert found.inverse_propensity.value == pytest.approx(expected, rel=0.35)
    ledger.close()
