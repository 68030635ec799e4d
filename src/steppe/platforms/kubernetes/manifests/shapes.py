"""Which Pods a run mode consists of, and what each of them asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from steppe.errors import UserError
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.distributed import WORKERS_PER_GPU
from steppe.specs.running.kubernetes import Engine, KubernetesSpec, PodSpec

Role = Literal["driver", "server", "worker"]
GPU = "nvidia.com/gpu"
SERVER_CPUS = 0.5
"""What a parameter server's Pod is promised; it works only when something arrives."""


@dataclass(frozen=True)
class Crowd:
    """Equal Pods of one role."""

    role: Role
    count: int
    members: int
    """How many workers or servers share one of these Pods."""
    cpus: float
    cpu_limit: float
    memory: float
    """In GB."""
    gpus: int
    """What it asks the cluster for; of its parts of GPUs, where Pods share one."""
    devices: int
    """How many GPUs its processes see, whole or shared."""
    image: str | None
    number: int = 1
    """Which of several crowds of the same role it is."""

    @property
    def name(self) -> str:
        """What its Job is called, after the experiment."""
        return self.role if self.number == 1 else f"{self.role}-{self.number}"

    @property
    def threads(self) -> int:
        """How many threads its libraries may use."""
        return max(1, int(self.cpus / self.members))

    @property
    def resources(self) -> dict[str, Any]:
        """As Kubernetes writes them."""
        memory = quantity(self.memory)
        gpus = {GPU: str(self.gpus)} if self.gpus else {}
        return {
            "requests": {"cpu": _cpu(self.cpus), "memory": memory, **gpus},
            "limits": {"cpu": _cpu(self.cpu_limit), "memory": memory, **gpus},
        }


def crowds(spec: ExperimentSpec, pods: KubernetesSpec, cluster: ClusterSpec | None) -> list[Crowd]:
    """The driver first, then who works for it."""
    made = [_crowd("driver", 1, 1, pods.driver, _driver_defaults(spec, engine_of(spec, pods)), cluster)]
    if spec.run_mode == "distributed":
        usual = PodSpec(cpus=SERVER_CPUS, memory=1.5, gpus=0.0)
        made.append(_crowd("server", spec.num_parameter_servers, 1, pods.server, usual, cluster))
    if spec.run_mode in ("distributed", "async"):
        memory = 2.0 if spec.run_mode == "distributed" else 1.0
        usual = PodSpec(cpus=max(spec.ray.cpus_per_worker, 0.1), memory=memory, gpus=spec.ray.gpus_per_worker)
        workers = partial(_crowd, "worker", own=pods.worker, usual=usual, cluster=cluster)
        made.append(workers(spec.num_workers, 0, most=spec.ray.workers_per_gpu))
        full, rest = divmod(spec.num_workers, made[-1].members)
        if rest and spec.run_mode == "async":
            # Each Pod of a Job starts as many; where Ray does, it starts no more of them than there are to be.
            made[-1] = replace(made[-1], count=full)
            made.append(replace(workers(rest, rest), number=2))
    return made


def engine_of(spec: ExperimentSpec, pods: KubernetesSpec) -> Engine:
    """What makes the Pods. KubeRay makes those of a Ray, so that run modes without one are Jobs on any cluster."""
    return "kuberay" if pods.engine == "kuberay" and spec.run_mode == "distributed" else "jobs"


def quantity(gigabytes: float) -> str:
    """An amount of memory or disk as Kubernetes writes it."""
    return f"{math.ceil(gigabytes * 1024)}Mi"


def _driver_defaults(spec: ExperimentSpec, engine: Engine) -> PodSpec:
    match spec.run_mode:
        case "multi-threaded":
            return PodSpec(cpus=float(spec.num_workers), memory=2.0 + 0.25 * spec.num_workers, gpus=0.0)
        case "async":
            return PodSpec(cpus=1.0, memory=4.0, gpus=0.0)
        case "distributed":
            # KubeRay gives its orders to Ray's dashboard, which takes as much memory as the training.
            return PodSpec(cpus=1.0, memory=3.0 if engine == "jobs" else 4.0, gpus=0.0)
        case _:
            return PodSpec(cpus=1.0, memory=3.0, gpus=0.0)


def _crowd(
    role: Role,
    wanted: int,
    members: int,
    own: PodSpec,
    usual: PodSpec,
    cluster: ClusterSpec | None,
    most: int | None = None,
) -> Crowd:
    """So many of a role; `members` 0 lets them share a Pod where they share a GPU, but no more than `most` of them."""
    cpus, memory, share = (_first(own, usual, name) for name in ("cpus", "memory", "gpus"))
    if share > 1 and not float(share).is_integer():
        raise UserError(f"a {role} gets a part of one GPU (0.33) or whole ones (2), not {share:g}")
    gpus = math.ceil(share)
    if share and cluster is not None and cluster.gpu_sharing:
        gpus, members = _parts(role, share, cluster), 1
    elif 0 < share < 1 and not members:
        most = most or (WORKERS_PER_GPU if cluster is None else cluster.clients_per_gpu)
        members = min(wanted, int(1 / share + 1e-9), most)
    members = members or 1
    return Crowd(
        role=role,
        count=math.ceil(wanted / members),
        members=members,
        cpus=cpus * members,
        cpu_limit=max(cpus, own.cpu_limit or cpus) * members,
        memory=memory * members,
        gpus=gpus,
        devices=math.ceil(share),
        image=own.image,
    )


def _parts(role: Role, share: float, cluster: ClusterSpec) -> int:
    """How many it asks for where the cluster hands out parts of a GPU as if they were whole ones."""
    most = cluster.clients_per_gpu
    parts = max(1, round(share * most))
    if parts > 1 and cluster.provider == "gke":
        # A node there turns away a Pod that asks for more.
        raise UserError(
            f"a {role} is to get {share:g} GPUs, and a gke cluster with gpu_sharing gives each Pod one of a GPU's "
            f"{most} parts; ask for {1 / most:.2g} or less, or make a cluster without gpu_sharing"
        )
    return parts


def _first(own: PodSpec, usual: PodSpec, name: str) -> float:
    value = getattr(own, name)
    return float(getattr(usual, name) if value is None else value)


def _cpu(cpus: float) -> str:
    return f"{max(1, round(cpus * 1000))}m"
