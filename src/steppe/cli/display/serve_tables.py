"""The output of `steppe serve status`, `versions` and `report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steppe.display.console import console, table
from steppe.display.play_progress import latency
from steppe.display.text import count, duration, score

if TYPE_CHECKING:
    from steppe.serve.report import Comparison, Interval, PolicyEstimate


def print_standing(standing: dict[str, Any]) -> None:
    """Prints the status of an endpoint: `endpoint` and `server` as plain values."""
    endpoint, server, out = standing["endpoint"], standing["server"], console()
    up = duration(max(0.0, server["now"] - server["started"]))
    answers = f"{count(server['answers'])} answer{'' if server['answers'] == 1 else 's'}"
    out.print(f"endpoint {endpoint['name']}: {answers} in {up}", markup=False, style="bold")
    if server["latency"]["p50"] is not None:
        p50, p99 = (latency(server["latency"][name]) for name in ("p50", "p99"))
        out.print(f"  latency    p50 {p50}, p99 {p99}", markup=False)
    out.print(
        f"  episodes   {endpoint['open_episodes']:,} open, {endpoint['expired_episodes']:,} expired", markup=False
    )
    if endpoint["routers"]:
        _print_routers(endpoint["routers"])
    _print_policies(endpoint["policies"])
    if endpoint["shadows"]:
        _print_shadows(endpoint["shadows"])
    if endpoint["ledger_problem"] is not None:
        out.print(f"note: rewards are refused at the moment: {endpoint['ledger_problem']}", markup=False)
    if endpoint["dropped"]:
        out.print(f"note: {endpoint['dropped']:,} decisions were never written down", markup=False)


def print_versions(policies: list[dict[str, Any]]) -> None:
    """Prints every version of every policy, the newest last."""
    rows = table("POLICY", "VERSION", "IN SERVICE")
    for policy in policies:
        for version in policy["versions"]:
            how = "pinned" if policy["pinned"] else "yes"
            rows.add_row(policy["name"], version, how if version == policy["version"] else "")
    console().print(rows)
    _print_problems(policies)


def print_comparison(comparison: Comparison, confidence: float) -> None:
    """Prints the estimated reward of each policy on all of the traffic, the best first."""
    out = console()
    if comparison.decisions:
        mean = f", mean return {score(comparison.mean)}" if comparison.mean is not None else ""
        many = f"{comparison.decisions:,} decision{'' if comparison.decisions == 1 else 's'}"
        out.print(f"{many}, {comparison.rewarded:,} rewarded{mean}", style="bold")
        columns = ("POLICY", "VERSION", "DECISIONS", "REWARDED", "MEAN RETURN", "ON ALL TRAFFIC")
        unbiased = ("UNBIASED", "UNBIASED INTERVAL")
        rows = table(
            *(*columns, f"{confidence:.0%} INTERVAL", *unbiased, "EFFECTIVE"),
            right=(*columns[2:], "UNBIASED", "EFFECTIVE"),
            drop=("REWARDED", *unbiased, "MEAN RETURN", "EFFECTIVE", "DECISIONS", "VERSION"),
        )
        for estimate in (*comparison.policies, *comparison.versions):
            rows.add_row(*_estimated(estimate))
        out.print(rows)
    for notice in comparison.notices:
        out.print(f"note: {notice}", markup=False)
    if comparison.verdict is not None:
        out.print(comparison.verdict, markup=False)


def _print_policies(policies: list[dict[str, Any]]) -> None:
    """Prints a row for each policy, with the totals of its versions."""
    columns = ("POLICY", "IN SERVICE", "REQUESTS", "REWARDED", "MEAN RETURN")
    rows = table(*columns, right=columns[2:], drop=("REWARDED", "REQUESTS"))
    for policy in policies:
        version = f"{policy['version']}{' (pinned)' if policy['pinned'] else ''}"
        figures = (f"{policy['requests']:,}", f"{policy['feedback']:,}", score(policy["mean_reward"]))
        rows.add_row(policy["name"], version, *figures)
    console().print(rows)
    _print_problems(policies)


def _print_problems(policies: list[dict[str, Any]]) -> None:
    for policy in policies:
        if policy["problem"] is not None:
            console().print(f"note: {policy['problem']}", markup=False)


def _estimated(estimate: PolicyEstimate) -> tuple[str, ...]:
    return (
        *(estimate.policy, estimate.version or "all", f"{estimate.decisions:,}", f"{estimate.rewarded:,}"),
        *(score(estimate.mean), *_interval(estimate.self_normalised), *_interval(estimate.inverse_propensity)),
        f"{estimate.effective:.0f}",
    )


def _interval(interval: Interval | None) -> tuple[str, str]:
    """(estimate, confidence interval)."""
    if interval is None:
        return "-", ""
    between = "" if interval.low is None else f"{score(interval.low)} .. {score(interval.high)}"
    return score(interval.value), between


def _print_routers(routers: list[dict[str, Any]]) -> None:
    columns = ("ROUTER", "BRANCH", "REQUESTS", "SHARE", "EPISODES", "REWARDED", "MEAN RETURN", "NEXT", "BEST")
    rows = table(*columns, right=columns[2:8], drop=("NEXT", "EPISODES", "REQUESTS", "REWARDED", "ROUTER"))
    for router in routers:
        for branch in router["branches"]:
            rows.add_row(
                *(f"{router['name']} ({router['bandit'] or router['kind']})", branch["name"]),
                *(f"{branch['requests']:,}", f"{branch['share']:.0%}", f"{branch['decisions']:,}"),
                *(f"{branch['feedback']:,}", score(branch["mean_reward"]), f"{branch['probability']:.0%}"),
                "best" if branch["is_best"] else "",
            )
    console().print(rows)


def _print_shadows(shadows: list[dict[str, Any]]) -> None:
    rows = table(
        "SHADOW",
        "POLICY",
        "REQUESTS",
        "DIFFERENCE",
        "FAILED",
        right=("REQUESTS", "DIFFERENCE", "FAILED"),
        drop=("REQUESTS",),
    )
    for shadow in shadows:
        difference = "-" if shadow["mean_difference"] is None else f"{shadow['mean_difference']:.3g}"
        rows.add_row(
            *(shadow["name"], shadow["policy"], f"{shadow['requests']:,}", difference, f"{shadow['failed']:,}")
        )
    console().print(rows)
