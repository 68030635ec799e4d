"""PPO on CartPole-v1, 8 environments, compiled: at most 1/18 of stable-baselines3's CPU time a step."""

from __future__ import annotations

import sys

from contestants import PPO, SB3, SB3_ONE_THREAD, peers, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe, compiled"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (25_600, 10_240, 1) if quick else (102_400, 10_240, 5)
    runs = interleave([*peers("ppo", timesteps, warm_up), steppe(NAME, PPO, timesteps, warm_up)], rounds)
    verdicts = [at_least(runs, reference, NAME, "cpu_us", 18) for reference in (SB3, SB3_ONE_THREAD)]
    return conclude(str(__doc__), runs, verdicts, quick)


if __name__ == "__main__":
    sys.exit(main())
