"""64 worker processes of run mode async, a 164-256-256-2 policy, SAC: 4,000 environment steps a second for a minute.

The environment is as trivial as can be (164 numbers observed, 2 done), so that what is measured is everything else:
acting, sending, remembering and learning, on however many cores there are. Memory is what all processes of the run take
together (their proportional share of what they share), the learner's replay memory and Ray's own processes included.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from interleave import Verdict, conclude

WORKERS, WARM_UP, SECONDS = 64, 10.0, 60.0
STEPS_PER_SECOND, GIGABYTES, GROWTH = 4_000, 20.0, 0.02
QUEUE = 2
"""Batches that may wait; each worker may have one more in line."""
CASES = {f"{WORKERS} workers, 1 environment each": 1, f"{WORKERS} workers, 4 environments each": 4}
COLUMNS = {
    "steps_per_second": "steps/s",
    "slowest": "slowest 5 s",
    "updates_per_second": "updates/s",
    "policy_lag": "lag (updates)",
    "most_waiting": "most waiting",
    "dropped": "dropped",
    "gigabytes": "GB in all",
    "growth": "growth of GB",
}


class Track(gymnasium.Env):
    """164 numbers that drift; two that push; an episode lasts 500 timesteps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (164,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._state = self.np_random.standard_normal(164, np.float32)
        self._steps = 0
        return self._state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._state *= 0.99
        self._state[:2] += action
        self._steps += 1
        return self._state.copy(), -float(abs(self._state[0])), False, self._steps == 500, {}


@dataclass
class Watch:
    """Notes how far the run is, what it shows and how much memory it takes, every few seconds."""

    seconds: float
    marks: list[tuple[float, int]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)
    ready: float = 0.0

    def see(self, progress: Any) -> None:
        now = time.monotonic()
        if progress.phase != "training" or progress.metrics.get("workers", 0) < WORKERS:
            return
        self.ready = self.ready or now
        self.figures.append(dict(progress.metrics))
        if now - self.ready < WARM_UP:
            self.figures.clear()
            return
        if not self.marks or now - self.marks[-1][0] >= 5.0:
            self.marks.append((now, progress.timestep))
            self.memory.append(gigabytes(os.getpid()))

    @property
    def is_over(self) -> bool:
        return bool(self.marks) and self.marks[-1][0] - self.marks[0][0] >= self.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that everything works")
    arguments = parser.parse_args()
    seconds = 5.0 if arguments.quick else SECONDS
    runs = {name: [measure(seconds, num_envs)] for name, num_envs in CASES.items()}
    verdicts = [verdict for name, (run,) in runs.items() for verdict in judged(name, run)]
    return conclude(str(__doc__), runs, verdicts, arguments.quick, COLUMNS, cost=None)


def judged(name: str, run: dict[str, Any]) -> list[Verdict]:
    return [
        Verdict(
            f"{name}: at least {STEPS_PER_SECOND:,} steps/s in all, also in the slowest 5 s",
            f"{run['steps_per_second']:,.0f}, slowest {run['slowest']:,.0f}",
            run["slowest"] >= STEPS_PER_SECOND,
        ),
        Verdict(f"{name}: under {GIGABYTES:g} GB in all", f"{run['gigabytes']:.1f} GB", run["gigabytes"] < GIGABYTES),
        Verdict(f"{name}: memory grows by less than {GROWTH:.0%}", f"{run['growth']:.1%}", run["growth"] < GROWTH),
        Verdict(
            f"{name}: at most {QUEUE + WORKERS} batches wait",
            f"{run['most_waiting']:.0f}",
            run["most_waiting"] <= QUEUE + WORKERS,
        ),
    ]


def measure(seconds: float, num_envs: int) -> dict[str, Any]:
    import steppe
    from steppe import runners
    from steppe.spec_files import load_experiment

    fields = {
        "name": "async-workers",
        "environment": "async_workers:Track",
        "agent": {"type": "sac", "learning_starts": 5_000, "memory": {"capacity": 250_000}},
        "network": [{"type": "dense", "size": 256, "activation": "relu"}] * 2,
        "run_mode": "async",
        "num_workers": WORKERS,
        "num_envs": num_envs,
        "asynchronous": {"update_to_data": "max", "queue_size": QUEUE},
        "total_timesteps": 10**9,
        "saver_frequency": "100000s",
        "summary_frequency": "1s",
        "video": False,
        "seed": 1,
    }
    spec = load_experiment(None, fields, [], Path.cwd(), options=False)
    watch = Watch(seconds)
    with tempfile.TemporaryDirectory() as folder:
        runners.run(
            spec,
            Path(folder),
            resume=False,
            request=lambda: "stop" if watch.is_over else None,
            on_progress=watch.see,
        )
    spans = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(watch.marks, watch.marks[1:], strict=False)]
    (begun, first), (ended, last) = watch.marks[0], watch.marks[-1]
    half = len(watch.memory) // 2
    return {
        "version": steppe.__version__,
        "steps_per_second": (last - first) / (ended - begun),
        "slowest": min(spans),
        "updates_per_second": float(np.mean([each["updates_per_second"] for each in watch.figures])),
        "policy_lag": float(np.mean([each["policy_lag"] for each in watch.figures])),
        "most_waiting": max(each["waiting"] for each in watch.figures),
        "dropped": watch.figures[-1]["dropped"],
        "gigabytes": max(watch.memory),
        "growth": max(watch.memory[half:]) / max(watch.memory[:half] or watch.memory) - 1.0,
        "learner_utilisation": float(np.mean([each["learner_utilisation"] for each in watch.figures])),
        "memory": watch.memory,
        "spans": spans,
    }


def gigabytes(pid: int) -> float:
    """What a process and all that it has started take, each page counted once."""
    total = 0
    for each in [pid, *descendants(pid)]:
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 2**20


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


if __name__ == "__main__":
    sys.exit(main())
