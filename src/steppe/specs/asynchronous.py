"""How a learner and its workers share the work."""

from __future__ import annotations

from steppe.specs._base import Count, Positive, Spec, Unit


class AsyncSpec(Spec):
    """What the learner and its workers agree on, in run mode async."""

    batch_timesteps: Count | None = None
    """How many timesteps a worker sends at once; without it, whole episodes or the agent's horizon."""
    queue_size: Count = 64
    """How many batches may wait for the learner; what comes when it is full is dropped and counted."""
    update_to_data: Positive | None = None
    """How many updates the learner takes for each timestep that arrives; without it, as many as it can."""
    evaluation_share: Unit = 0.02
    """The share of episodes that workers play greedily, for the learner's record."""
