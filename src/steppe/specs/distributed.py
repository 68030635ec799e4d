"""How parameter servers and workers share the work, and which Ray they run on."""

from __future__ import annotations

from steppe.specs._base import Count, Flag, NonNegative, Spec


class RaySpec(Spec):
    """The Ray that run modes distributed and async use."""

    address: str | None = None
    """The Ray cluster to join, such as "10.0.0.1:6379"; without one a Ray is started here and stopped again."""
    gpus_per_worker: NonNegative = 0.0
    """The share of a GPU that each worker gets: 0.33 puts at most three workers on one."""
    cpus_per_worker: NonNegative = 1.0
    """The share of a core that each worker is counted as."""


class DistributedSpec(Spec):
    """What parameter servers and workers agree on, in run mode distributed."""

    synchronous: Flag = False
    """Whether every update waits for a gradient of every worker and takes their mean."""
    max_staleness: Count | None = None
    """How many updates old the parameters may be that a gradient comes from; older ones are dropped and counted."""
