"""PPO on CartPole-v1 with 1,024 environments on all cores: at least 35 times the steps/s of stable-baselines3's 8."""

from __future__ import annotations

import sys

from contestants import PPO, SB3, sb3, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe, 1,024 environments"
ITERATION = 1024 * 128
"""Timesteps between two updates."""


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (25_600, 10_240, 1) if quick else (102_400, 10_240, 3)
    iterations = 8 if quick else 40
    many = steppe(NAME, PPO, iterations * ITERATION, ITERATION, num_envs=1024)
    runs = interleave([sb3("ppo", timesteps, warm_up), many], rounds)
    return conclude(str(__doc__), runs, [at_least(runs, SB3, NAME, "wall_us", 35)], quick, cost="wall_us")


if __name__ == "__main__":
    sys.exit(main())
