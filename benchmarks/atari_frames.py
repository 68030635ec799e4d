"""Atari frames/s: Steppe reaches at least 90% of ale-py's own vector environment."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from interleave import Contestant, Verdict, conclude, interleave, is_quick, output_of, ratios, spread

ALE, NAME = "ale-py's vector environment", "Steppe"
COLUMNS = {"frames_per_second": "frames/s", "cpu_us": "CPU us/frame", "wall_us": "wall us/frame"}


def main() -> int:
    quick = is_quick(__doc__)
    steps, rounds = (300, 1) if quick else (3_000, 7)
    contestants = [Contestant(name, lambda seed, name=name: play(name, steps, seed)) for name in (ALE, NAME)]
    runs = interleave(contestants, rounds)
    measured = ratios(runs, ALE, NAME, "wall_us")
    claim = f"{NAME}: at least 0.9 times the frames/s of {ALE}"
    verdict = Verdict(claim, spread(measured, "{:.2f}"), median(measured) >= 0.9)
    return conclude(str(__doc__), runs, [verdict], quick, columns=COLUMNS, cost="wall_us")


def play(name: str, steps: int, seed: int) -> dict[str, float]:
    library = "steppe" if name == NAME else "ale"
    script = Path(__file__).with_name("step_atari.py")
    return output_of([sys.executable, str(script), library, "--steps", str(steps), "--seed", str(seed)])


if __name__ == "__main__":
    sys.exit(main())
