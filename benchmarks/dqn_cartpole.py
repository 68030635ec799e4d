"""DQN on CartPole-v1, batch 128, a gradient step every 4 steps: at most 1/10 of stable-baselines3's CPU time a step."""

from __future__ import annotations

import sys

from contestants import DQN, SB3, sb3, sbx, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe, compiled"
GYMNASIUM = {"id": "CartPole-v1", "backend": "gymnasium"}


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (12_000, 4_000, 1) if quick else (40_000, 4_000, 5)
    contestants = [
        sb3("dqn", timesteps, warm_up),
        sbx("dqn", timesteps, warm_up),
        steppe(NAME, DQN, timesteps, warm_up),
        steppe("Steppe, gymnasium", DQN, timesteps, warm_up, environment=GYMNASIUM),
    ]
    runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [at_least(runs, SB3, NAME, "cpu_us", 10)], quick)


if __name__ == "__main__":
    sys.exit(main())
