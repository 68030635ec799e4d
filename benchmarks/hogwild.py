"""A2C in threads (Hogwild) on CartPole-v1, 8 environments x 32 timesteps a worker: 2 threads at least 1.8 times the
updates/s of one, and at least 15 times PyTorch's share_memory Hogwild with 2 processes, both as its users write it and
tuned. The table also shows 16 environments x 5 timesteps."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from contestants import dense, peer_command, steppe
from interleave import (
    COSTS,
    Contestant,
    Runs,
    Verdict,
    at_least,
    conclude,
    interleave,
    is_quick,
    output_of,
    ratios,
    spread,
)

TORCH, TUNED = "PyTorch Hogwild, 2 processes", "PyTorch Hogwild, 2 processes, tuned"
ONE, TWO = "Steppe, 1 thread", "Steppe, 2 threads"
SHAPES = {"": (8, 32), ", 16 x 5": (16, 5)}
"""Suffix of the rows' names -> (environments, horizon) of a worker. The bars are for the first shape; the second has
the A3C paper's horizon, at which every library spends more time on each update."""

A3C = {
    "type": "a3c",
    "optimizer": "rmsprop",
    "learning_rate": 7e-4,
    "discount": 0.99,
    "gae_lambda": 1.0,
    "entropy_coefficient": 0.01,
    "value_coefficient": 0.5,
    "normalize_advantages": False,
    "max_gradient_norm": 0.5,
}
"""The PyTorch peer has the same settings."""


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (400_000, 200_000, 1) if quick else (4_000_000, 400_000, 5)
    contestants = [each for suffix in SHAPES for each in contestants_of(suffix, timesteps, warm_up)]
    runs = interleave(contestants, rounds)
    verdicts = [scaling(runs), *(at_least(runs, peer, TWO, "wall_us", 15) for peer in (TORCH, TUNED))]
    return conclude(str(__doc__), runs, verdicts, quick, COSTS | {"updates_per_second": "updates/s"}, "wall_us")


def contestants_of(suffix: str, timesteps: int, warm_up: int) -> list[Contestant]:
    envs, horizon = SHAPES[suffix]
    if suffix:
        timesteps, warm_up = timesteps // 4, warm_up // 4  # no bar depends on this shape
    settings = {
        "agent": A3C | {"horizon": horizon},
        "network": dense(64, "tanh"),
        "num_envs": envs,
        "run_mode": "multi-threaded",
    }
    contestants = [
        # The peer is slower, so fewer timesteps are enough to measure it.
        Contestant(TORCH, lambda seed: torch_run(seed, envs, horizon, timesteps // 20, warm_up // 20)),
        Contestant(TUNED, lambda seed: torch_run(seed, envs, horizon, timesteps // 20, warm_up // 20, "--tuned")),
        steppe(ONE, settings, timesteps, warm_up, num_workers=1),
        steppe(TWO, settings, timesteps, warm_up, num_workers=2),
    ]
    return [with_updates(each, suffix, envs * horizon) for each in contestants]


def torch_run(seed: int, envs: int, horizon: int, timesteps: int, warm_up: int, *flags: str) -> dict[str, Any]:
    numbers = {"envs": envs, "horizon": horizon, "timesteps": timesteps, "warm-up": warm_up, "seed": seed}
    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    return output_of(peer_command("--workers", "2", *options, *flags, script="peers/hogwild_torch.py"))


def with_updates(contestant: Contestant, suffix: str, timesteps_per_update: int) -> Contestant:
    """The same contestant with a suffix to its name, whose runs report updates/s too."""

    def run(seed: int) -> dict[str, Any]:
        measured = contestant.run(seed)
        return measured | {"updates_per_second": measured["steps_per_second"] / timesteps_per_update}

    return Contestant(contestant.name + suffix, run)


def scaling(runs: Runs) -> Verdict:
    """Whether two threads have 1.8 times the updates/s of one, by the median over the rounds."""
    measured = ratios(runs, ONE, TWO, "wall_us")
    claim = f"{TWO}: at least 1.8 times the updates/s of one"
    return Verdict(claim, spread(measured, "{:.2f}", " times"), median(measured) >= 1.8)


if __name__ == "__main__":
    sys.exit(main())
