"""From the command to a 100-episode mean of 475 on CartPole-v1: under 10 s, at most 1/8 of stable-baselines3.

The time includes start-up, with a warm compilation cache, and is the median of five seeds. Steppe has reached the mean
when the checkpoint of that moment is on disk; "whole command" adds the report, the ONNX file and the video.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import steppe
from contestants import PPO_BY_DEFAULT, SB3, peer_command
from interleave import Contestant, Run, Verdict, conclude, interleave, is_quick, output_of, spread

NAME = "Steppe"
MOST_TIMESTEPS = 1_000_000
COLUMNS = {"seconds": "s to the mean", "whole_seconds": "s, whole command", "trained_timesteps": "timesteps"}


def main() -> int:
    quick = is_quick(__doc__)
    goal, rounds = (100.0, 1) if quick else (475.0, 5)
    train(seed=0, goal=10.0)  # fills the compilation cache
    contestants = [
        Contestant(SB3, lambda seed: train_peer(seed, goal)),
        Contestant(NAME, lambda seed: train(seed, goal)),
    ]
    runs = interleave(contestants, rounds)
    own, theirs = ([run["seconds"] for run in runs[name]] for name in (NAME, SB3))
    # The ratio is taken of the medians and not seed by seed: a seed of one library means nothing to the other.
    ratio = median(theirs) / median(own)
    own_spread, their_spread = (spread(seconds, "{:.1f}", " s") for seconds in (own, theirs))
    verdicts = [
        Verdict(f"{NAME}: under 10 s", own_spread, median(own) < 10),
        Verdict(f"{NAME}: at most 1/8 of {SB3}", f"1/{ratio:.1f}, {own_spread} and {their_spread}", ratio >= 8),
    ]
    return conclude(str(__doc__), runs, verdicts, quick, columns=COLUMNS, cost=None)


def train(seed: int, goal: float) -> Run:
    """`steppe train CartPole-v1`, with its default hyper-parameters spelled out in case the defaults change."""
    settings = [f"--set={name}={json.dumps(value)}" for name, value in PPO_BY_DEFAULT.items()]
    command = [str(Path(sys.executable).with_name("steppe")), "train", "CartPole-v1", "-n", "run", *settings]
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


def train_peer(seed: int, goal: float) -> Run:
    """The same in stable-baselines3; a run that misses the goal counts as if it had reached it at its end."""
    arguments = ["--timesteps", str(MOST_TIMESTEPS), "--stop-at-return", str(goal), "--seed", str(seed)]
    agent = PPO_BY_DEFAULT["agent"]
    arguments += [word for name in ("epochs", "minibatches") for word in (f"--{name}", str(agent[name]))]
    started = time.time()
    run = output_of(peer_command("stable_baselines3", "ppo", "--threads", "1", *arguments))
    ended = time.time()
    return run | {"seconds": (run["reached_at"] or ended) - started, "whole_seconds": ended - started}


if __name__ == "__main__":
    sys.exit(main())
