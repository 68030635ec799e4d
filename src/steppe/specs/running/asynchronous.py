"""Settings of a learner and its workers."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from steppe.specs._base import Count, NonNegative, Positive, Spec, Unit
from steppe.specs.running.connections import Address


class AsyncSpec(Spec):
    """Settings of run mode async."""

    batch_timesteps: Count | Literal["episode"] | None = None
    """The number of timesteps that a worker sends at once, 64 by default; with "episode" it sends whole episodes of
    up to 1,024. Workers of agents that learn from trajectories send their horizon."""
    update_to_data: Positive | Literal["max"] | None = None
    """The number of updates for each timestep that arrives, by default as in run mode single; with "max" the learner
    makes as many as it can while no worker waits."""
    trajectories_per_update: Count | None = None
    """The number of environments whose trajectories an update learns from (agents that learn from trajectories);
    num_envs by default."""
    queue_size: Count = 2
    """The number of batches that may wait for the learner; the longer the queue, the older the data."""
    patience: NonNegative = 10.0
    """The seconds that a worker waits for room in that queue before its batch is dropped and counted; 0 drops it at
    once, for simulators that cannot wait."""
    evaluation_share: Unit = 0.02
    """The share of episodes that workers play greedily, for the learner's record."""
    worker_timeout: Positive = 300.0
    """The seconds without a timestep after which a worker counts as hung and is replaced."""
    reconnect: NonNegative = 60.0
    """The seconds that a worker looks for a lost learner before it ends."""
    address: Address | None = None
    """The learner's address, `host:port`, for workers of your own to join; by default a free port, which only this
    machine reaches unless others can join its Ray."""
    token_file: str | None = None
    """A file with the token that workers show; by default the variable STEPPE_LEARNER_TOKEN is used if it is set."""
    tls_cert: str | None = None
    """The learner's certificate (PEM), which turns encryption on."""
    tls_key: str | None = None
    """The key of that certificate."""

    @model_validator(mode="after")
    def _has_both_files(self) -> AsyncSpec:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("encryption needs both tls_cert and tls_key; give the other one too")
        return self
