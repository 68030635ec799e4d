"""Runs contestants in turn, and tells what came of it: a table, verdicts, and JSON in results/.

Each contestant runs once a round, every second round in the opposite order, so that whatever else the machine does
falls on all of them alike. A ratio is taken within each round; its median and its range over the rounds are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
COSTS = {"cpu_us": "CPU us/step", "wall_us": "wall us/step", "steps_per_second": "steps/s"}
"""The columns of a run that was measured by a Window."""
TIMES = {"cpu_us": "CPU", "wall_us": "wall"}
"""A table with a ratio of one of them has that of the other beside it, if it has both columns."""

Run = dict[str, Any]
Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class Contestant:
    """A library in one configuration; `run` takes the seed and returns what was measured."""

    name: str
    run: Callable[[int], Run]


@dataclass(frozen=True)
class Verdict:
    """A bar and what was measured against it."""

    bar: str
    measured: str
    is_met: bool


def is_quick(claim: str | None) -> bool:
    """Whether --quick is given: one short round that shows that everything works, and proves nothing."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything works")
    return bool(parser.parse_args().quick)


def interleave(contestants: list[Contestant], rounds: int) -> Runs:
    """Every contestant's runs, one for each round; the round's number is the seed."""
    runs: Runs = {contestant.name: [] for contestant in contestants}
    for seed in range(1, rounds + 1):
        for contestant in contestants if seed % 2 else reversed(contestants):
            print(f"round {seed} of {rounds}: {contestant.name}", file=sys.stderr, flush=True)
            runs[contestant.name].append(contestant.run(seed))
    return runs


def output_of(command: list[str], variables: Mapping[str, str] | None = None) -> Run:
    """What a child process prints as its last line, which is JSON; its errors end the benchmark.

    `variables` are added to its environment.
    """
    environment = os.environ | dict(variables or {})
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if child.returncode:
        sys.exit(f"error: this command failed: {shlex.join(command)}")
    return json.loads(child.stdout.splitlines()[-1])


def ratios(runs: Runs, reference: str, name: str, cost: str) -> list[float]:
    """In each round, how many times cheaper `name` was than `reference`."""
    return [theirs[cost] / ours[cost] for theirs, ours in zip(runs[reference], runs[name], strict=True)]


def at_least(runs: Runs, reference: str, name: str, cost: str, factor: float) -> Verdict:
    """Whether `name` is that many times cheaper than `reference`, on the median of the rounds."""
    measured = ratios(runs, reference, name, cost)
    bar = f"{name}: {COSTS[cost]} at most 1/{factor:g} of {reference}"
    told = f"1/{median(measured):.2f} (1/{min(measured):.2f} to 1/{max(measured):.2f})"
    return Verdict(bar, told, median(measured) >= factor)


def ahead(runs: Runs, reference: str, name: str) -> list[Verdict]:
    """Whether `name` takes no more than `reference`, neither in CPU time nor in wall time."""
    return [at_least(runs, reference, name, cost, 1) for cost in TIMES]


def conclude(
    claim: str,
    runs: Runs,
    verdicts: list[Verdict],
    quick: bool,
    columns: dict[str, str] = COSTS,
    cost: str | None = "cpu_us",
    name: str | None = None,
) -> int:
    """Prints the table and the verdicts, writes results/<name or script>.json; the exit code, 1 where a bar is missed.

    The first contestant is the reference of the ratios, which are of `cost`; without one there are none.
    """
    script = Path(sys.argv[0]).stem
    print(f"\n{claim.strip()}\n{machine()}\n")
    print_table(table(runs, columns, cost))
    for verdict in verdicts:
        judgement = "too short to judge" if quick else "met" if verdict.is_met else "NOT MET"
        print(f"{judgement}: {verdict.bar}; measured {verdict.measured}")
    if quick:
        return 0
    result = {
        "claim": claim,
        "command": f"python benchmarks/{script}.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "runs": runs,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name or script}.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(verdict.is_met for verdict in verdicts) else 1


def table(runs: Runs, columns: dict[str, str], cost: str | None) -> list[list[str]]:
    """Medians over the rounds; how many times cheaper than the first row each one is, and the range of that."""
    reference, costs = next(iter(runs)), _costs(columns, cost)
    heads = [word for each in costs for word in (f"{TIMES.get(each, '')} ratio".strip(), "spread of ratio")]
    rows = [["library", "version", *columns.values(), *heads]]
    for name, own in runs.items():
        row = [name, own[0]["version"], *(number(median(run[column] for run in own)) for column in columns)]
        for each in costs:
            factors = ratios(runs, reference, name, each)
            row += [f"{median(factors):.2f}", f"{min(factors):.2f} to {max(factors):.2f}"]
        rows.append(row)
    return rows


def _costs(columns: dict[str, str], cost: str | None) -> list[str]:
    """What a table has ratios of: CPU time and wall time where one of them is asked for and both were measured."""
    if cost is None:
        return []
    return [cost, *(other for other in TIMES if cost in TIMES and other != cost and other in columns)]


def print_table(rows: list[list[str]]) -> None:
    """The first row is the heading; all but the first two columns are numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = ["-" * width for width in widths]
    for row in [rows[0], rule, *rows[1:]]:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |")
    print()


def number(value: float) -> str:
    """With as many digits as mean something."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def machine() -> str:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{cpu}, {cores} cores, Python {platform.python_version()}, {platform.system()}, load average {load:.1f}"
