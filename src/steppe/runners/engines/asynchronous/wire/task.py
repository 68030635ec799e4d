"""The task that the learner sends to every worker, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

TIMESTEPS = 64
"""The default size of a batch: larger ones reach the learner later."""
FEWEST_ROWS = 16
"""The fewest timesteps of each environment: n-step returns end with the batch."""
LONGEST_EPISODE = 1024
"""The most timesteps of a batch that is an episode."""


@dataclass(frozen=True)
class Task:
    """How a worker acts, and the contents and sizes of its batches."""

    policy: dict[str, Any] | None = None
    """The policy to act with (`PolicyDescription.to_json`); None if workers have their own."""
    preprocessing: dict[str, Any] | None = None
    """The preprocessing of observations (`Preprocessing.to_json`)."""
    rewards: list[Any] | None = None
    """The stages of the preprocessing of rewards."""
    noise: dict[str, Any] | None = None
    """The exploration's spec, if its noise is correlated over time."""
    discount: float = 1.0
    """The discount of `running_returns`."""
    is_greedy: bool = False
    """Whether it acts without exploring."""
    keeps: tuple[str, ...] = ()
    """Which further arrays are sent: "outputs", "internals", "running_returns"."""
    least: int = TIMESTEPS
    """The fewest timesteps of a batch, of all environments together; it ends with the next episode."""
    most: int = TIMESTEPS
    """The most timesteps of a batch, rounded to whole rows."""
    rows: int | None = None
    """The exact number of timesteps of each environment; None if `least` and `most` count."""
    evaluation_share: float = 0.0
    """The share of episodes that are played greedily."""
    max_timesteps: int | None = None
    """The time limit of an episode; None for the environment's own limit, or 1,000."""
    repeat_actions: int = 1
    """How many times the environment is stepped with each action."""
    patience: float = 10.0
    """For how many seconds the learner may leave a batch without an answer."""

    def to_json(self) -> dict[str, Any]:
        """The task as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Task:
        """The inverse of `to_json`; unknown fields of another version are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"keeps": tuple(known.get("keeps", ()))})

    def rows_for(self, environments: int) -> tuple[int, int]:
        """(the fewest, the most) timesteps of each of that many environments in a batch."""
        if self.rows is not None:
            return self.rows, self.rows
        most = max(-(-self.most // environments), min(FEWEST_ROWS, self.most))
        return min(-(-self.least // environments), most), most
