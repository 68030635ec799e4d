"""Deleting a cluster: the experiments that are lost with it, and the cloud disks that would outlive it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from steppe.clusters import lifecycle, registry
from steppe.clusters.lifecycle import ClusterEntry
from steppe.errors import SteppeError
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.manifests import naming

Json = dict[str, Any]
CLOUDS = ("gke", "eks")
"""Providers whose disks outlive the cluster."""
DISK_SECONDS = 180.0
"""How long a cloud may take to delete the disks."""


def experiments_on(entry: ClusterEntry, but: str = "") -> list[str]:
    """Describes the experiments that would be lost with the cluster, except the one whose run is `but`."""
    if not _may_have_experiments(entry):
        return []
    with _connected(entry) as kube:
        roots = _managed_objects(kube, "/api/v1/configmaps")
    found = [each["metadata"] for each in roots if each["metadata"]["name"] != but and not _holds_files(each)]
    return sorted(_description(about.get("annotations") or {}, about["name"]) for about in found)


def delete_cluster(entry: ClusterEntry, tell: Callable[[str], None], *, force: bool = False) -> str:
    """Ends the experiments on a cluster, deletes their disks and the cluster; returns a note about disks left over."""
    note = ""
    if entry.record.provider in CLOUDS and _may_have_experiments(entry):
        try:
            with _connected(entry) as kube:
                left = delete_disks(kube, tell)
            note = f"these disks are left, look for them in the cloud's console: {', '.join(left)}" if left else ""
        except SteppeError as error:
            note = f"disks may be left, look for them in the cloud's console: {error}"
    lifecycle.delete(entry, tell, force=force)
    return note


def delete_disks(kube: Kube, tell: Callable[[str], None], seconds: float = DISK_SECONDS) -> list[str]:
    """Ends all experiments in all namespaces and deletes their disks; returns the names of disks that still exist."""
    claims = _managed_objects(kube, "/api/v1/persistentvolumeclaims")
    if not claims:
        return []
    tell(f"deletes the disks of {len(claims)} experiment{'' if len(claims) == 1 else 's'}")
    # A disk is released when no Pod uses it; the roots own every other object that makes Pods.
    for api_path in ("/api/v1/configmaps", "/apis/batch/v1/jobs", "/api/v1/pods"):
        for each in _managed_objects(kube, api_path):
            _delete(kube, api_path, each)
    for claim in claims:
        _delete(kube, "/api/v1/persistentvolumeclaims", claim)
    owners = {claim["metadata"]["uid"] for claim in claims}
    deadline, pause = time.monotonic() + seconds, 0.2
    while left := _disks(kube, owners):
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(1.5 * pause, 3.0)
    return left


def _may_have_experiments(entry: ClusterEntry) -> bool:
    """Whether Steppe made this cluster and it was ready once, even if it has problems now."""
    is_there = entry.record.state == "ready" and entry.seen.state not in ("gone", "deleting")
    return entry.is_deletable and entry.is_own and is_there


def _connected(entry: ClusterEntry) -> Kube:
    reachable = registry.reach(entry.record)
    return Kube(reachable.kubeconfig, reachable.context, reachable.namespace, reachable.name)


def _description(annotations: dict[str, str], name: str) -> str:
    experiment, project = annotations.get(naming.EXPERIMENT), annotations.get(naming.PROJECT)
    return name if experiment is None else f'"{experiment}" of project "{project}"'


def _holds_files(config_map: Json) -> bool:
    """Whether a ConfigMap holds files of an experiment, and is not its root."""
    return (config_map["metadata"].get("labels") or {}).get(naming.ROLE) == naming.FILES


def _managed_objects(kube: Kube, api_path: str) -> list[Json]:
    selector = quote(f"{naming.MANAGED_BY}={naming.MANAGER}", safe="")
    return _items(kube, f"{api_path}?labelSelector={selector}")


def _disks(kube: Kube, owners: set[str]) -> list[str]:
    """The names of the volumes of these claims, except those that are to be kept."""
    return [
        each["metadata"]["name"]
        for each in _items(kube, "/api/v1/persistentvolumes")
        if (each["spec"].get("claimRef") or {}).get("uid") in owners
        and each["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
    ]


def _items(kube: Kube, api_path: str) -> list[Json]:
    answer = kube.ask("GET", api_path)
    if answer.code >= 400:
        raise kube.refused(answer, f"GET {api_path}")
    found: list[Json] = json.loads(answer.body).get("items") or []
    return found


def _delete(kube: Kube, api_path: str, each: Json) -> None:
    about, (group, _, plural) = each["metadata"], api_path.rpartition("/")
    path = f"{group}/namespaces/{about['namespace']}/{plural}/{about['name']}"
    answer = kube.ask("DELETE", path, {"propagationPolicy": "Background"})
    if answer.code >= 400 and answer.code != 404:
        raise kube.refused(answer, f"DELETE {plural}")
