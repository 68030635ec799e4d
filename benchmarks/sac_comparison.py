"""The comparison of SAC with stable-baselines3 and sbx that `sac_half_cheetah.py` and `sac_pendulum.py` make."""

from __future__ import annotations

from contestants import ONE_CORE, SAC, SB3, SB3_AS_IT_COMES, sb3, sbx, steppe
from interleave import ahead, at_least, conclude, interleave, is_quick


def compare_sac(claim: str, name: str, environment: str, backends: dict[str, str] | None = None) -> int:
    """Runs the comparison and returns the exit code.

    `name` is Steppe's row in the table; `backends` adds rows of Steppe by their names, each with another backend.
    """
    quick = is_quick(claim)
    timesteps, warm_up, rounds = (2_000, 1_200, 1) if quick else (5_200, 1_200, 3)
    contestants = [
        sb3("sac", timesteps, warm_up, environment),
        sb3("sac", timesteps, warm_up, environment, threads=0),
        sbx("sac", timesteps, warm_up, environment),
        steppe(name, SAC, timesteps, warm_up, environment=environment),
        steppe(f"{name}, 1 core", SAC, timesteps, warm_up, ONE_CORE, environment=environment),
    ]
    for other, backend in (backends or {}).items():
        contestants.append(steppe(other, SAC, timesteps, warm_up, environment={"id": environment, "backend": backend}))
    runs = interleave(contestants, rounds)
    factors = {
        (SB3, "cpu_us"): 1.8,
        (SB3, "wall_us"): 1.6,
        (SB3_AS_IT_COMES, "cpu_us"): 2,
        (SB3_AS_IT_COMES, "wall_us"): 1,
    }
    bars = [at_least(runs, reference, name, cost, factor) for (reference, cost), factor in factors.items()]
    return conclude(claim, runs, bars + ahead(runs, "sbx", name), quick)
