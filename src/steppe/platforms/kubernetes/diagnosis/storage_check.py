"""Whether a cluster can store results: the findings that its storage classes allow without a trial Pod."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from steppe.platforms.kubernetes.client.kubeapi import Kube

Json = dict[str, Any]
Outcome = Literal["ok", "failed", "unknown"]
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True)
class ClusterFinding:
    """The result of checking one thing that experiments need."""

    what: str
    outcome: Outcome
    sentence: str
    fix: str = ""


def storage_classes(kube: Kube) -> list[Json] | None:
    """The cluster's storage classes; None if the user may not list them."""
    answer = kube.ask("GET", "/apis/storage.k8s.io/v1/storageclasses")
    return json.loads(answer.body)["items"] if answer.code == 200 else None


def check_storage_class(classes: list[Json] | None, wanted: str | None) -> ClusterFinding:
    """Whether the wanted storage class exists, or a default one if none is named."""
    if classes is None:
        sentence = "these credentials may not list storage classes; a trial Pod would show"
        return ClusterFinding("storage", "unknown", sentence)
    names = [each["metadata"]["name"] for each in classes]
    if wanted is not None and wanted not in names:
        there = f"; it has {', '.join(names)}" if names else ""
        sentence = f'there is no storage class "{wanted}"{there}'
        return ClusterFinding("storage", "failed", sentence, storage_fix(classes))
    default = [
        each["metadata"]["name"]
        for each in classes
        if (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    if wanted is None and not default:
        return ClusterFinding("storage", "failed", "there is no default storage class", storage_fix(classes))
    return ClusterFinding("storage", "ok", f'results get disks of storage class "{wanted or default[0]}"')


def storage_fix(classes: list[Json] | None) -> str:
    """How to get disks on a cluster with these storage classes."""
    if classes:
        name = classes[0]["metadata"]["name"]
        return f"name one in each experiment: steppe experiment new ... --set kubernetes.storage_class={name}"
    return "install a driver for disks, and a storage class for it"
