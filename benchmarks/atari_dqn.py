"""DQN, a batch of 32 every 4 steps on Atari, the Nature network, end to end: at most 1/1.2 of stable-baselines3's CPU
time with one thread, and ahead of it with one and two threads in wall time.

Neither side writes a checkpoint inside the measured window: one with a memory of images has 590 MB, is due every ten
minutes by default, and would take most of so short a window.
"""

from __future__ import annotations

import sys

from contestants import ATARI_DQN, SB3, sb3, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe"
PEER = "BreakoutNoFrameskip-v4"


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (2_000, 1_200, 1) if quick else (3_200, 1_200, 3)
    peers = [sb3("atari_dqn", timesteps, warm_up, PEER, threads) for threads in (1, 2)]
    contestants = [
        *peers,
        steppe(NAME, ATARI_DQN, timesteps, warm_up, saver_frequency=f"{2 * timesteps}t"),
    ]
    runs = interleave(contestants, rounds)
    bars = [at_least(runs, SB3, NAME, "cpu_us", 1.2)]
    bars += [at_least(runs, peer.name, NAME, "wall_us", 1) for peer in peers]
    return conclude(str(__doc__), runs, bars, quick)


if __name__ == "__main__":
    sys.exit(main())
