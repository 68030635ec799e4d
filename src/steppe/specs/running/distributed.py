"""Settings of parameter servers, workers and Ray."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from steppe.specs._base import Count, Flag, NonNegative, Positive, Spec

WORKERS_PER_GPU = 3
"""The default of the largest number of workers that share a GPU."""
Sharers = Annotated[int, Field(strict=True, ge=1, le=100)]
Port = Annotated[int, Field(strict=True, ge=1024, le=65535)]


class TLSSpec(Spec):
    """The files with which Ray encrypts traffic between machines; every machine has its own at the same paths."""

    certificate: str
    """The file of this machine's certificate (PEM)."""
    key: str
    """The file of its private key (PEM)."""
    authority: str
    """The file of the certificate that signed those of all machines (PEM)."""


class RaySpec(Spec):
    """The Ray that run modes distributed and async use."""

    address: str | None = None
    """The Ray cluster to join, such as "10.0.0.1:6379"; by default a Ray is started here and stopped again."""
    port: Port | None = None
    """The port at which a Ray started here accepts other machines; without one it is limited to this machine."""
    tls: TLSSpec | None = None
    """The files that encrypt traffic between machines; without them nothing is encrypted."""
    gpus_per_worker: NonNegative = 0.0
    """The share of a GPU that each worker gets: 0.33 puts at most three workers on one."""
    workers_per_gpu: Sharers | None = None
    """The largest number of workers that share a GPU, however small their shares; by default the cluster's
    clients_per_gpu, or 3."""
    cpus_per_worker: NonNegative = 1.0
    """The share of a core that each worker is counted as."""
    object_store: Positive = 0.25
    """The memory for large messages of a Ray that is started here, in GB."""

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
    """The largest age, in updates, of the parameters that a gradient comes from; older gradients are dropped and
    counted."""
    rollouts_per_push: Count | None = None
    """The number of rollouts that a worker learns from, each with the parameters that the one before led to, before
    it sends their gradients; by default enough for about 16 gradients, or 4 of an agent with a replay memory."""
    overlap: Flag = False
    """Whether a worker collects while its gradients are sent: faster over slow networks, but staler."""
    worker_timeout: Positive = 60.0
    """The seconds after which a silent worker or server is replaced; ten times as long while it starts."""
