"""One policy, one request after the other: p50 at most 1.5 times a bare ASGI hello and p99 at most 2 times; a third of
MLServer's p50."""

from __future__ import annotations

import sys
from statistics import median

from interleave import Verdict, conclude, interleave, is_quick, ratios
from serving_client import Request, sequential
from serving_contestants import BENTOML, HELLO, MLSERVER, RAY, ROUTER, STEPPE, contestant, percentile, servers

PARTS = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
COLUMNS = {"p50_us": "p50 us", "p90_us": "p90 us", "p99_us": "p99 us", "p999_us": "p99.9 us"}
BARS = {"p50_us": 1.5, "p99_us": 2.0}
"""How many times hello's."""


def main() -> int:
    quick = is_quick(__doc__)
    # So many that the ledger is written several times meanwhile, which it is four times a second.
    count, rounds = (300, 1) if quick else (20_000, 5)

    def measure(port: int, request: Request, count: int) -> dict[str, float]:
        ordered = sorted(sequential(port, request, count, warm_up=count // 5))
        return {name: percentile(ordered, part) * 1e6 for name, part in PARTS.items()}

    chosen = servers(quick, HELLO, STEPPE, ROUTER, MLSERVER, BENTOML, RAY)
    runs = interleave([contestant(each, count, measure) for each in chosen], rounds)
    verdicts = []
    for column, bar in BARS.items():
        times = [1 / ratio for ratio in ratios(runs, HELLO, STEPPE, column)]
        verdicts.append(
            Verdict(
                f"{STEPPE}: {COLUMNS[column].removesuffix(' us')} at most {bar:g} times {HELLO}",
                f"{median(times):.2f} times ({min(times):.2f} to {max(times):.2f})",
                median(times) <= bar,
            )
        )
    if MLSERVER in runs:
        lower = ratios(runs, MLSERVER, STEPPE, "p50_us")
        verdicts.append(
            Verdict(
                f"{STEPPE}: p50 at most a third of {MLSERVER}'s",
                f"1/{median(lower):.1f} (1/{min(lower):.1f} to 1/{max(lower):.1f})",
                median(lower) >= 3,
            )
        )
    return conclude(str(__doc__), runs, verdicts, quick, columns=COLUMNS, cost="p50_us")


if __name__ == "__main__":
    sys.exit(main())
