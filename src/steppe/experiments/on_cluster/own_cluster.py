"""Clusters that were made for one experiment alone: they end with it, its results fetched before."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator

from steppe.errors import ClusterError, StateError, SteppeError
from steppe.experiments.on_cluster import places, remote
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder, Status

Tell = Callable[[str], None]
LONGEST_NAME = 40
HOME_LOCK = ".home.lock"
"""Held by whoever fetches the results and ends the cluster, or starts the experiment there."""


def name_for(experiment: str) -> str:
    """What a cluster is called that is made for an experiment and has no name of its own."""
    return ("steppe-" + re.sub(r"[^a-z0-9]+", "-", experiment.lower()))[:LONGEST_NAME].strip("-")


def is_home_bound(folder: RunFolder) -> bool:
    """Whether it has completed on a cluster that was made for it, which ends when its results are fetched."""
    place = places.place_of(folder)
    return place is not None and place.owns_cluster and folder.status().state == "completed"


def bring_home(folder: RunFolder, tell: Tell) -> None:
    """Fetches all results into the run folder here, and deletes the cluster that was made for the experiment.

    Where another process is at it, this one waits until all is done; one that trains on by then keeps its cluster.
    """
    with _alone(folder, tell):
        place = places.place_of(folder)
        if place is None or folder.read_status().state != "completed":
            return
        tell(f'fetching the results from cluster "{place.cluster}"')
        remote.download(folder, folder.path, force=True)
        # From here on the results are safe, whatever becomes of the cluster.
        (folder.path / places.PLACE_FILE).unlink()
        try:
            _end(place.cluster, tell, place)
        except SteppeError as error:
            raise ClusterError(
                f'the results of experiment "{folder.name}" are here, but cluster "{place.cluster}", which was made '
                f"for it, was not deleted ({error}); delete it with: steppe cluster delete -c {place.cluster}"
            ) from error


def end_left(folder: RunFolder, place: places.Place, tell: Tell) -> None:
    """Deletes the cluster at which the experiment was, should it be there still; its results must be home."""
    with _alone(folder, tell):
        if made_for(folder) == place.cluster:
            _end(place.cluster, tell, place)


@contextlib.contextmanager
def staying(folder: RunFolder) -> Iterator[None]:
    """Keeps everybody from fetching the results and ending the cluster meanwhile; refuses where somebody does."""
    descriptor = locks.acquire(folder.path, patience=0.5, file=HOME_LOCK)
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
    """What a user should know of the cluster that was made for an experiment that does not run; else nothing."""
    from steppe.clusters import registry

    if status.is_live:
        return ""
    place = places.place_of(folder)
    if place is not None and place.owns_cluster and registry.knows(place.cluster):
        cluster: str | None = place.cluster
    else:
        # Also one of which the run folder tells nothing: its making or its deletion was cut short.
        cluster = made_for(folder)
    if cluster is None:
        return ""
    made = f'cluster "{cluster}", which was made for experiment "{folder.name}", is still there;'
    if status.state != "completed":
        return f"{made} it is deleted when the experiment has completed, or is deleted itself"
    if place is None:
        return f"{made} the results are here, so delete it with: steppe cluster delete -c {cluster}"
    return f"{made} it is deleted when the results are fetched: {folder.ways.download}"


def made_for(folder: RunFolder) -> str | None:
    """The name of the cluster that was made for an experiment, whether it has come to run there or not."""
    from steppe.clusters import registry

    for name in registry.names():
        with contextlib.suppress(SteppeError):
            if registry.read(name).made_for == str(folder.path):
                return name
    return None


def delete(folder: RunFolder) -> None:
    """Removes an experiment and its results from its cluster, and the cluster that was made for it."""
    place, own = places.place_of(folder), made_for(folder)
    if own is not None:
        _end(own, lambda line: None, place)
    elif place is not None:
        remote.delete(folder)


@contextlib.contextmanager
def _alone(folder: RunFolder, tell: Tell) -> Iterator[None]:
    """Waits until nobody else fetches the results or starts the experiment, and then keeps them from it."""
    descriptor = locks.acquire(folder.path, patience=0.5, file=HOME_LOCK)
    if descriptor is None:
        tell("another process fetches the results already, or trains it on; waiting for it")
        descriptor = locks.acquire(folder.path, patience=math.inf, file=HOME_LOCK)
    assert descriptor is not None
    try:
        yield
    finally:
        locks.release(descriptor)


def _end(cluster: str, tell: Tell, place: places.Place | None) -> None:
    """Deletes a cluster with the experiment that it was made for; one that others use too loses only the experiment."""
    from steppe.clusters import lifecycle
    from steppe.platforms.kubernetes.client.cluster_deletion import delete_cluster, experiments_on

    entry = lifecycle.entry(cluster)
    if others := experiments_on(entry, but=place.name if place is not None else ""):
        if place is not None:
            remote.delete_at(place)
        tell(
            f'cluster "{cluster}" stays, since experiment {others[0]} is on it too; delete it with: '
            f"steppe cluster delete -c {cluster}"
        )
        return
    tell(f'deleting cluster "{cluster}", which was made for this experiment')
    if note := delete_cluster(entry, tell):
        tell(note)
