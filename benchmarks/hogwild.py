"""A2C in threads (Hogwild) on CartPole-v1, 8 environments x 32 timesteps a worker: 2 threads at least 1.8 times the
updates/s of one, and at least 15 times PyTorch's share_memory Hogwild with 2 processes, as its users write it and with
all that makes it faster. Also shown: 16 x 5."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from contestants import HERE, peer_command, steppe
from interleave import COSTS, Contestant, Runs, Verdict, at_least, conclude, interleave, is_quick, output_of, ratios

TORCH, TUNED = "PyTorch Hogwild, 2 processes", "PyTorch Hogwild, 2 processes, tuned"
ONE, TWO = "Steppe, 1 thread", "Steppe, 2 threads"
SHAPES = {"": (8, 32), ", 16 x 5": (16, 5)}
"""(environments, horizon) of a worker, by what is added to the names. With the first PyTorch and Steppe's threads do
what the bars were set by; the second is the paper's horizon, at which everybody spends more on each update."""

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
"""The peer's settings too."""


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
        timesteps, warm_up = timesteps // 4, warm_up // 4  # no bar depends on it
    settings = {
        "agent": A3C | {"horizon": horizon},
        "network": [{"type": "dense", "size": 64, "activation": "tanh"}] * 2,
        "num_envs": envs,
        "run_mode": "multi-threaded",
    }
    contestants = [
        # The peer is slower, so fewer timesteps tell as much.
        Contestant(TORCH, lambda seed: torch_run(seed, envs, horizon, timesteps // 20, warm_up // 20)),
        Contestant(TUNED, lambda seed: torch_run(seed, envs, horizon, timesteps // 20, warm_up // 20, "--tuned")),
        steppe(ONE, settings, timesteps, warm_up, num_workers=1),
        steppe(TWO, settings, timesteps, warm_up, num_workers=2),
    ]
    return [with_updates(each, suffix, envs * horizon) for each in contestants]


def torch_run(seed: int, envs: int, horizon: int, timesteps: int, warm_up: int, *flags: str) -> dict[str, Any]:
    numbers = {"envs": envs, "horizon": horizon, "timesteps": timesteps, "warm-up": warm_up, "seed": seed}
    words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    return output_of([peer_command()[0], str(HERE / "peers" / "hogwild_torch.py"), "--workers", "2", *words, *flags])


def with_updates(contestant: Contestant, suffix: str, timesteps_per_update: int) -> Contestant:
    """Under a longer name, and with its updates/s."""

    def run(seed: int) -> dict[str, Any]:
        measured = contestant.run(seed)
        return measured | {"updates_per_second": measured["steps_per_second"] / timesteps_per_update}

    return Contestant(contestant.name + suffix, run)


def scaling(runs: Runs) -> Verdict:
    """How many times the updates/s of one thread two have, on the median of the rounds."""
    measured = ratios(runs, ONE, TWO, "wall_us")
    told = f"{median(measured):.2f} times ({min(measured):.2f} to {max(measured):.2f})"
    return Verdict(f"{TWO}: at least 1.8 times the updates/s of one", told, median(measured) >= 1.8)


if __name__ == "__main__":
    sys.exit(main())
