"""`steppe train` reaches its first timestep 0.4 s sooner than another source tree; `steppe agents` takes under 0.4 s.

The first timestep is reached when its metrics are in metrics.jsonl and in tensorboard/, as every run writes them. By
then modules are imported, the spec is checked, programs are loaded from a warm compilation cache, the first checkpoint
is saved, and one rollout is collected and learned from. A second pair of columns shows the time to the line in
metrics.jsonl alone. The same Python runs both trees, and SETTINGS names every setting whose default differs in one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from interleave import Contestant, Run, Runs, Verdict, conclude, interleave, run_measured, spread

HERE = Path(__file__).parents[1] / "src"
SETTINGS = {
    "summary_frequency": "1t",
    "video": "false",
    "num_envs": "8",
    "agent.horizon": "128",
    "agent.epochs": "4",
    "agent.minibatches": "4",
    "agent.learning_rate": "0.00025",
}
TRAIN = ["train", "CartPole-v1", "--agent", "ppo", "--seed", "1", "--total-timesteps", "1000000", "--quiet"]
TRAIN += [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
AGENTS = ["agents"]
COLUMNS = {
    "seconds": "wall s",
    "cpu_seconds": "CPU s",
    "line_seconds": "wall s, metrics.jsonl",
    "line_cpu_seconds": "CPU s, metrics.jsonl",
}
LONGEST_WAIT = 300.0
EVENT_BYTES = 200
"""An event file with fewer bytes than this holds only the file version and no metrics."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, to see that everything works")
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    trees = {"here": HERE} | ({"there": arguments.against.resolve()} if arguments.against else {})
    with tempfile.TemporaryDirectory() as caches:
        folders = {name: Path(caches, name) for name in trees}
        for name, source in trees.items():
            first_timestep(source, folders[name])  # fills the compilation cache, and Python's own of bytecode
        runs = interleave(
            [
                contestant
                for name, source in trees.items()
                for contestant in (
                    Contestant(f"steppe train, {name}", lambda _, s=source, c=folders[name]: first_timestep(s, c)),
                    Contestant(f"steppe agents, {name}", lambda _, s=source, c=folders[name]: whole_command(s, c)),
                )
            ],
            1 if arguments.quick else arguments.rounds,
        )
    verdicts = [under("steppe agents, here", runs, 0.4)]
    if arguments.against:
        verdicts += [gain("steppe train", runs, cost, 0.4) for cost in ("seconds", "cpu_seconds")]
    return conclude(str(__doc__), runs, verdicts, arguments.quick, columns=COLUMNS, cost=None)


def first_timestep(source: Path, cache: Path) -> Run:
    """Time from the start of `steppe train` to its first metrics on disk; then the process is killed."""
    run: Run = {"version": source_version(source)}
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "steppe-runs", "CartPole-v1-ppo-1")
        started = time.perf_counter()
        with subprocess.Popen(command(TRAIN), cwd=folder, env=variables(source, cache)) as child:

            def wait(prefix: str, pattern: str, size: int) -> None:
                while not any(path.stat().st_size >= size for path in results.glob(pattern)):
                    if child.poll() is not None or time.perf_counter() - started > LONGEST_WAIT:
                        child.kill()
                        sys.exit(f"error: no timestep from: {' '.join(command(TRAIN))}")
                    time.sleep(0.002)
                run[f"{prefix}seconds"] = time.perf_counter() - started
                run[f"{prefix}cpu_seconds"] = cpu_seconds_of(child.pid)

            wait("line_", "metrics.jsonl", 1)
            wait("", "tensorboard/events*", EVENT_BYTES)
            child.kill()
    return run


def whole_command(source: Path, cache: Path) -> Run:
    """Time of `steppe agents` from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_measured(command(AGENTS), folder, variables(source, cache))
    # It writes no metrics, so both pairs of columns show the whole command.
    line = {f"line_{cost}": run[cost] for cost in ("seconds", "cpu_seconds")}
    return {"version": source_version(source)} | run | line


def command(arguments: list[str]) -> list[str]:
    """Steppe in this Python; PYTHONPATH selects the source tree."""
    return [sys.executable, "-m", "steppe", *arguments]


def variables(source: Path, cache: Path) -> dict[str, str]:
    """The environment variables of a source tree, which has a compilation cache of its own."""
    return os.environ | {"PYTHONPATH": str(source), "STEPPE_CACHE": str(cache)}


def cpu_seconds_of(pid: int) -> float:
    """CPU time so far of all threads of another process, by the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | 2)


def source_version(source: Path) -> str:
    """The commit of a source tree."""
    git = ["git", "-C", str(source), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def under(name: str, runs: Runs, bar: float) -> Verdict:
    """Whether the median of the wall time is under the bar."""
    measured = median(run["seconds"] for run in runs[name])
    return Verdict(f"{name}: under {bar:g} s", f"{measured:.2f} s", measured < bar)


def gain(name: str, runs: Runs, cost: str, bar: float) -> Verdict:
    """Whether `name` is at least `bar` seconds faster here than there, by the median difference over the rounds."""
    pairs = zip(runs[f"{name}, there"], runs[f"{name}, here"], strict=True)
    gains = [there[cost] - here[cost] for there, here in pairs]
    claim = f"{name}: {COLUMNS[cost]} at least {bar:g} less"
    return Verdict(claim, spread(gains, "{:.2f}", " s"), median(gains) >= bar)


if __name__ == "__main__":
    sys.exit(main())
