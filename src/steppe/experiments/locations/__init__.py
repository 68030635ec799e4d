"""Where a run lives: on this machine or on a cluster. The choice is made here, once, when a run folder is opened."""

from __future__ import annotations

from steppe.experiments.locations._base import WAIT_SECONDS, Location, Started
from steppe.experiments.run_folder.store import RunFolder
from steppe.files.run_files import CLUSTER_FILE
from steppe.specs.loading import limited_reading

__all__ = ["WAIT_SECONDS", "Location", "Started", "location_of", "location_to_start"]


def location_of(folder: RunFolder) -> Location:
    """The location of a run: on a cluster if its folder has a cluster.json, else on this machine."""
    if limited_reading.exists(folder.path / CLUSTER_FILE):
        return _on_cluster(folder)
    from steppe.experiments.locations.local import LocalLocation

    return LocalLocation(folder)


def location_to_start(folder: RunFolder, cluster: str | None = None) -> Location:
    """The location where the experiment will train: `cluster` if one is named, else as its spec says."""
    if cluster is not None or folder.spec_data().get("platform") == "kubernetes":
        return _on_cluster(folder, cluster)
    return location_of(folder)


def _on_cluster(folder: RunFolder, cluster: str | None = None) -> Location:
    from steppe.experiments.on_cluster.location import ClusterLocation

    return ClusterLocation(folder, cluster)
