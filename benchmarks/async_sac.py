"""SAC on HalfCheetah-v5 in run mode async, 8 workers, an update a timestep: the learner uses the cores that its workers
leave free, so it takes less wall time than on one core."""

from __future__ import annotations

import sys

from contestants import ONE_CORE, SAC, steppe
from interleave import at_least, conclude, interleave, is_quick

ENVIRONMENT = "HalfCheetah-v5"
NAME = "Steppe, async, 8 workers"
NAME_ON_ONE_CORE = f"{NAME}, 1 core"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (2_500, 1_500, 1) if quick else (4_000, 1_500, 5)
    eight_workers = {"run_mode": "async", "num_workers": 8}
    contestants = [
        steppe(NAME_ON_ONE_CORE, SAC, timesteps, warm_up, ONE_CORE, environment=ENVIRONMENT, **eight_workers),
        steppe(NAME, SAC, timesteps, warm_up, environment=ENVIRONMENT, **eight_workers),
        steppe("Steppe, single", SAC, timesteps, warm_up, environment=ENVIRONMENT),
    ]
    runs = interleave(contestants, rounds)
    verdicts = [at_least(runs, NAME_ON_ONE_CORE, NAME, "wall_us", 1)]
    return conclude(str(__doc__), runs, verdicts, quick, cost="wall_us")


if __name__ == "__main__":
    sys.exit(main())
