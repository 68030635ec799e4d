"""PPO on CartPole-v1, 8 environments, compiled: at most 1/18 of stable-baselines3's CPU time a step."""

from __future__ import annotations

import sys

from contestants import PPO, SB3, sb3, sbx, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe, compiled"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (25_600, 10_240, 1) if quick else (102_400, 10_240, 3)
    contestants = [
        sb3("ppo", timesteps, warm_up),
        sbx("ppo", timesteps, warm_up),
        steppe(NAME, PPO, timesteps, warm_up),
    ]
    runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [at_least(runs, SB3, NAME, "cpu_us", 18)], quick)


if __name__ == "__main__":
    sys.exit(main())
