"""This source tree is at most 5% slower than another one: training, threads, serving, and the start of a training.

The other tree is given as the `src` folder of a checkout, such as one of `git worktree add ../before COMMIT`. The same
Python runs both, each with a compilation cache of its own, interleaved in one run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from contestants import DQN, PPO, SAC, steppe
from first_timestep import first_timestep, source_version
from hogwild import A3C
from interleave import COSTS, Contestant, Run, Runs, Verdict, conclude, interleave, ratios
from serving_client import sequential
from serving_contestants import QUESTION, free_port, make_policy, percentile, wait_for

HERE = Path(__file__).parents[1] / "src"
BEFORE, AFTER = "before", "after"
MOST = 1.05
"""How many times the time of before is allowed."""
GYMNASIUM = {"id": "CartPole-v1", "backend": "gymnasium"}
HOGWILD = {
    "agent": A3C | {"horizon": 32},
    "network": PPO["network"],
    "num_envs": 8,
    "run_mode": "multi-threaded",
    "num_workers": 2,
}
TRAININGS: dict[str, tuple[dict[str, Any], int, int]] = {
    "ppo_cartpole_compiled": (PPO, 1_024_000, 102_400),
    "ppo_cartpole_host": (PPO | {"environment": GYMNASIUM}, 102_400, 10_240),
    "dqn_cartpole": (DQN, 40_000, 4_000),
    "sac_pendulum": (SAC | {"environment": "Pendulum-v1"}, 6_000, 2_000),
    "hogwild": (HOGWILD, 4_000_000, 400_000),
}
"""What is trained, for how many timesteps, and from which one on it is measured."""
STARTUP = {"seconds": "wall s", "cpu_seconds": "CPU s"}
LATENCY = {"p50_us": "p50 us", "p99_us": "p99 us"}
QUESTIONS = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, metavar="SRC", help="the src folder of the other checkout")
    parser.add_argument("--only", choices=[*TRAININGS, "startup", "serving_latency"], help="one of the comparisons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything works")
    given = parser.parse_args()
    trees = {BEFORE: given.before.resolve(), AFTER: HERE}
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: Path(folder, name) for name in trees}
        for name in [given.only] if given.only else [*TRAININGS, "startup", "serving_latency"]:
            missed += compare(name, trees, caches, 1 if given.quick else given.rounds, given.quick)
    return 1 if missed else 0


def compare(name: str, trees: dict[str, Path], caches: dict[str, Path], rounds: int, quick: bool) -> int:
    """Runs one comparison; 1 if the tree of after is too slow."""
    if name == "startup":
        contestants = [_startup(tree, source, caches[tree]) for tree, source in trees.items()]
        cost, columns = "seconds", STARTUP
    elif name == "serving_latency":
        contestants = [_serving(tree, source, 200 if quick else QUESTIONS) for tree, source in trees.items()]
        cost, columns = "p50_us", LATENCY
    else:
        settings, timesteps, warm_up = TRAININGS[name]
        timesteps = timesteps // 10 + warm_up if quick else timesteps
        contestants = [
            _of_tree(
                steppe(
                    tree, settings, timesteps, warm_up, {"PYTHONPATH": str(source), "STEPPE_CACHE": str(caches[tree])}
                ),
                source,
            )
            for tree, source in trees.items()
        ]
        cost, columns = "cpu_us", COSTS
    print(f"\n{name}", file=sys.stderr)
    for contestant in contestants:  # fills the compilation caches, and Python's own of bytecode
        contestant.run(0)
    runs = interleave(contestants, rounds)
    return conclude(
        f"{name}: {__doc__}", runs, [_verdict(name, runs, cost)], quick, columns, cost, f"before_after_{name}"
    )


def _verdict(name: str, runs: Runs, cost: str) -> Verdict:
    """Whether the median over the rounds of the time after is at most `MOST` times that of before."""
    times = [1 / ratio for ratio in ratios(runs, BEFORE, AFTER, cost)]
    told = f"{median(times):.3f} times ({min(times):.3f} to {max(times):.3f})"
    return Verdict(f"{name}: {cost} at most {MOST:g} times that of before", told, median(times) <= MOST)


def _of_tree(contestant: Contestant, source: Path) -> Contestant:
    """The same, with the commit of its tree as its version."""
    return Contestant(contestant.name, lambda seed: contestant.run(seed) | {"version": source_version(source)})


def _startup(tree: str, source: Path, cache: Path) -> Contestant:
    """`steppe train CartPole-v1` up to the metrics of its first timestep."""
    return Contestant(tree, lambda seed: first_timestep(source, cache))


def _serving(tree: str, source: Path, questions: int) -> Contestant:
    """A CartPole policy behind `steppe serve`, asked one question after the other."""

    def run(seed: int) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            make_policy(1).save(Path(folder, "policy"))
            port = free_port()
            command = [sys.executable, "-m", "steppe", "serve", "policy", "--port", str(port)]
            environment = os.environ | {"PYTHONPATH": str(source), "STEPPE_LOOPBACK_TOKEN": "never"}
            log = Path(folder, "log.txt")
            with log.open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
            try:
                wait_for(port, QUESTION, process, log)
                ordered = sorted(sequential(port, QUESTION, questions, warm_up=questions // 5))
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()
        latencies = {"p50_us": percentile(ordered, 0.5) * 1e6, "p99_us": percentile(ordered, 0.99) * 1e6}
        return {"version": source_version(source)} | latencies

    return Contestant(tree, run)


if __name__ == "__main__":
    sys.exit(main())
