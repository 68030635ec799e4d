"""How a learner and its workers share the work."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from steppe.specs._base import Count, NonNegative, Positive, Spec, Unit
from steppe.specs.running.connections import Address


class AsyncSpec(Spec):
    """Settings of run mode async."""

    batch_timesteps: Count | Literal["episode"] | None = None
    """How many timesteps a worker sends at once; without it 64, and with "episode" whole episodes of up to 1,024.
    Workers of agents that learn from trajectories send their horizon."""
    update_to_data: Positive | Literal["max"] | None = None
    """How many updates the learner takes for each timestep that arrives; without it as many as in run mode single, and
    with "max" as many as it can while nobody waits."""
    trajectories_per_update: Count | None = None
    """From how many environments' trajectories an update learns (agents that learn from them); without it num_envs."""
    queue_size: Count = 2
    """How many batches may wait for the learner; the more, the older is what it learns from."""
    patience: NonNegative = 10.0
    """For how many seconds a worker waits for room in that queue before its batch is dropped and counted; 0 drops it at
    once, for simulators that cannot wait."""
    evaluation_share: Unit = 0.02
    """The share of episodes that workers play greedily, for the learner's record."""
    worker_timeout: Positive = 300.0
    """After how many seconds without a timestep a worker counts as hung, and is replaced."""
    reconnect: NonNegative = 60.0
    """For how many seconds a worker looks for a learner that went away, before it ends."""
    address: Address | None = None
    """Where the learner listens, for workers of your own to join: `host:port`; without it at a free port, which only
    this machine reaches unless others can join its Ray."""
    token_file: str | None = None
    """A file with the token that workers show; without it the variable STEPPE_LEARNER_TOKEN is used if it is set."""
    tls_cert: str | None = None
    """The learner's certificate (PEM), which turns encryption on."""
    tls_key: str | None = None
    """The key of that certificate."""

    @model_validator(mode="after")
    def _has_both_files(self) -> AsyncSpec:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("encryption needs both tls_cert and tls_key; give the other one too")
        return self
