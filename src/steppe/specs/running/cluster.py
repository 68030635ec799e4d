"""A cluster: its nodes and their provider."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from steppe.specs._base import Count, Flag, Natural, Positive, Spec
from steppe.specs.running.distributed import WORKERS_PER_GPU
from steppe.specs.running.kubernetes import KubernetesSpec

Text = Annotated[str, Field(min_length=1)]
Provider = Literal["kubeconfig", "gke", "eks", "kind", "k3d"]


class ClusterSpec(Spec):
    """Equal nodes of one machine type, or of given CPUs and memory."""

    name: Text | None = None
    """The cluster's name."""
    machine_type: Text | None = None
    """The provider's name for the kind of machine; or give cpus_per_node and memory_per_node."""
    cpus_per_node: Count | None = None
    """The number of CPUs of each node."""
    memory_per_node: Positive | None = None
    """The memory of each node, in GB."""
    num_nodes: Count = 3
    """The number of nodes."""
    gpus_per_node: Natural = 0
    """The number of GPUs of each node."""
    gpu_type: Text | None = None
    """The provider's name for the kind of GPU."""
    disk_size: Count = 100
    """The size of each node's disk, in GB."""
    location: Text | None = None
    """The provider's region or zone."""
    subnets: list[Text] | None = None
    """The cluster's subnets, in at least two zones (eks); its nodes are in the first. By default those of the
    default network."""
    provider: Provider | None = None
    """The provider: `gke`, `eks`, `kind` and `k3d` make clusters, `kubeconfig` is an existing one."""
    project: Text | None = None
    """The cloud project it belongs to (gke); by default the one that `steppe init -r` has noted."""
    kubeconfig: Text | None = None
    """The file for access to the cluster (provider kubeconfig); by default KUBECONFIG, or ~/.kube/config."""
    context: Text | None = None
    """The context in that file; by default the current one."""
    namespace: Text | None = None
    """The namespace for experiments; by default the context's own, or "default"."""
    gpu_sharing: Flag = False
    """Whether the provider lets several Pods share a GPU (gke, eks)."""
    clients_per_gpu: Count = WORKERS_PER_GPU
    """The largest number of workers that share a GPU: those of one Pod, or with gpu_sharing as many Pods, each with
    a part."""
    spot: Flag = False
    """Whether nodes are cheaper ones that the provider may take back; training then goes on elsewhere."""
    version: Text | None = None
    """The Kubernetes version; by default the provider's."""
    kubernetes: KubernetesSpec = KubernetesSpec()
    """Settings of Pods on this cluster; those of an experiment take precedence."""

    @field_validator("namespace")
    @classmethod
    def _is_a_namespace(cls, namespace: str | None) -> str | None:
        if namespace is not None and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace):
            raise ValueError('a namespace is made of lower-case letters, digits and "-", and has at most 63 of them')
        return namespace

    @model_validator(mode="after")
    def _one_kind_of_node(self) -> ClusterSpec:
        if self.machine_type is not None and (self.cpus_per_node is not None or self.memory_per_node is not None):
            raise ValueError("give either machine_type or cpus_per_node and memory_per_node, not both")
        if (self.cpus_per_node is None) != (self.memory_per_node is None):
            raise ValueError("cpus_per_node and memory_per_node must be given together")
        return self
