"""`steppe --help` in under 0.3 s; peak memory of the CartPole run under 600 MB, with a cold compilation cache too."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import steppe
from contestants import SB3, peer_command
from interleave import Contestant, Run, Verdict, conclude, interleave, is_quick, run_measured

STEPPE = str(Path(sys.executable).with_name("steppe"))
HELP, WARM, COLD = "steppe --help", "steppe train, warm cache", "steppe train, cold cache"
COLUMNS = {"seconds": "wall s", "cpu_seconds": "CPU s", "peak_megabytes": "peak MB"}


def main() -> int:
    quick = is_quick(__doc__)
    goal, timesteps, rounds = ("50", "10240", 1) if quick else ("475", "102400", 5)
    train = [STEPPE, "train", "CartPole-v1", "--agent", "ppo", "--stop-at-return", goal, "--seed", "1"]
    peer = peer_command("stable_baselines3", "ppo", "--threads", "1", "--timesteps", timesteps, "--seed", "1")
    measure(train)  # fills the compilation cache, and Python's cache of bytecode
    runs = interleave(
        [
            Contestant("python -c pass", lambda seed: measure([sys.executable, "-c", "pass"])),
            Contestant(HELP, lambda seed: median_of([measure([STEPPE, "--help"]) for _ in range(5)])),
            Contestant(WARM, lambda seed: measure(train)),
            Contestant(COLD, lambda seed: measure(train, cold=True)),
            Contestant(f"{SB3}, {timesteps} timesteps", lambda seed: measure(peer)),
        ],
        rounds,
    )
    seconds = median(run["seconds"] for run in runs[HELP])
    memory = max(run["peak_megabytes"] for name in (WARM, COLD) for run in runs[name])
    verdicts = [
        Verdict(f"{HELP}: under 0.3 s", f"{seconds:.2f} s", seconds < 0.3),
        Verdict("steppe train: peak memory under 600 MB", f"{memory:.0f} MB at most", memory < 600),
    ]
    return conclude(str(__doc__), runs, verdicts, quick, columns=COLUMNS, cost=None)


def measure(command: list[str], cold: bool = False) -> Run:
    """Runs a command in an empty folder, with an empty compilation cache if `cold`."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | ({"STEPPE_CACHE": f"{folder}/cache"} if cold else {})
        run = run_measured(command, folder, environment)
    return {"version": steppe.__version__ if command[0] == STEPPE else ""} | run


def median_of(runs: list[Run]) -> Run:
    """The run with the median time."""
    return sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]


if __name__ == "__main__":
    sys.exit(main())
