"""PPO with 8 environments on Atari, the Nature network, end to end: at most 1/1.2 of the CPU time of stable-baselines3
with one and with two threads; ahead of it and of a PyTorch loop over C++ environments in wall time."""

from __future__ import annotations

import sys

from contestants import ATARI_PPO, ONE_CORE, sb3, steppe, torch_loop
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe"
PEER = "BreakoutNoFrameskip-v4"
THREADS = (1, 2)
"""torch's threads: with one it takes less CPU time, with two less wall time."""


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (4_096, 1_024, 1) if quick else (4_096, 1_024, 3)
    baselines = [sb3("atari_ppo", timesteps, warm_up, PEER, threads) for threads in THREADS]
    loops = [torch_loop(timesteps, warm_up, threads) for threads in THREADS]
    ours = [
        steppe(NAME, ATARI_PPO, timesteps, warm_up),
        steppe(f"{NAME}, 1 core", ATARI_PPO, timesteps, warm_up, ONE_CORE),
    ]
    runs = interleave([*baselines, *loops, *ours], rounds)
    bars = [at_least(runs, peer.name, NAME, "cpu_us", 1.2) for peer in baselines]
    bars += [at_least(runs, peer.name, NAME, "wall_us", 1) for peer in (*baselines, *loops)]
    return conclude(str(__doc__), runs, bars, quick)


if __name__ == "__main__":
    sys.exit(main())
