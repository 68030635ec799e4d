"""How parameter servers and workers share the work, and which Ray they run on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from steppe.specs._base import Count, Flag, NonNegative, Positive, Spec

WORKERS_PER_GPU = 3
"""The default of how many workers share a GPU at most."""
Sharers = Annotated[int, Field(strict=True, ge=1, le=100)]
Port = Annotated[int, Field(strict=True, ge=1024, le=65535)]


class TLSSpec(Spec):
    """The files with which Ray encrypts what goes between machines; every machine has its own at the same places."""

    certificate: str
    """The file of this machine's certificate (PEM)."""
    key: str
    """The file of its private key (PEM)."""
    authority: str
    """The file of the certificate that signed those of all machines (PEM)."""


class RaySpec(Spec):
    """The Ray that run modes distributed and async use."""

    address: str | None = None
    """The Ray cluster to join, such as "10.0.0.1:6379"; without one a Ray is started here and stopped again."""
    port: Port | None = None
    """The port where a Ray that is started here takes in other machines; without one it keeps to this machine."""
    tls: TLSSpec | None = None
    """The files that encrypt what goes between machines; nothing is encrypted without them."""
    gpus_per_worker: NonNegative = 0.0
    """The share of a GPU that each worker gets: 0.33 puts at most three workers on one."""
    workers_per_gpu: Sharers | None = None
    """How many workers share a GPU at most, however small their shares are; without it as many as the cluster's
    clients_per_gpu says, or 3."""
    cpus_per_worker: NonNegative = 1.0
    """The share of a core that each worker is counted as."""
    object_store: Positive = 0.25
    """How much memory a Ray that is started here has for large messages, in GB."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is None:
            return None
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError('an address is "host:port", such as "10.0.0.1:6379", or "ray://host:port"')
        return address

    @field_validator("gpus_per_worker")
    @classmethod
    def _is_a_share(cls, gpus: float) -> float:
        if gpus > 1 and not gpus.is_integer():
            raise ValueError("a worker gets a part of one GPU (0.33) or whole ones (2), nothing in between")
        return gpus


class DistributedSpec(Spec):
    """Settings of run mode distributed."""

    synchronous: Flag = False
    """Whether every update waits for a gradient of every worker and takes their mean."""
    max_staleness: Count | None = None
    """How many updates old the parameters may be that a gradient comes from; older ones are dropped and counted."""
    rollouts_per_push: Count | None = None
    """How many rollouts a worker learns from, each where the one before has led it, before it sends their gradients;
    without it, enough for about 16 gradients, or 4 of an agent with a replay memory."""
    overlap: Flag = False
    """Whether a worker collects on while its gradients are on their way: faster over slow networks, but staler."""
    worker_timeout: Positive = 60.0
    """After how many seconds a silent worker or server is replaced; ten times as long while it starts."""
