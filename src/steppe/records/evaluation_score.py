"""A run's newest evaluation, as in status.json."""

from __future__ import annotations

from typing import Any, NamedTuple

LARGEST = 1e300


class Score(NamedTuple):
    """The newest evaluation of a run: one during training, or the final one."""

    mean: float
    """The mean return, at the end of a run that of the policy in policy/."""
    episodes: int
    timestep: int
    interval: tuple[float, float] | None = None
    """The 95% interval of the mean; final evaluations only."""
    policy: str | None = None
    """ "last" or "best"; final evaluations only."""
    last: float | None = None
    best: float | None = None

    @classmethod
    def read(cls, data: Any) -> Score | None:
        """Parses the entry; None if there is none that this version understands."""
        if not isinstance(data, dict):
            return None
        mean, last, best = (finite_number(data.get(name)) for name in ("mean", "last", "best"))
        episodes, timestep = (finite_number(data.get(name)) for name in ("episodes", "timestep"))
        if mean is None or episodes is None or timestep is None:
            return None
        interval = data.get("interval")
        bounds = [finite_number(each) for each in interval] if isinstance(interval, list) else []
        low, high = bounds if len(bounds) == 2 else (None, None)
        return cls(
            mean,
            int(episodes),
            int(timestep),
            None if low is None or high is None else (low, high),
            data["policy"] if data.get("policy") in ("last", "best") else None,
            last,
            best,
        )


def finite_number(value: Any) -> float | None:
    """The value if it `is_finite`, else None."""
    return value if is_finite(value) else None


def is_finite(value: Any) -> bool:
    """Whether the value is a finite number of sensible size; JSON such as 1e999 is an infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
