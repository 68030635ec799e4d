"""Clusters made for one experiment alone: they are deleted once its results have been fetched."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from steppe.errors import ClusterError, StateError, SteppeError
from steppe.experiments.on_cluster.address import ClusterAddress, address_of, reach
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.files.run_files import CLUSTER_FILE

Tell = Callable[[str], None]
FETCH_LOCK = ".home.lock"
"""Held by the process that fetches the results and deletes the cluster, or starts the experiment there."""


def fetch_and_delete(folder: RunFolder, fetch: Callable[[], object], tell: Tell) -> None:
    """Calls `fetch` for all results of a completed run, then deletes the cluster that was made for it.

    If another process does so already, this one waits until that is done; a run that trains again by then keeps its
    cluster.
    """
    with _lock(folder, tell):
        address = address_of(folder)
        if address is None or folder.read_status().state != "completed":
            return
        tell(f'fetching the results from cluster "{address.cluster}"')
        fetch()
        # From here on the results are safe, even if the deletion of the cluster fails.
        (folder.path / CLUSTER_FILE).unlink()
        try:
            _end(address.cluster, tell, address)
        except SteppeError as error:
            raise ClusterError(
                f'the results of experiment "{folder.name}" are here, but cluster "{address.cluster}", which was made '
                f"for it, was not deleted ({error}); delete it with: steppe cluster delete -c {address.cluster}"
            ) from error


def delete_leftover(folder: RunFolder, address: ClusterAddress, tell: Tell) -> None:
    """Deletes the experiment's cluster if it still exists; results must have been downloaded."""
    with _lock(folder, tell):
        if made_for(folder) == address.cluster:
            _end(address.cluster, tell, address)


@contextlib.contextmanager
def kept(folder: RunFolder) -> Iterator[None]:
    """Keeps the cluster while the block lasts; a StateError if a process fetches the results and deletes it."""
    descriptor = locks.acquire(folder.path, patience=0.5, file=FETCH_LOCK)
    if descriptor is None:
        raise StateError(
            f'the results of experiment "{folder.name}" are being fetched from its cluster, which ends then; see '
            f"how it goes: {folder.ways.show}"
        )
    try:
        yield
    finally:
        locks.release(descriptor)


def note_of(folder: RunFolder, status: Status) -> str:
    """A sentence about a cluster made for an experiment that no longer runs, since it still costs money; or ""."""
    from steppe.clusters import registry

    if status.is_live:
        return ""
    address = address_of(folder)
    if address is not None and address.owns_cluster and registry.knows(address.cluster):
        cluster: str | None = address.cluster
    else:
        # The run folder does not name a cluster whose creation or deletion was interrupted.
        cluster = made_for(folder)
    if cluster is None:
        return ""
    made = f'cluster "{cluster}", which was made for experiment "{folder.name}", is still there;'
    if status.state != "completed":
        return f"{made} it is deleted when the experiment has completed, or is deleted itself"
    if address is None:
        return f"{made} the results are here, so delete it with: steppe cluster delete -c {cluster}"
    return f"{made} it is deleted when the results are fetched: {folder.ways.download}"


def made_for(folder: RunFolder) -> str | None:
    """The name of the cluster that was made for an experiment, even if it has never run there."""
    from steppe.clusters import registry

    for name in registry.names():
        with contextlib.suppress(SteppeError):
            if registry.read(name).made_for == str(folder.path):
                return name
    return None


def deleted_too(folder: RunFolder) -> str:
    """A clause that names the cluster which is deleted with the experiment; or ""."""
    own = made_for(folder)
    return "" if own is None else f', and cluster "{own}", which was made for it'


def delete(folder: RunFolder) -> bool:
    """Deletes the cluster that was made for the experiment, with its results; returns whether there was one."""
    own = made_for(folder)
    if own is not None:
        _end(own, lambda line: None, address_of(folder))
    return own is not None


@contextlib.contextmanager
def _lock(folder: RunFolder, tell: Tell) -> Iterator[None]:
    descriptor = locks.acquire(folder.path, patience=0.5, file=FETCH_LOCK)
    if descriptor is None:
        tell("another process fetches the results already, or trains it on; waiting for it")
        descriptor = locks.acquire(folder.path, patience=math.inf, file=FETCH_LOCK)
    assert descriptor is not None
    try:
        yield
    finally:
        locks.release(descriptor)


def _end(cluster: str, tell: Tell, address: ClusterAddress | None) -> None:
    """Deletes a cluster; if other experiments are on it too, only this experiment is deleted there."""
    from steppe.clusters import lifecycle
    from steppe.platforms.kubernetes.client.cluster_deletion import delete_cluster, experiments_on

    entry = lifecycle.entry(cluster)
    if others := experiments_on(entry, but=address.name if address is not None else ""):
        if address is not None:
            with reach(address) as (_, run):
                run.delete()
        tell(
            f'cluster "{cluster}" stays, since experiment {others[0]} is on it too; delete it with: '
            f"steppe cluster delete -c {cluster}"
        )
        return
    tell(f'deleting cluster "{cluster}", which was made for this experiment')
    if note := delete_cluster(entry, tell):
        tell(note)
