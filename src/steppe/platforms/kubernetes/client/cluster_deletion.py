"""Deleting a cluster: what is lost with it is told before, and disks that would outlive it are given back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from steppe.clusters import lifecycle, registry
from steppe.clusters.lifecycle import Entry
from steppe.errors import SteppeError
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.manifests import naming

Json = dict[str, Any]
CLOUDS = ("gke", "eks")
"""Providers whose disks are not gone with the cluster."""
DISK_SECONDS = 180.0
"""How long a cloud may take to delete the disks."""


def experiments_on(entry: Entry, but: str = "") -> list[str]:
    """The experiments that would be lost with the cluster, in words; without the one whose run is `but`."""
    if not _can_be_asked(entry):
        return []
    with _opened(entry) as kube:
        roots = _everywhere(kube, "/api/v1/configmaps")
    found = [each["metadata"] for each in roots if each["metadata"]["name"] != but and not _holds_files(each)]
    return sorted(_called(about.get("annotations") or {}, about["name"]) for about in found)


def delete_cluster(entry: Entry, tell: Callable[[str], None], *, force: bool = False) -> str:
    """Ends what runs on a cluster, gives its disks back, and deletes it; what the user should know of disks left."""
    note = ""
    if entry.record.provider in CLOUDS and _can_be_asked(entry):
        try:
            with _opened(entry) as kube:
                left = empty(kube, tell)
            note = f"these disks are left, look for them in the cloud's console: {', '.join(left)}" if left else ""
        except SteppeError as error:
            note = f"disks may be left, look for them in the cloud's console: {error}"
    lifecycle.delete(entry, tell, force=force)
    return note


def empty(kube: Kube, tell: Callable[[str], None], seconds: float = DISK_SECONDS) -> list[str]:
    """Ends all experiments in all namespaces and deletes their disks; the names of disks that are still there."""
    claims = _everywhere(kube, "/api/v1/persistentvolumeclaims")
    if not claims:
        return []
    tell(f"deletes the disks of {len(claims)} experiment{'' if len(claims) == 1 else 's'}")
    # A disk is let go when no Pod uses it any more; with the roots goes whatever else makes Pods.
    for place in ("/api/v1/configmaps", "/apis/batch/v1/jobs", "/api/v1/pods"):
        for each in _everywhere(kube, place):
            _delete(kube, place, each)
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


def _can_be_asked(entry: Entry) -> bool:
    """Whether this is a cluster of Steppe's own making that was ready once; one that ails now is asked all the same."""
    is_there = entry.record.state == "ready" and entry.seen.state not in ("gone", "deleting")
    return entry.is_deletable and entry.is_own and is_there


def _opened(entry: Entry) -> Kube:
    reachable = registry.reach(entry.record)
    return Kube(reachable.kubeconfig, reachable.context, reachable.namespace, reachable.name)


def _called(annotations: dict[str, str], name: str) -> str:
    experiment, project = annotations.get(naming.EXPERIMENT), annotations.get(naming.PROJECT)
    return name if experiment is None else f'"{experiment}" of project "{project}"'


def _holds_files(config_map: Json) -> bool:
    """Whether it is not an experiment's root, but holds files that go along with one."""
    return (config_map["metadata"].get("labels") or {}).get(naming.ROLE) == naming.FILES


def _everywhere(kube: Kube, place: str) -> list[Json]:
    selector = quote(f"{naming.MANAGED_BY}={naming.MANAGER}", safe="")
    return _items(kube, f"{place}?labelSelector={selector}")


def _disks(kube: Kube, owners: set[str]) -> list[str]:
    """The volumes of these claims, but for those that are to be kept."""
    return [
        each["metadata"]["name"]
        for each in _items(kube, "/api/v1/persistentvolumes")
        if (each["spec"].get("claimRef") or {}).get("uid") in owners
        and each["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
    ]


def _items(kube: Kube, place: str) -> list[Json]:
    answer = kube.ask("GET", place)
    if answer.code >= 400:
        raise kube.refused(answer, f"GET {place}")
    found: list[Json] = json.loads(answer.body).get("items") or []
    return found


def _delete(kube: Kube, place: str, each: Json) -> None:
    about, (group, _, plural) = each["metadata"], place.rpartition("/")
    path = f"{group}/namespaces/{about['namespace']}/{plural}/{about['name']}"
    answer = kube.ask("DELETE", path, {"propagationPolicy": "Background"})
    if answer.code >= 400 and answer.code != 404:
        raise kube.refused(answer, f"DELETE {plural}")
