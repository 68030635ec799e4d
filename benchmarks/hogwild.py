"""A2C in threads (Hogwild) on CartPole-v1, 16 environments x 5 steps a worker: 2 threads at least 1.8 times the
updates/s of one, and at least 15 times PyTorch's share_memory Hogwild with 2 processes."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from contestants import HERE, peer_command, steppe
from interleave import COSTS, Contestant, Runs, Verdict, at_least, conclude, interleave, is_quick, output_of, ratios

TORCH, ONE, TWO = "PyTorch Hogwild, 2 processes", "Steppe, 1 thread", "Steppe, 2 threads"
ENVS, HORIZON = 16, 5
A2C = {
    "agent": {"type": "a3c", "horizon": HORIZON},
    "network": [{"type": "dense", "size": 64, "activation": "tanh"}] * 2,
    "num_envs": ENVS,
    "run_mode": "multi-threaded",
}
"""The rest is the agent's default, and the peer's: RMSProp 7e-4, discount 0.99, entropy 0.01, value 0.5, norm 0.5."""


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (400_000, 200_000, 1) if quick else (4_000_000, 400_000, 5)
    contestants = [
        Contestant(TORCH, lambda seed: torch_run(seed, timesteps // 20, warm_up // 20)),
        steppe(ONE, A2C, timesteps, warm_up, num_workers=1),
        steppe(TWO, A2C, timesteps, warm_up, num_workers=2),
    ]
    runs = interleave(contestants, rounds)
    for own in runs.values():
        for run in own:
            run["updates_per_second"] = run["steps_per_second"] / (ENVS * HORIZON)
    verdicts = [scaling(runs), at_least(runs, TORCH, TWO, "wall_us", 15)]
    return conclude(str(__doc__), runs, verdicts, quick, COSTS | {"updates_per_second": "updates/s"}, "wall_us")


def torch_run(seed: int, timesteps: int, warm_up: int) -> dict[str, Any]:
    """The peer is slower, so fewer timesteps tell as much."""
    numbers = {"envs": ENVS, "horizon": HORIZON, "timesteps": timesteps, "warm-up": warm_up, "seed": seed}
    words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    return output_of([peer_command()[0], str(HERE / "peers" / "hogwild_torch.py"), "--workers", "2", *words])


def scaling(runs: Runs) -> Verdict:
    """How many times the updates/s of one thread two have, on the median of the rounds."""
    measured = ratios(runs, ONE, TWO, "wall_us")
    told = f"{median(measured):.2f} times ({min(measured):.2f} to {max(measured):.2f})"
    return Verdict(f"{TWO}: at least 1.8 times the updates/s of one", told, median(measured) >= 1.8)


if __name__ == "__main__":
    sys.exit(main())
