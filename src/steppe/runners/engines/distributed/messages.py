"""What the driver and its workers say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker must know before it begins."""

    number: int
    """Never given twice in a run: what its randomness follows from."""
    seed: int
    spec: dict[str, Any]
    """The experiment, as JSON."""
    borders: Sequence[int]
    """Where the servers' shards begin, and where the last one ends."""
    rollouts: int
    """How many rollouts go into one push."""
    overlaps: bool
    """Whether it collects on while a push is on its way."""
    timeout: float
    """How many seconds a server may take to answer."""
    left: dict[str, Any] | None
    """What the worker of this number left in the checkpoint that the run goes on from."""
    paths: Sequence[str]
    """Where the driver finds modules."""


@dataclass(frozen=True)
class WorkOrder:
    """Something to do for a worker."""

    servers: Sequence[Any]
    pushes: int
    """At most."""
    seconds: float
    """After which no new push is begun."""
    timestep: int
    """Of all workers together, about."""
    workers: int
    """How many there are, this one included."""


@dataclass
class WorkReport:
    """What a worker did."""

    worker: int
    pushes: int = 0
    """How many were sent and settled, or sent to be held."""
    timesteps: int = 0
    episodes: int = 0
    updates: int = 0
    """How many gradients were applied."""
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Means over the pushes that taught something."""
    learned: int = 0
    """How many those were."""
    staleness: float = 0.0
    """Summed over the settled pushes that carried gradients, in updates."""
    dropped: int = 0
    """How many gradients some server found too old."""
    is_healthy: bool = True
    lost_servers: list[int] = field(default_factory=list)
    """Those that did not answer."""
    fault: str | None = None
    """What went wrong in the environment, in a sentence."""
    mistake: str | None = None
    """What the user can put right, in a sentence."""
    log: list[tuple[int, str]] = field(default_factory=list)
    """(level, message) of what was logged or printed."""
    seconds: float = 0.0
    """How long it took."""
