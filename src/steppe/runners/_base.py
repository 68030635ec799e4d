"""What a runner tells the outside, and what the training loop asks of the engine that does the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from steppe.errors import EnvironmentFault
from steppe.policies.policy import Policy
from steppe.records.evaluation import FinalEvaluation


@dataclass(frozen=True)
class Progress:
    """Where a run stands: for displays."""

    phase: str
    """ "compiling", "training", "evaluating", "saving", "exporting" or "filming"."""
    timestep: int = 0
    episode: int = 0
    update: int = 0
    mean_return: float | None = None
    """Of the last 100 episodes."""
    mean_length: float | None = None
    best_return: float | None = None
    steps_per_second: float = 0.0
    """0 while it is not known: the first chunk includes compilation."""
    seconds: float = 0.0
    """Spent training, over all starts of this run."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    """What a user should know, since the start."""
    effective: Mapping[str, Any] | None = None
    """The run's effective settings (`steppe.runners.effective_settings`), set once, when everything is built."""
    evaluation: Mapping[str, Any] | None = None
    """The newest evaluation on the way: mean, episodes and timestep."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    state: str
    """ "completed", "paused" or "stopped"."""
    reason: str
    timestep: int
    episode: int
    update: int
    mean_return: float | None
    seconds: float
    notices: list[str]
    evaluation: FinalEvaluation | None = None
    """Of the policies that it left, where it was played."""


@dataclass(frozen=True)
class ChunkLimits:
    """What ends a chunk early, checked after every iteration."""

    episodes: int | None = None
    """How many more episodes may be finished."""
    stop_at_return: float | None = None
    """The mean of the last 100 episodes that is enough."""


@dataclass(frozen=True)
class Chunk:
    """What some iterations brought. An iteration collects up to horizon x num_envs timesteps and learns from them."""

    iterations: int
    columns: dict[str, np.ndarray]
    """One number per iteration: timesteps, episodes, updates, mean_return, mean_length, and the agent's metrics."""
    has_reached_return: bool
    is_healthy: bool
    """Whether every loss was a finite number."""
    fault: EnvironmentFault | None = None
    """What went wrong in an environment after these iterations, which are whole."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What holds now, also where no iteration tells it: how many workers there are, and the like."""


class Engine(Protocol):
    """Collects and learns; one for compiled and one for host environments."""

    agent: Any
    timesteps_per_iteration: int
    """At most."""
    most_iterations: int
    """The most iterations of one chunk."""
    notices: tuple[str, ...]
    """What a user should know of the environments."""
    exact_resume: bool
    """Whether a snapshot holds the environments too."""

    def begin(self, seed: int) -> None:
        """Starts from nothing."""

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Starts from a snapshot."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything needed to go on from here."""

    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """Runs at most `iterations`, from `timestep` on."""

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """(mean return, mean length) of episodes played beside the training, which is not disturbed."""

    def policy(self, timestep: int) -> Policy:
        """What has been learned so far."""

    def close(self) -> None:
        """Ends what was started."""
