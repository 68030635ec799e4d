"""From typing the command to a 100-episode mean of 475 on CartPole-v1: under 10 s, at most 1/8 of stable-baselines3.

Start-up is included, the compilation cache is warm; the median of five seeds. For Steppe the mean counts as reached
when the checkpoint of that moment is on disk; "whole command" adds the report, the ONNX file and the video.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import steppe
from contestants import SB3, SB3_ONE_THREAD, peer_command
from interleave import Contestant, Run, Verdict, at_least, conclude, interleave, is_quick, output_of

NAME = "Steppe"
MOST_TIMESTEPS = 1_000_000
COLUMNS = {"seconds": "s to 475", "whole_seconds": "s, whole command", "trained_timesteps": "timesteps"}


def main() -> int:
    quick = is_quick(__doc__)
    goal, rounds = (100.0, 1) if quick else (475.0, 5)
    train(seed=0, goal=10.0)  # fills the compilation cache
    runs = interleave(
        [
            Contestant(SB3, lambda seed: train_peer(seed, goal)),
            Contestant(SB3_ONE_THREAD, lambda seed: train_peer(seed, goal, "--threads", "1")),
            Contestant(NAME, lambda seed: train(seed, goal)),
        ],
        rounds,
    )
    seconds = median(run["seconds"] for run in runs[NAME])
    verdicts = [Verdict(f"{NAME}: under 10 s", f"{seconds:.1f} s", seconds < 10)]
    verdicts += [at_least(runs, reference, NAME, "seconds", 8) for reference in (SB3, SB3_ONE_THREAD)]
    return conclude(str(__doc__), runs, verdicts, quick, columns=COLUMNS, cost="seconds")


def train(seed: int, goal: float) -> Run:
    """`steppe train` as a user types it, with the hyper-parameters of contestants.PPO, which are its defaults."""
    command = [str(Path(sys.executable).with_name("steppe")), "train", "CartPole-v1", "--agent", "ppo", "-n", "run"]
    command += ["--stop-at-return", str(goal), "--total-timesteps", str(MOST_TIMESTEPS), "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        ended = time.time()
        run = steppe.Experiment.open(Path(folder) / "steppe-runs" / "run")
        status = run.status
        if status.mean_return is None or status.mean_return < goal:
            sys.exit(f"error: seed {seed} ended with a mean of {status.mean_return}, short of {goal:g}")
        reached = (run.folder / "checkpoints" / str(status.timestep) / "state.json").stat().st_mtime
    return {
        "version": steppe.__version__,
        "seconds": reached - started,
        "whole_seconds": ended - started,
        "trained_timesteps": status.timestep,
    }


def train_peer(seed: int, goal: float, *arguments: str) -> Run:
    """The same in stable-baselines3; a run that never reaches the goal counts as if it had at its very end."""
    lengths = ["--timesteps", str(MOST_TIMESTEPS), "--stop-at-return", str(goal), "--seed", str(seed)]
    started = time.time()
    run = output_of(peer_command("stable_baselines3", "ppo", *lengths, *arguments))
    ended = time.time()
    return run | {"seconds": (run["reached_at"] or ended) - started, "whole_seconds": ended - started}


if __name__ == "__main__":
    sys.exit(main())
