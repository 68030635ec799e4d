"""The reports of a runner, and the interface between the training loop and its engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.errors import EnvironmentFault
from steppe.policies.policy import Policy
from steppe.records.evaluation import FinalEvaluation

if TYPE_CHECKING:
    from steppe.runners.engines.compiled.rollout import Rollout


@dataclass(frozen=True)
class Progress:
    """How far a run is, for displays."""

    phase: str
    """ "compiling", "training", "evaluating", "saving", "exporting" or "filming"."""
    timestep: int = 0
    episode: int = 0
    update: int = 0
    mean_return: float | None = None
    """The mean return of the last 100 episodes."""
    mean_length: float | None = None
    best_return: float | None = None
    steps_per_second: float = 0.0
    """0 while it is unknown: the first chunk includes compilation."""
    seconds: float = 0.0
    """The time spent training, over all starts of this run."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    """All notices since the start."""
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
    """The evaluation of the saved policies, if there was one."""


@dataclass(frozen=True)
class ChunkLimits:
    """Limits that end a chunk early, checked after every iteration."""

    episodes: int | None = None
    """How many more episodes may be finished."""
    stop_at_return: float | None = None
    """Stop when the mean return of the last 100 episodes is at least this."""


@dataclass(frozen=True)
class Chunk:
    """The results of some iterations: each collects up to horizon x num_envs timesteps and learns from them."""

    iterations: int
    columns: dict[str, np.ndarray]
    """One number per iteration: timesteps, episodes, updates, mean_return, mean_length, and the agent's metrics."""
    has_reached_return: bool
    is_healthy: bool
    """Whether every loss was a finite number."""
    fault: EnvironmentFault | None = None
    """The failure of an environment after these iterations, which are complete."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Current values such as the number of workers, reported even if there was no iteration."""


class Engine(ABC):
    """Collects timesteps and learns from them. The attributes with a value are defaults that a run mode may change."""

    agent: Any
    """The agent; None for a policy of the user's own."""
    timesteps_per_iteration: int
    """The most timesteps of one iteration."""
    most_iterations: int = 1024
    """The most iterations of one chunk."""
    least_iterations: int = 1
    """The fewest iterations to ask for: workers that take iterations side by side need one each."""
    notices: tuple[str, ...] = ()
    """Notices about the environments."""
    exact_resume: bool = False
    """Whether a snapshot holds the environments too."""
    resume_notice: str = (
        "the environments start new episodes, since a gymnasium environment's state cannot be saved; everything else "
        "goes on exactly"
    )
    """The notice when a run is resumed and `exact_resume` is false."""
    settings_per_worker: tuple[str, ...] = ()
    """Settings of the agent that are divided among the workers, so that they differ for another number of workers."""
    shards: int = 1
    """The number of host devices that the environments are spread over."""
    rollout: Rollout | None = None
    """Collects in compiled environments; None if the environments are on the host."""
    envs: Any = None
    """The host environments of this process, if there are any."""

    @abstractmethod
    def begin(self, seed: int) -> None:
        """Starts with fresh parameters and fresh episodes."""

    @abstractmethod
    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Starts from a snapshot."""

    @abstractmethod
    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything needed to continue from here."""

    @abstractmethod
    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """Runs at most `iterations`, from `timestep` on."""

    @abstractmethod
    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """(mean return, mean length) of episodes played beside the training, which is not disturbed."""

    @abstractmethod
    def policy(self, timestep: int) -> Policy:
        """The policy as of the last update."""

    @abstractmethod
    def close(self) -> None:
        """Ends environments, workers and their processes; may be called again."""

    def paused(self) -> AbstractContextManager[None]:
        """Surrounds work other than training, such as saving: workers that wait for the engine do not time out."""
        return nullcontext()

    def finish(self) -> bool:
        """Ends the training before the last checkpoint; True if that changes counts of the latest one."""
        return False
