"""a2c, trpo, qr_dqn, ddpg and td3: none takes more CPU time or wall time a step than the same agent of
stable-baselines3 or sb3-contrib with one thread."""

from __future__ import annotations

import sys

from contestants import OTHERS, SB3, sb3, steppe
from interleave import ahead, conclude, interleave, is_quick

TIMESTEPS = {"a2c": 20_000, "trpo": 20_480, "qr_dqn": 8_000, "ddpg": 2_500, "td3": 2_500}
"""Enough for a few seconds of the slower library."""
TIMES_MORE = {"a2c": 20, "trpo": 4, "qr_dqn": 4}
"""Steppe runs so many times more timesteps of agents that are fast: its loop reports only every tenth of a second."""


def main() -> int:
    quick, missed = is_quick(__doc__), 0
    for name, settings in OTHERS.items():
        timesteps = TIMESTEPS[name] // (2 if quick else 1)
        warm_up, more = timesteps // 3, TIMES_MORE.get(name, 1)
        environment = settings.get("environment", "CartPole-v1")
        contestants = [
            sb3(name, timesteps, warm_up, environment),
            steppe(f"Steppe, {name}", settings, timesteps * more, warm_up * more),
        ]
        runs = interleave(contestants, 1 if quick else 3)
        bars = ahead(runs, SB3, f"Steppe, {name}")
        missed |= conclude(f"{__doc__} Here: {name}.", runs, bars, quick, name=f"other_agents_{name}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
