"""The messages between the driver and its workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker."""

    number: int
    """Seeds its randomness: never used twice in a run."""
    seed: int
    spec: dict[str, Any]
    """The experiment, as JSON."""
    borders: Sequence[int]
    """The starts of the servers' shards, and the end of the last one."""
    rollouts: int
    """The rollouts of one push."""
    overlaps: bool
    """Whether it collects while a push is under way."""
    timeout: float
    """How many seconds a server may take to answer."""
    left: dict[str, Any] | None
    """The state of the worker with this number in the checkpoint that the run resumes from."""
    paths: Sequence[str]
    """The driver's sys.path."""


@dataclass(frozen=True)
class WorkOrder:
    """Orders some pushes from a worker."""

    servers: Sequence[Any]
    pushes: int
    """The most pushes."""
    seconds: float
    """The time after which no new push is begun."""
    timestep: int
    """The timesteps of all workers together, approximately."""
    workers: int
    """The number of workers, this one included."""


@dataclass
class WorkReport:
    """The results of a worker's order."""

    worker: int
    pushes: int = 0
    """How many pushes were answered, or sent to be held."""
    timesteps: int = 0
    episodes: int = 0
    updates: int = 0
    """How many gradients were applied."""
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """The means over the pushes with updates."""
    learned: int = 0
    """The number of those pushes."""
    staleness: float = 0.0
    """The sum over the answered pushes with gradients, in updates."""
    dropped: int = 0
    """How many gradients were too old for some server."""
    is_healthy: bool = True
    lost_servers: list[int] = field(default_factory=list)
    """The servers that did not answer."""
    fault: str | None = None
    """The error of the environment."""
    mistake: str | None = None
    """The user's mistake, as an error text."""
    log: list[tuple[int, str]] = field(default_factory=list)
    """(level, text) of logged or printed lines."""
    seconds: float = 0.0
    """The duration of the order."""
