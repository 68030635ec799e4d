"""Environments spread over host devices: each device learns from its own, and all take the same averaged steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from steppe.agents._base import DEVICE_AXIS, Agent

AXIS = DEVICE_AXIS
EVERYWHERE = P()
"""The PartitionSpec of values that are the same on every device."""


class DeviceSpread:
    """Distributes an agent's environments and programs over its devices; with one device it changes nothing."""

    def __init__(self, agent: Agent[Any]) -> None:
        self.shards = agent.context.shards

    def on_all_devices(self, function: Callable[..., Any], takes: Any, gives: Any) -> Callable[..., Any]:
        """The function on all devices at once; `takes` and `gives` are trees of PartitionSpecs."""
        if self.shards == 1:
            return function
        return jax.shard_map(function, mesh=self._mesh, in_specs=takes, out_specs=gives, check_vma=False)

    def put(self, tree: Any, spec: P) -> Any:
        """Puts a tree on the devices as such a function expects."""
        return tree if self.shards == 1 else jax.device_put(tree, NamedSharding(self._mesh, spec))

    def first_copy(self, tree: Any) -> Any:
        """The copy on the first device of a tree that is the same on all."""
        return tree if self.shards == 1 else jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)

    def pmean(self, values: Any) -> Any:
        """The mean over all devices, inside such a function. Each leaf synchronises all of them, so give few."""
        return values if self.shards == 1 else jax.tree.map(lambda leaf: jax.lax.pmean(leaf, AXIS), values)

    @cached_property
    def _mesh(self) -> Mesh:
        return Mesh(np.array(jax.devices()[: self.shards]), (AXIS,))
