"""What the learner tells every worker to do, in words that JSON can hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

TIMESTEPS = 64
"""How many a batch has where nothing is said; the more, the older is what the learner gets."""
FEWEST_ROWS = 16
"""How many of each environment it has at least: n-step returns cannot look beyond its end."""
LONGEST_EPISODE = 1024
"""Where batches are episodes, how many timesteps they have at most."""


@dataclass(frozen=True)
class Task:
    """How a worker acts, what it sends, and how much at once."""

    policy: dict[str, Any] | None = None
    """The description of the policy to act with (`PolicyDescription.to_json`); None where workers bring their own."""
    preprocessing: dict[str, Any] | None = None
    """What is done to observations before the policy sees them (`Preprocessing.to_json`)."""
    rewards: list[Any] | None = None
    """What is done to each reward, stage by stage."""
    noise: dict[str, Any] | None = None
    """The exploration's spec, where its noise drifts from timestep to timestep."""
    discount: float = 1.0
    """By which rewards are summed up for `running_returns`."""
    is_greedy: bool = False
    """Whether it acts without exploring."""
    keeps: tuple[str, ...] = ()
    """What is sent beside observations, actions, rewards and ends: "outputs", "internals", "running_returns"."""
    least: int = TIMESTEPS
    """How many timesteps of all its environments together a batch has at least; it ends with the next episode."""
    most: int = TIMESTEPS
    """How many it has at most, but for the rounding to whole rows."""
    rows: int | None = None
    """How many timesteps of each environment a batch has, where all must be alike; else `least` and `most` count."""
    evaluation_share: float = 0.0
    """The share of episodes that are played greedily."""
    max_timesteps: int | None = None
    """After how many timesteps an episode is cut; without it the environment's own limit holds, or 1,000."""
    repeat_actions: int = 1
    """How many times the environment is stepped with each action."""
    patience: float = 10.0
    """For how many seconds the learner may leave a batch without an answer."""

    def to_json(self) -> dict[str, Any]:
        """For the wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Task:
        """The inverse of `to_json`; what another version has in addition is left out."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"keeps": tuple(known.get("keeps", ()))})

    def rows_for(self, environments: int) -> tuple[int, int]:
        """(the fewest, the most) timesteps of each of that many environments in a batch."""
        if self.rows is not None:
            return self.rows, self.rows
        most = max(-(-self.most // environments), min(FEWEST_ROWS, self.most))
        return min(-(-self.least // environments), most), most
