"""Sentences about a driver that does not answer, or that lacks servers and workers."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from steppe.platforms.kubernetes.diagnosis.pod_health import (
    is_running,
    running_since,
    sidecar_failure,
    termination_of,
)
from steppe.runners.pods import DOOR_PORT

Json = dict[str, Any]
SILENT_SECONDS = 30.0
"""For how long a Pod may run without an answer before that is reported: its program takes a while to start."""


def missing_pods(joined: Json) -> str:
    """How many servers and workers are ready of those that a training wants; empty if all are."""
    if all(each["here"] >= each["wanted"] for each in joined.values()):
        return ""
    return " and ".join(f"{each['here']} of {each['wanted']} {kind}s" for kind, each in joined.items()) + " are ready"


def is_expendable(kind: str, each: Json) -> bool:
    """Whether the training has begun with enough Pods of this kind, and so continues with those that are left."""
    return bool(each["most"] >= (1 if kind == "worker" else each["wanted"]))


def with_sidecar_failure(status: Json | None, pod: Json) -> Json | None:
    """Adds to a failure why a simulator beside the driver ended; the run itself only notices that it is gone."""
    if status is None or status.get("state") != "failed" or not (end := sidecar_failure(pod)):
        return status
    return status | {"reason": "; ".join(part for part in (status.get("reason"), end) if part)}


def starting_phase(drivers: list[Json]) -> str:
    """The phase of a run whose driver does not answer, although nothing is wrong with its Pods."""
    alive = [pod for pod in drivers if termination_of(pod) is None and not pod["metadata"].get("deletionTimestamp")]
    if not alive:
        return "its Pod is being replaced" if drivers else "waiting for a Pod"
    return "its Pod is starting"


def stuck_phase(drivers: list[Json], namespace: str) -> str:
    """The sentence about a Pod that should have ended by now while no other runs; empty if there is none."""
    if any(is_running(pod) for pod in drivers):
        return ""
    for pod in drivers:
        # This is the time by which it should have ended.
        limit = pod["metadata"].get("deletionTimestamp")
        if limit and time.time() - datetime.fromisoformat(limit).timestamp() > SILENT_SECONDS:
            return not_ending(pod["metadata"]["name"], namespace, pod["spec"].get("nodeName", ""))
    return ""


def not_ending(pod: str, namespace: str, node: str = "") -> str:
    """The sentence about a Pod that was deleted and still exists: only its node can report that it has ended."""
    where = f" on node {node}" if node else ""
    return (
        f"Pod {pod}{where} does not end, as Pods of a lost node do; when the node is really gone: "
        f"kubectl delete pod {pod} --namespace {namespace} --force"
    )


def silent_phase(drivers: list[Json], why: str, cluster: str) -> str:
    """The sentence about a driver that has run for a while without an answer; empty while it may be starting."""
    late = [pod for pod in drivers if is_running(pod) and time.time() - running_since(pod) > SILENT_SECONDS]
    # A connection that the Pod itself refuses has reached it, so nothing blocks the way.
    if not late or not why or "connection refused" in why:
        return ""
    return (
        f"Pod {late[-1]['metadata']['name']} runs, and the API server brings no answer of it ({why}); see whether it "
        f'reaches port {DOOR_PORT} of Pods: "steppe cluster check -c {cluster}"'
    )
