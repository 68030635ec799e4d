"""What a client sees of an experiment on its cluster, in words."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from steppe.platforms.kubernetes.diagnosis.waiting import (
    SURE_SECONDS,
    end_beside,
    is_ready_to_answer,
    running_since,
    termination_of,
)
from steppe.runners.pods import DOOR_PORT

Json = dict[str, Any]
SILENT_SECONDS = 30.0
"""For how long a Pod may run without an answer before that is told: its program takes a while to start."""


@dataclass(frozen=True)
class Sight:
    """What can be seen of an experiment on its cluster."""

    status: Json | None = None
    """The run's own status, as it last said it; None before it has said anything."""
    is_alive: bool = False
    """Whether the cluster still works on it, or waits to."""
    phase: str = ""
    """What it waits for."""
    trouble: str = ""
    """Why waiting will not help; of a run that is not alive any more, why it has ended."""
    seconds: float = SURE_SECONDS
    """For how long trouble must last before it is believed."""
    may_pass: bool = False
    """Whether that passes by itself at times, so that a run which has trained had better wait."""
    is_queued: bool = False
    """Whether it waits for its turn, which may take days."""
    is_heard: bool = True
    """Whether a driver tells so itself, now; else its Pod is on its way, or being replaced."""
    is_silent: bool = False
    """Whether a driver runs that has not answered this time, as happens to one that is well."""


def explained(status: Json | None, pod: Json) -> Json | None:
    """A failure with the end of a simulator beside its driver, of which the run itself only sees that it is away."""
    if status is None or status.get("state") != "failed" or not (end := end_beside(pod)):
        return status
    return status | {"reason": "; ".join(part for part in (status.get("reason"), end) if part)}


def lack(joined: Json) -> str:
    """Who is missing; empty where nobody is."""
    if all(each["here"] >= each["wanted"] for each in joined.values()):
        return ""
    return " and ".join(f"{each['here']} of {each['wanted']} {kind}s" for kind, each in joined.items()) + " are ready"


def can_do_with(kind: str, each: Json) -> bool:
    """Whether there were so many of a kind that the training has begun, and goes on with those that are left."""
    return bool(each["most"] >= (1 if kind == "worker" else each["wanted"]))


def phase_of(drivers: list[Json]) -> str:
    """What is to be said of a driver's Pods that do not answer, where nothing is wrong with them."""
    alive = [pod for pod in drivers if termination_of(pod) is None and not pod["metadata"].get("deletionTimestamp")]
    if not alive:
        return "its Pod is being replaced" if drivers else "waiting for a Pod"
    return "its Pod is starting"


def stuck(drivers: list[Json], namespace: str) -> str:
    """What is to be said where no Pod runs, and one does not end within its time; else nothing."""
    if any(is_ready_to_answer(pod) for pod in drivers):
        return ""
    for pod in drivers:
        # The time by which it was to have ended.
        limit = pod["metadata"].get("deletionTimestamp")
        if limit and time.time() - datetime.fromisoformat(limit).timestamp() > SILENT_SECONDS:
            return not_ending(pod["metadata"]["name"], namespace, pod["spec"].get("nodeName", ""))
    return ""


def not_ending(pod: str, namespace: str, node: str = "") -> str:
    """What is to be said of a Pod that was deleted and is still there: only its node can tell that it has ended."""
    where = f" on node {node}" if node else ""
    return (
        f"Pod {pod}{where} does not end, as Pods of a lost node do; when the node is really gone: "
        f"kubectl delete pod {pod} --namespace {namespace} --force"
    )


def unheard(drivers: list[Json], why: str, cluster: str) -> str:
    """What is to be said of a driver that has run for a while and is not heard; nothing while it may be starting."""
    late = [pod for pod in drivers if is_ready_to_answer(pod) and time.time() - running_since(pod) > SILENT_SECONDS]
    # Whoever is refused by the Pod itself has reached it: nothing is wrong with the way there.
    if not late or not why or "connection refused" in why:
        return ""
    return (
        f"Pod {late[-1]['metadata']['name']} runs, and the API server brings no answer of it ({why}); see whether it "
        f'reaches port {DOOR_PORT} of Pods: "steppe cluster check -c {cluster}"'
    )
