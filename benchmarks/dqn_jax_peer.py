"""DQN on CartPole-v1, 4 environments, compiled: at most 1/1.5 of rejax's CPU time a step."""

from __future__ import annotations

import sys

from contestants import DQN_JAX, jax_dqn, rejax_dqn, steppe
from interleave import at_least, conclude, interleave, is_quick

NAME = "Steppe, compiled"
REJAX = "rejax, 1 thread"
"""With one thread both peers take the least CPU time; the rows with two threads show their shortest wall time. There is
no bar against the JAX loop: see decision 81."""


def main() -> int:
    quick = is_quick(__doc__)
    timesteps, warm_up, rounds = (40_000, 10_000, 1) if quick else (200_000, 10_000, 5)
    contestants = [
        rejax_dqn(timesteps, 1),
        rejax_dqn(timesteps, 2),
        jax_dqn(timesteps, 1),
        jax_dqn(timesteps, 2),
        steppe(NAME, DQN_JAX, timesteps, warm_up),
    ]
    runs = interleave(contestants, rounds)
    return conclude(str(__doc__), runs, [at_least(runs, REJAX, NAME, "cpu_us", 1.5)], quick)


if __name__ == "__main__":
    sys.exit(main())
