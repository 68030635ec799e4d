"""Runs contestants in turn and reports the results: a table, verdicts, and JSON in results/.

Each contestant runs once a round, every second round in the opposite order, so that other load on the machine affects
all of them alike. A ratio is taken within each round; the table shows its median and its range over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
COSTS = {"cpu_us": "CPU us/step", "wall_us": "wall us/step", "steps_per_second": "steps/s"}
"""The columns of a run that a Window measures."""
TIMES = {"cpu_us": "CPU", "wall_us": "wall"}
"""If a table has both columns and shows a ratio of one, it shows the ratio of the other too."""

Run = dict[str, Any]
Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class Contestant:
    """A library in one configuration; `run` takes the seed and returns the measurements."""

    name: str
    run: Callable[[int], Run]


@dataclass(frozen=True)
class Verdict:
    """A bar, the measurement, and whether it meets the bar."""

    bar: str
    measured: str
    is_met: bool


def is_quick(claim: str | None) -> bool:
    """Whether the command line has --quick: one short round that only shows that everything works."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything works")
    return bool(parser.parse_args().quick)


def interleave(contestants: list[Contestant], rounds: int) -> Runs:
    """Runs every contestant once a round, with the round's number as the seed."""
    runs: Runs = {contestant.name: [] for contestant in contestants}
    for seed in range(1, rounds + 1):
        for contestant in contestants if seed % 2 else reversed(contestants):
            print(f"round {seed} of {rounds}: {contestant.name}", file=sys.stderr, flush=True)
            runs[contestant.name].append(contestant.run(seed))
    return runs


def output_of(command: list[str], variables: Mapping[str, str] | None = None) -> Run:
    """The last line that a child process prints, parsed as JSON; if the process fails, the benchmark ends.

    `variables` are added to its environment.
    """
    environment = os.environ | dict(variables or {})
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if child.returncode:
        sys.exit(f"error: this command failed: {shlex.join(command)}")
    return json.loads(child.stdout.splitlines()[-1])


def run_measured(command: list[str], folder: str, environment: Mapping[str, str]) -> Run:
    """Runs a command to its end in a folder: {"seconds", "cpu_seconds", "peak_megabytes"}."""
    started = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if child.returncode:
        sys.exit(f"error: this command failed: {shlex.join(command)}")
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        # Linux counts in kilobytes, and never less than the peak of the process that starts the child, this one.
        "peak_megabytes": usage.ru_maxrss * 1024 / 1e6,
    }


def ratios(runs: Runs, reference: str, name: str, cost: str) -> list[float]:
    """How many times cheaper `name` was than `reference`, in each round."""
    return [theirs[cost] / ours[cost] for theirs, ours in zip(runs[reference], runs[name], strict=True)]


def at_least(runs: Runs, reference: str, name: str, cost: str, factor: float) -> Verdict:
    """Whether `name` is at least `factor` times cheaper than `reference`, by the median over the rounds."""
    measured = ratios(runs, reference, name, cost)
    bar = f"{name}: {COSTS[cost]} at most 1/{factor:g} of {reference}"
    return Verdict(bar, spread(measured, "1/{:.2f}"), median(measured) >= factor)


def spread(values: list[float], form: str, unit: str = "") -> str:
    """The median and the range, such as "1.86 times (1.70 to 1.97)"."""
    middle, low, high = (form.format(value) for value in (median(values), min(values), max(values)))
    return f"{middle}{unit} ({low} to {high})"


def ahead(runs: Runs, reference: str, name: str) -> list[Verdict]:
    """Whether `name` takes no more CPU time and no more wall time than `reference`."""
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
    """Prints the table and the verdicts and writes results/<name or script>.json; returns 1 if a bar is missed, else 0.

    The table shows ratios of `cost` to the first contestant; if `cost` is None it shows none.
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
    """Medians over the rounds, and the ratio of the first row's cost to each row's, with its range."""
    reference, costs = next(iter(runs)), _costs(columns, cost)
    headings = [word for each in costs for word in (f"{TIMES.get(each, '')} ratio".strip(), "spread of ratio")]
    rows = [["library", "version", *columns.values(), *headings]]
    for name, own in runs.items():
        row = [name, own[0]["version"], *(number(median(run[column] for run in own)) for column in columns)]
        for each in costs:
            factors = ratios(runs, reference, name, each)
            row += [f"{median(factors):.2f}", f"{min(factors):.2f} to {max(factors):.2f}"]
        rows.append(row)
    return rows


def _costs(columns: dict[str, str], cost: str | None) -> list[str]:
    """The costs whose ratios a table shows: with CPU time also wall time and vice versa, if both were measured."""
    if cost is None:
        return []
    return [cost, *(other for other in TIMES if cost in TIMES and other != cost and other in columns)]


def print_table(rows: list[list[str]]) -> None:
    """Prints rows below the first, which is the heading; the first two columns are text, the others numbers."""
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
    """A number with three significant digits, or whole from 1,000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def machine() -> str:
    """The processor, system and load that the figures were measured with."""
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
