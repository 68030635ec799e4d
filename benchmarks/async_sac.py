"""SAC on HalfCheetah-v5 in run mode async, 8 workers, an update a timestep: the learner uses the cores that its workers
leave free, so that it takes less wall time than on one core."""

from __future__ import annotations

import sys

from contestants import ONE_CORE, SAC, steppe
from interleave import at_least, conclude, interleave, is_quick

ENVIRONMENT = "HalfCheetah-v5"
NAME = "Steppe, async, 8 workers"
ALONE = f"{NAME}, 1 core"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (2_500, 1_500, 1) if quick else (4_000, 1_500, 5)
    crew = {"run_mode": "async", "num_workers": 8}
    contestants = [
        steppe(ALONE, SAC, timesteps, warm_up, ONE_CORE, environment=ENVIRONMENT, **crew),
        steppe(NAME, SAC, timesteps, warm_up, environment=ENVIRONMENT, **crew),
        steppe("Steppe, single", SAC, timesteps, warm_up, environment=ENVIRONMENT),
    ]
    runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [at_least(runs, ALONE, NAME, "wall_us", 1)], quick, cost="wall_us")


if __name__ == "__main__":
    sys.exit(main())
