"""SAC on HalfCheetah-v5, 256-256, batch 256, an update a step: at most 1/2 of stable-baselines3's CPU, below sbx's."""

from __future__ import annotations

import sys

from contestants import SAC, SB3, SB3_AS_IT_COMES, sb3, sbx, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe"
ENVIRONMENT = "HalfCheetah-v5"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (2_000, 1_200, 1) if quick else (2_700, 1_200, 3)
    contestants = [
        sb3("sac", timesteps, warm_up, ENVIRONMENT),
        sb3("sac", timesteps, warm_up, ENVIRONMENT, threads=0),
        sbx("sac", timesteps, warm_up, ENVIRONMENT),
        steppe(NAME, SAC, timesteps, warm_up, environment=ENVIRONMENT),
    ]
    runs = interleave(contestants, rounds)
    bars = [at_least(runs, peer, NAME, "cpu_us", 2) for peer in (SB3, SB3_AS_IT_COMES)]
    bars.append(at_least(runs, "sbx", NAME, "cpu_us", 1))
    return conclude(str(__doc__), runs, bars, quick)


if __name__ == "__main__":
    sys.exit(main())
