"""A cluster: its nodes and where they stand."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from steppe.specs._base import Count, Natural, Positive, Spec

Text = Annotated[str, Field(min_length=1)]


class ClusterSpec(Spec):
    """Equal nodes of one machine type, or of so many CPUs and so much memory each."""

    name: Text | None = None
    """What the cluster is called."""
    machine_type: Text | None = None
    """The provider's name for the kind of machine; or give cpus_per_node and memory_per_node."""
    cpus_per_node: Count | None = None
    """How many CPUs each node has."""
    memory_per_node: Positive | None = None
    """How much memory each node has, in GB."""
    num_nodes: Count = 3
    """How many nodes."""
    gpus_per_node: Natural = 0
    """How many GPUs each node has."""
    gpu_type: Text | None = None
    """The provider's name for the kind of GPU."""
    disk_size: Count = 100
    """The size of each node's disk, in GB."""
    location: Text | None = None
    """The provider's region or zone."""

    @model_validator(mode="after")
    def _one_kind_of_node(self) -> ClusterSpec:
        if self.machine_type is not None and (self.cpus_per_node is not None or self.memory_per_node is not None):
            raise ValueError("give either machine_type or cpus_per_node and memory_per_node, not both")
        if (self.cpus_per_node is None) != (self.memory_per_node is None):
            raise ValueError("cpus_per_node and memory_per_node must be given together")
        return self
