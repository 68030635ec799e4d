"""One policy, one request after the other: p50 at most 1.5 times a bare ASGI hello and p99 at most 2 times; a third of
MLServer's p50."""

from __future__ import annotations

import sys
from statistics import median

from interleave import Verdict, conclude, interleave, is_quick, ratios, spread
from serving_client import Request, sequential
from serving_contestants import BENTOML, HELLO, MLSERVER, RAY, ROUTER, STEPPE, contestant, percentile, servers

PARTS = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
COLUMNS = {"p50_us": "p50 us", "p90_us": "p90 us", "p99_us": "p99 us", "p999_us": "p99.9 us"}
BARS = {"p50_us": 1.5, "p99_us": 2.0}
"""Multiples of hello's time."""


def main() -> int:
    quick = is_quick(__doc__)
    # Enough requests that the ledger, which is written four times a second, is written several times meanwhile.
    count, rounds = (300, 1) if quick else (20_000, 5)

    def measure(port: int, request: Request, count: int) -> dict[str, float]:
        ordered = sorted(sequential(port, request, count, warm_up=count // 5))
        return {name: percentile(ordered, part) * 1e6 for name, part in PARTS.items()}

    chosen = servers(quick, HELLO, STEPPE, ROUTER, MLSERVER, BENTOML, RAY)
    runs = interleave([contestant(each, count, measure) for each in chosen], rounds)
    verdicts = []
    for column, bar in BARS.items():
        times = [1 / ratio for ratio in ratios(runs, HELLO, STEPPE, column)]
        claim = f"{STEPPE}: {COLUMNS[column].removesuffix(' us')} at most {bar:g} times {HELLO}"
        verdicts.append(Verdict(claim, spread(times, "{:.2f}", " times"), median(times) <= bar))
    if MLSERVER in runs:
        times = ratios(runs, MLSERVER, STEPPE, "p50_us")
        claim = f"{STEPPE}: p50 at most a third of {MLSERVER}'s"
        verdicts.append(Verdict(claim, spread(times, "1/{:.1f}"), median(times) >= 3))
    return conclude(str(__doc__), runs, verdicts, quick, columns=COLUMNS, cost="p50_us")


if __name__ == "__main__":
    sys.exit(main())
