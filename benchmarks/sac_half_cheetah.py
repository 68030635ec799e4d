"""SAC on HalfCheetah-v5, 256-256, batch 256, an update a step: at most 1/1.8 of the CPU time and 1/1.6 of the wall
time of stable-baselines3 with one thread, half the CPU time of it as it comes; ahead of it and of sbx in both times."""

from __future__ import annotations

import sys

from contestants import ONE_CORE, SAC, SB3, SB3_AS_IT_COMES, sb3, sbx, steppe
from interleave import ahead, at_least, conclude, interleave, is_quick

NAME = "Steppe"
ENVIRONMENT = "HalfCheetah-v5"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (2_000, 1_200, 1) if quick else (5_200, 1_200, 3)
    contestants = [
        sb3("sac", timesteps, warm_up, ENVIRONMENT),
        sb3("sac", timesteps, warm_up, ENVIRONMENT, threads=0),
        sbx("sac", timesteps, warm_up, ENVIRONMENT),
        steppe(NAME, SAC, timesteps, warm_up, environment=ENVIRONMENT),
        steppe(f"{NAME}, 1 core", SAC, timesteps, warm_up, ONE_CORE, environment=ENVIRONMENT),
    ]
    runs = interleave(contestants, rounds)
    bars = [at_least(runs, SB3, NAME, cost, factor) for cost, factor in (("cpu_us", 1.8), ("wall_us", 1.6))]
    bars += [at_least(runs, SB3_AS_IT_COMES, NAME, cost, factor) for cost, factor in (("cpu_us", 2), ("wall_us", 1))]
    bars += ahead(runs, "sbx", NAME)
    return conclude(str(__doc__), runs, bars, quick)


if __name__ == "__main__":
    sys.exit(main())
