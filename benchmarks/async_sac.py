"""SAC on HalfCheetah-v5 in run mode async, 8 workers, an update a timestep: its workers step beside the learner, so
that it is ahead of run mode single in wall time."""

from __future__ import annotations

import sys

from contestants import SAC, TWO_THREADS, steppe
from interleave import at_least, conclude, interleave, is_quick

ENVIRONMENT = "HalfCheetah-v5"
SINGLE, NAME = "Steppe, single", "Steppe, async, 8 workers"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (2_500, 1_500, 1) if quick else (4_000, 1_500, 3)
    crew = {"run_mode": "async", "num_workers": 8}
    contestants = [
        steppe(SINGLE, SAC, timesteps, warm_up, environment=ENVIRONMENT),
        steppe(NAME, SAC, timesteps, warm_up, environment=ENVIRONMENT, **crew),
        steppe(f"{NAME}, NPROC=2", SAC, timesteps, warm_up, TWO_THREADS, environment=ENVIRONMENT, **crew),
    ]
    runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [at_least(runs, SINGLE, NAME, "wall_us", 1)], quick, cost="wall_us")


if __name__ == "__main__":
    sys.exit(main())
