"""SAC on HalfCheetah-v5, 256-256, batch 256, an update a step: at most 1/1.8 of the CPU time and 1/1.6 of the wall
time of stable-baselines3 with one thread; half its CPU time with default threads; ahead of it and of sbx in both."""

from __future__ import annotations

import sys

from sac_comparison import compare_sac

if __name__ == "__main__":
    sys.exit(compare_sac(str(__doc__), "Steppe", "HalfCheetah-v5"))
