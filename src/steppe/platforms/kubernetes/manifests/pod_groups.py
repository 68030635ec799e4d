"""The groups of equal Pods that a run mode consists of, and the resources that each Pod requests."""

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
"""The CPUs reserved for a parameter server's Pod, which works only when a gradient arrives."""


@dataclass(frozen=True)
class PodGroup:
    """Equal Pods of one role."""

    role: Role
    count: int
    members: int
    """How many workers or servers run in each of these Pods."""
    cpus: float
    cpu_limit: float
    memory: float
    """In GB."""
    gpus: int
    """How many GPUs each Pod requests; parts of GPUs if Pods share them."""
    devices: int
    """How many GPUs the processes of a Pod see, whole or shared."""
    image: str | None
    number: int = 1
    """Which of several groups of the same role it is."""

    @property
    def name(self) -> str:
        """The last part of its Job's name."""
        return self.role if self.number == 1 else f"{self.role}-{self.number}"

    @property
    def threads(self) -> int:
        """How many threads the libraries of each member may use."""
        return max(1, int(self.cpus / self.members))

    @property
    def resources(self) -> dict[str, Any]:
        """The requests and limits of a Pod's own container."""
        memory = quantity(self.memory)
        gpus = {GPU: str(self.gpus)} if self.gpus else {}
        return {
            "requests": {"cpu": _cpu(self.cpus), "memory": memory, **gpus},
            "limits": {"cpu": _cpu(self.cpu_limit), "memory": memory, **gpus},
        }


def pod_groups(spec: ExperimentSpec, pods: KubernetesSpec, cluster: ClusterSpec | None) -> list[PodGroup]:
    """The driver's group first, then the groups that work for it."""
    made = [_pod_group("driver", 1, 1, pods.driver, _driver_defaults(spec, engine_of(spec, pods)), cluster)]
    if spec.run_mode == "distributed":
        usual = PodSpec(cpus=SERVER_CPUS, memory=1.5, gpus=0.0)
        made.append(_pod_group("server", spec.num_parameter_servers, 1, pods.server, usual, cluster))
    if spec.run_mode in ("distributed", "async"):
        memory = 2.0 if spec.run_mode == "distributed" else 1.0
        usual = PodSpec(cpus=max(spec.ray.cpus_per_worker, 0.1), memory=memory, gpus=spec.ray.gpus_per_worker)
        workers = partial(_pod_group, "worker", own=pods.worker, usual=usual, cluster=cluster)
        made.append(workers(spec.num_workers, 0, most=spec.ray.workers_per_gpu))
        full, rest = divmod(spec.num_workers, made[-1].members)
        if rest and spec.run_mode == "async":
            # All Pods of a Job start the same number of workers, so the rest gets a Job of its own; Ray needs none.
            made[-1] = replace(made[-1], count=full)
            made.append(replace(workers(rest, rest), number=2))
    return made


def engine_of(spec: ExperimentSpec, pods: KubernetesSpec) -> Engine:
    """The engine that makes the Pods: KubeRay only for run modes with Ray, so that all others are Jobs anywhere."""
    return "kuberay" if pods.engine == "kuberay" and spec.run_mode == "distributed" else "jobs"


def quantity(gigabytes: float) -> str:
    """An amount of memory or disk in the notation of Kubernetes."""
    return f"{math.ceil(gigabytes * 1024)}Mi"


def _driver_defaults(spec: ExperimentSpec, engine: Engine) -> PodSpec:
    match spec.run_mode:
        case "multi-threaded":
            return PodSpec(cpus=float(spec.num_workers), memory=2.0 + 0.25 * spec.num_workers, gpus=0.0)
        case "async":
            return PodSpec(cpus=1.0, memory=4.0, gpus=0.0)
        case "distributed":
            # KubeRay needs Ray's dashboard, which takes as much memory as the training.
            return PodSpec(cpus=1.0, memory=3.0 if engine == "jobs" else 4.0, gpus=0.0)
        case _:
            return PodSpec(cpus=1.0, memory=3.0, gpus=0.0)


def _pod_group(
    role: Role,
    wanted: int,
    members: int,
    own: PodSpec,
    usual: PodSpec,
    cluster: ClusterSpec | None,
    most: int | None = None,
) -> PodGroup:
    """A group for `wanted` members of a role, with `members` in each Pod.

    With `members` 0, as many share a Pod as share a GPU, but at most `most`.
    """
    cpus, memory, share = (_first(own, usual, name) for name in ("cpus", "memory", "gpus"))
    if share > 1 and not float(share).is_integer():
        raise UserError(f"a {role} gets a part of one GPU (0.33) or whole ones (2), not {share:g}")
    gpus = math.ceil(share)
    if share and cluster is not None and cluster.gpu_sharing:
        gpus, members = _gpu_parts(role, share, cluster), 1
    elif 0 < share < 1 and not members:
        most = most or (WORKERS_PER_GPU if cluster is None else cluster.clients_per_gpu)
        members = min(wanted, int(1 / share + 1e-9), most)
    members = members or 1
    return PodGroup(
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


def _gpu_parts(role: Role, share: float, cluster: ClusterSpec) -> int:
    """How many parts of GPUs a Pod requests on a cluster that offers the parts as whole GPUs."""
    most = cluster.clients_per_gpu
    parts = max(1, round(share * most))
    if parts > 1 and cluster.provider == "gke":
        # Nodes of GKE reject a Pod that requests more than one part.
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
