"""Off-policy estimates from a ledger: each policy's mean return if it had got all of the traffic.

Inverse propensity scoring: an episode that went to a policy with probability p stands for 1 / p episodes (Horvitz and
Thompson 1952). Dividing by the sum of these weights instead of the number of episodes adds a little bias and removes
much variance (Hajek 1971).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist

from steppe.serve.ledger._base import Ledger, LoggedDecision

ENOUGH = 10
"""Fewest returns of a policy for a verdict; with fewer the spread is unknown."""
DECIDED = 0.95
"""Confidence that a verdict needs."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval; the ends are None if there are too few decisions."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class PolicyEstimate:
    """The estimates for one policy, or for one version of it."""

    policy: str
    version: str | None
    """None for all versions together."""
    decisions: int
    """Episodes, and requests without an episode, that it got."""
    rewarded: int
    """Those that are over and rewarded; only they count below."""
    mean: float | None
    """Mean of the observed returns."""
    inverse_propensity: Interval | None
    """Mean return if it had got all of the traffic, by inverse propensity."""
    self_normalised: Interval | None
    """The same, divided by the sum of the weights."""
    effective: float
    """Effective sample size of the weighted returns (Kish 1965)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All policies of an endpoint, best estimate first."""

    policies: tuple[PolicyEstimate, ...]
    versions: tuple[PolicyEstimate, ...]
    """The estimates for each version of those policies that had several."""
    decisions: int
    rewarded: int
    mean: float | None
    """Mean return of the traffic as it was."""
    notices: tuple[str, ...]
    """Reasons to doubt the figures."""
    verdict: str | None
    """One sentence on which policy is best and how sure that is; None with fewer than two policies."""


def compare(ledger: Ledger, confidence: float = 0.95) -> Comparison:
    """Estimates from all decisions of an open ledger, but for requests that named a policy themselves."""
    return estimate(ledger.decisions(), confidence)


def estimate(decisions: Iterable[LoggedDecision], confidence: float = 0.95) -> Comparison:
    """Estimates with intervals of that confidence, in one pass over the decisions."""
    policies: dict[str, _WeightedSums] = {}
    versions: dict[tuple[str, str], _WeightedSums] = {}
    everything = _WeightedSums()
    for logged in decisions:
        if not logged.is_routed:
            continue
        for sums in (
            everything,
            policies.setdefault(logged.policy, _WeightedSums()),
            versions.setdefault((logged.policy, logged.version), _WeightedSums()),
        ):
            sums.add(logged)
    reach = NormalDist().inv_cdf(0.5 + confidence / 2)
    estimates = [_estimate(name, None, sums, everything.rewarded, reach) for name, sums in policies.items()]
    by_version = [
        _estimate(name, version, sums, everything.rewarded, reach)
        for (name, version), sums in versions.items()
        if sum(other == name for other, _ in versions) > 1
    ]
    ranked = sorted(estimates, key=_rank)
    return Comparison(
        tuple(ranked),
        tuple(by_version),
        everything.decisions,
        everything.rewarded,
        everything.mean,
        tuple(_notices(policies, everything)),
        _verdict(ranked, reach),
    )


@dataclass(slots=True)
class _WeightedSums:
    """Sums over decisions, of weights w = 1 / propensity and returns r."""

    decisions: int = 0
    rewarded: int = 0
    least_propensity: float = math.inf
    greatest_propensity: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("r", "w", "ww", "wr", "wwr", "wwrr"), 0.0))

    def add(self, logged: LoggedDecision) -> None:
        self.decisions += 1
        self.least_propensity = min(self.least_propensity, logged.propensity)
        self.greatest_propensity = max(self.greatest_propensity, logged.propensity)
        if not logged.is_over or not logged.feedback:
            return
        self.rewarded += 1
        w, r = 1.0 / logged.propensity, logged.total
        for name, value in (("r", r), ("w", w), ("ww", w * w), ("wr", w * r), ("wwr", w * w * r)):
            self.sums[name] += value
        self.sums["wwrr"] += w * w * r * r

    @property
    def mean(self) -> float | None:
        return self.sums["r"] / self.rewarded if self.rewarded else None


def _estimate(policy: str, version: str | None, sums: _WeightedSums, total: int, reach: float) -> PolicyEstimate:
    """The estimates for one policy, out of `total` rewarded decisions of all policies."""
    if not sums.rewarded:
        return PolicyEstimate(policy, version, sums.decisions, 0, None, None, None, 0.0)
    s = sums.sums
    plain = s["wr"] / total
    # Decisions for other policies count as 0 in this mean.
    error = math.sqrt(max(0.0, s["wwrr"] / total - plain**2) / (total - 1)) if total > 1 else None
    hajek = s["wr"] / s["w"]
    # By linearisation: sum w^2 (r - estimate)^2 / (sum w)^2.
    residual = max(0.0, s["wwrr"] - 2.0 * hajek * s["wwr"] + hajek**2 * s["ww"])
    spread = math.sqrt(residual) / s["w"] if sums.rewarded > 1 else None
    return PolicyEstimate(
        policy=policy,
        version=version,
        decisions=sums.decisions,
        rewarded=sums.rewarded,
        mean=sums.mean,
        inverse_propensity=_interval(plain, error, reach),
        self_normalised=_interval(hajek, spread, reach),
        effective=s["w"] ** 2 / s["ww"],
    )


def _interval(value: float, error: float | None, reach: float) -> Interval:
    return (
        Interval(value, None, None) if error is None else Interval(value, value - reach * error, value + reach * error)
    )


def _rank(estimate: PolicyEstimate) -> tuple[float, int]:
    """Sorts the best estimate first, and of equal ones the one with more returns."""
    value = estimate.self_normalised.value if estimate.self_normalised is not None else -math.inf
    # Rounded, since sums of weights differ in their last digits.
    return -float(f"{value:.9g}"), -estimate.rewarded


def _verdict(ranked: list[PolicyEstimate], reach: float) -> str | None:
    """Whether the first policy is better than the second, if both estimates are normally distributed."""
    known = [each for each in ranked if each.self_normalised is not None]
    if len(known) < 2:
        return None
    best, other = known[:2]
    for each in (best, other):
        if each.rewarded < ENOUGH:
            decisions = f"{each.rewarded} rewarded decision{'' if each.rewarded == 1 else 's'}"
            return f'it is too early to say which policy is best: "{each.policy}" has only {decisions}'
    first, second = best.self_normalised, other.self_normalised
    assert first is not None
    assert second is not None
    lead = first.value - second.value
    figures = f"{first.value:.4g} against {second.value:.4g}"
    if _rank(best)[0] == _rank(other)[0]:
        return f'"{best.policy}" and "{other.policy}" are equally good so far: {figures}'
    error = math.hypot(_half(first), _half(second)) / reach
    probability = NormalDist().cdf(lead / error) if error else 1.0
    sure = (
        "more than 99.9%"
        if probability > 0.999
        else f"{probability:.0%}"
        if probability < 0.99
        else f"{probability:.1%}"
    )
    if probability < DECIDED:
        lead_so_far = f'"{best.policy}" leads "{other.policy}", {figures}, with {sure} confidence'
        return f"it is not decided which is best: {lead_so_far}"
    return f'"{best.policy}" is best, with {sure} confidence: {figures} of "{other.policy}"'


def _half(interval: Interval) -> float:
    """Half the width of an interval."""
    return 0.0 if interval.high is None else interval.high - interval.value


def _notices(policies: dict[str, _WeightedSums], everything: _WeightedSums) -> Iterable[str]:
    if not everything.decisions:
        yield "nothing has been decided yet; ask the endpoint, and send it feedback"
    elif not everything.rewarded:
        yield "no decision has been rewarded yet; send feedback, and end episodes with sequence_end"
    for name, sums in policies.items():
        if sums.decisions and sums.rewarded < 0.9 * sums.decisions and everything.rewarded:
            share = 100 * (1 - sums.rewarded / sums.decisions)
            yield f'{share:.0f}% of the decisions for "{name}" were not rewarded; unless by chance, its mean misleads'
        if sums.least_propensity < 0.001:
            yield f'"{name}" was chosen with a probability of only {sums.least_propensity:.2g}: its intervals are wide'
    if len(policies) > 1 and everything.greatest_propensity > 0.9999:
        yield "some routes were chosen with certainty, so other policies had no chance; give the bandit a floor"
