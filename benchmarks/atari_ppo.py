"""PPO with 8 environments on Atari, Nature's network, end to end: at least 1.2 times stable-baselines3."""

from __future__ import annotations

import sys

from contestants import ATARI_PPO, SB3, sb3, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe"
PEER = "BreakoutNoFrameskip-v4"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (4_096, 1_024, 1) if quick else (4_096, 1_024, 3)
    contestants = [
        sb3("atari_ppo", timesteps, warm_up, PEER),
        sb3("atari_ppo", timesteps, warm_up, PEER, threads=2),
        steppe(NAME, ATARI_PPO, timesteps, warm_up),
    ]
    runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [at_least(runs, SB3, NAME, "cpu_us", 1.2)], quick)


if __name__ == "__main__":
    sys.exit(main())
