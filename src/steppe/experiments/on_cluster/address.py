"""cluster.json: the cluster of an experiment and its name there; and the connection to it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steppe.errors import ClusterError, StateError
from steppe.experiments.run_folder.store import RunFolder
from steppe.files.durable import write_atomically
from steppe.files.run_files import CLUSTER_FILE
from steppe.specs.loading import limited_reading
from steppe.specs.loading.files import read_spec_file

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable
    from steppe.platforms.kubernetes.client.remote_run import RemoteRun


@dataclass(frozen=True)
class ClusterAddress:
    """The cluster of an experiment, and its place on it."""

    cluster: str
    """The name in `steppe cluster list`."""
    namespace: str
    name: str
    """The prefix of its objects' names."""
    generation: int = 1
    start: int = 0
    owns_cluster: bool = False
    """Whether the cluster was made for this experiment alone, and ends with it."""
    project: str = ""
    """The name of its project when it was first started; its objects' names contain it."""
    has_begun: bool = True
    """Whether its last start was completed; one that was interrupted may have left Pods."""


def address_of(folder: RunFolder) -> ClusterAddress | None:
    """The address of an experiment; None if it is on this machine."""
    path = folder.path / CLUSTER_FILE
    if not limited_reading.exists(path):
        return None
    data = read_spec_file(path)
    known = {field.name for field in dataclasses.fields(ClusterAddress)}
    try:
        address = ClusterAddress(**{key: value for key, value in data.items() if key in known})
        fields = dataclasses.fields(ClusterAddress)
        if any(type(getattr(address, each.name)).__name__ != str(each.type) for each in fields):
            raise TypeError
        return address
    except (TypeError, AttributeError):
        raise StateError(
            f"{path} does not say where the experiment is; delete it to have the experiment here"
        ) from None


def required_address(folder: RunFolder) -> ClusterAddress:
    """The address of an experiment; a StateError if it is on this machine."""
    address = address_of(folder)
    if address is None:
        raise StateError(f'experiment "{folder.name}" is on no cluster')
    return address


def write_address(folder: RunFolder, address: ClusterAddress) -> None:
    """Writes cluster.json: from now on the experiment is on a cluster."""
    write_atomically(folder.path / CLUSTER_FILE, json.dumps(dataclasses.asdict(address), indent=1) + "\n")


@contextlib.contextmanager
def reach(address: ClusterAddress) -> Iterator[tuple[Reachable, RemoteRun]]:
    """Connects to a cluster; yields (the cluster, the experiment on it)."""
    from steppe.clusters import registry
    from steppe.platforms.kubernetes.client.kubeapi import Kube
    from steppe.platforms.kubernetes.client.remote_run import RemoteRun

    if not registry.knows(address.cluster):
        raise ClusterError(unknown_cluster(address))
    reachable = registry.find(address.cluster)
    with Kube(reachable.kubeconfig, reachable.context, address.namespace, reachable.name) as kube:
        yield reachable, RemoteRun(kube, address.name)


def unknown_cluster(address: ClusterAddress) -> str:
    """The sentence about an experiment whose cluster is no longer registered."""
    return (
        f'cluster "{address.cluster}", where it is, is not known here any more; register it again under that name '
        "(steppe cluster create), or delete the experiment"
    )
