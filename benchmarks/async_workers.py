"""64 worker processes of run mode async, a 164-256-256-2 policy, SAC: 4,000 environment steps a second for a minute.

The environment is trivial (164 observed numbers, 2 action numbers), so that the benchmark measures everything else:
acting, sending, storing and learning, on all cores of the machine. Memory is the sum over all processes of the run,
including the learner's replay memory and Ray's own processes; each shared page counts once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from interleave import Verdict, conclude
from process_tree import descendants, megabytes_of

WORKERS, WARM_UP, SECONDS = 64, 10.0, 60.0
STEPS_PER_SECOND, GIGABYTES, GROWTH = 4_000, 20.0, 0.02
QUEUE = 2
"""Batches that may wait in the queue; each worker may hold one more."""
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
    """Observes 164 decaying numbers; the action's two numbers are added to the first two; 500 timesteps an episode."""

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
class Recorder:
    """Records timestep and memory every five seconds and the metrics of every progress report."""

    seconds: float
    marks: list[tuple[float, int]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    ready: float = 0.0

    def record(self, progress: Any) -> None:
        now = time.monotonic()
        if progress.phase != "training" or progress.metrics.get("workers", 0) < WORKERS:
            return
        self.ready = self.ready or now
        if now - self.ready < WARM_UP:
            return
        self.metrics.append(dict(progress.metrics))
        if not self.marks or now - self.marks[-1][0] >= 5.0:
            self.marks.append((now, progress.timestep))
            self.memory.append(gigabytes_of_tree(os.getpid()))

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
    recorder = Recorder(seconds)
    with tempfile.TemporaryDirectory() as folder:
        runners.run(
            spec,
            Path(folder),
            resume=False,
            request=lambda: "stop" if recorder.is_over else None,
            on_progress=recorder.record,
        )
    marks, memory, metrics = recorder.marks, recorder.memory, recorder.metrics
    spans = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(marks)]
    (begun, first), (ended, last) = marks[0], marks[-1]
    half = len(memory) // 2
    means = {
        name: float(np.mean([each[name] for each in metrics]))
        for name in ("updates_per_second", "policy_lag", "learner_utilisation")
    }
    return means | {
        "version": steppe.__version__,
        "steps_per_second": (last - first) / (ended - begun),
        "slowest": min(spans),
        "most_waiting": max(each["waiting"] for each in metrics),
        "dropped": metrics[-1]["dropped"],
        "gigabytes": max(memory),
        "growth": max(memory[half:]) / max(memory[:half] or memory) - 1.0,
        "memory": memory,
        "spans": spans,
    }


def gigabytes_of_tree(root: int) -> float:
    """Memory of a process and its descendants; each page counts once."""
    total = 0.0
    for pid in [root, *descendants(root)]:
        with contextlib.suppress(OSError):  # it may have just ended
            total += megabytes_of(pid)
    return total / 1024


if __name__ == "__main__":
    sys.exit(main())
