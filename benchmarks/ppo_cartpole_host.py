"""PPO on gymnasium's own CartPole-v1, 8 environments: at most 1/4.5 of stable-baselines3's CPU time a step."""

from __future__ import annotations

import sys

from contestants import PPO, SB3, sb3, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe, gymnasium"
GYMNASIUM = {"id": "CartPole-v1", "backend": "gymnasium"}


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (25_600, 10_240, 1) if quick else (102_400, 10_240, 3)
    contestants = [
        sb3("ppo", timesteps, warm_up),
        steppe(NAME, PPO, timesteps, warm_up, environment=GYMNASIUM),
    ]
    runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [at_least(runs, SB3, NAME, "cpu_us", 4.5)], quick)


if __name__ == "__main__":
    sys.exit(main())
