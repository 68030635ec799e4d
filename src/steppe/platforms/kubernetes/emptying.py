"""Before a cloud's cluster is deleted: its disks are given back, which would outlive it and be paid for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from steppe.platforms.kubernetes import naming
from steppe.platforms.kubernetes.kubeapi import Kube

Json = dict[str, Any]
DISK_SECONDS = 180.0
"""How long a cloud may take to delete the disks."""


def empty(kube: Kube, tell: Callable[[str], None], seconds: float = DISK_SECONDS) -> list[str]:
    """Ends all experiments in all namespaces and deletes their disks; the names of disks that are still there."""
    claims = _everywhere(kube, "/api/v1/persistentvolumeclaims")
    if not claims:
        return []
    tell(f"deletes the disks of {len(claims)} experiment{'' if len(claims) == 1 else 's'}")
    # A disk is let go when no Pod uses it any more.
    for place in ("/apis/batch/v1/jobs", "/api/v1/pods"):
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
