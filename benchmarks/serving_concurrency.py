"""64 clients at once: at least 4 times the throughput of MLServer, and p99 at most 5 times p50."""

from __future__ import annotations

import sys
from statistics import median

from interleave import Verdict, conclude, interleave, is_quick, spread
from serving_client import Request, concurrent
from serving_contestants import BENTOML, HELLO, MLSERVER, RAY, ROUTER, STEPPE, contestant, percentile, servers

CLIENTS = 64
COLUMNS = {"requests_per_second": "requests/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "tail": "p99/p50"}


def main() -> int:
    quick = is_quick(__doc__)
    count, rounds = (1000, 1) if quick else (20_000, 5)

    def measure(port: int, request: Request, count: int) -> dict[str, float]:
        seconds, elapsed = concurrent(port, request, CLIENTS, count, warm_up=count // 5)
        ordered = sorted(seconds)
        middle, tail = percentile(ordered, 0.5), percentile(ordered, 0.99)
        speed = len(ordered) / elapsed
        return {"requests_per_second": speed, "p50_ms": middle * 1e3, "p99_ms": tail * 1e3, "tail": tail / middle}

    chosen = servers(quick, HELLO, STEPPE, ROUTER, MLSERVER, BENTOML, RAY)
    runs = interleave([contestant(each, count, measure) for each in chosen], rounds)
    tails = [run["tail"] for run in runs[STEPPE]]
    verdicts = [
        Verdict(f"{STEPPE}: p99 at most 5 times p50", spread(tails, "{:.1f}", " times"), median(tails) <= 5),
    ]
    if MLSERVER in runs:
        pairs = zip(runs[STEPPE], runs[MLSERVER], strict=True)
        times = [ours["requests_per_second"] / theirs["requests_per_second"] for ours, theirs in pairs]
        claim = f"{STEPPE}: at least 4 times the requests/s of {MLSERVER}"
        verdicts.append(Verdict(claim, spread(times, "{:.1f}", " times"), median(times) >= 4))
    return conclude(str(__doc__), runs, verdicts, quick, columns=COLUMNS, cost=None)


if __name__ == "__main__":
    sys.exit(main())
