"""Constants and functions shared by the Pods of one experiment: ports, files, and Ray resources."""

from __future__ import annotations

import json
import logging
import os
import socket
import time

from steppe.files.durable import write_atomically
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.distributed import RaySpec

DOOR_PORT = 8470
"""The port of the driver's status server, which also receives requests."""
LEARNER_PORT = 8471
"""The port at which the learner of run mode async accepts workers."""
RAY_PORT = 6379
"""The port at which the driver's Ray accepts the other Pods."""
CREW_FILE_VARIABLE = "STEPPE_CREW_FILE"
"""Names the file in which a learner writes the configuration of its workers."""
JOINED_FILE_VARIABLE = "STEPPE_JOINED_FILE"
"""Names the file in which a training writes how many workers and servers have joined."""
RAY_VARIABLE = "STEPPE_POD_RAY"
"""Names the address of a Ray that already runs in the driver's Pod, if Steppe does not start it (KubeRay)."""
STORE_SHARE, LARGEST_STORE = 0.3, 2**28
"""The share of a Pod's memory for Ray's object store, and its largest size in bytes."""
LOOK_SECONDS, TELL_SECONDS = 0.5, 60.0
"""How often missing Pods are looked for, and how often that is logged."""

log = logging.getLogger(__name__)


def resource_of(kind: str) -> str:
    """The Ray resource that only Pods of this kind ("worker" or "server") have, one for each actor."""
    return f"steppe_{kind}"


def pod_resources(spec: ExperimentSpec, kind: str) -> dict[str, float]:
    """The resources that an actor of this kind asks Ray for beside CPUs and GPUs."""
    return {resource_of(kind): 1} if spec.platform == "kubernetes" else {}


def ray_of(spec: ExperimentSpec) -> RaySpec:
    """The Ray settings of a driver in a Pod: the Ray that already runs there, or one that the driver starts."""
    address = os.environ.get(RAY_VARIABLE) or None
    return spec.ray.model_copy(update={"port": RAY_PORT if address is None else None, "address": address})


def is_listening(host: str, port: int, seconds: float) -> bool:
    """Whether a server accepts a connection within `seconds`."""
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError:
        return False
    return True


def store_bytes(memory: float) -> int:
    """The size of Ray's object store in a Pod with this memory, in bytes."""
    return int(min(memory * STORE_SHARE, LARGEST_STORE))


class RollCall:
    """Writes how many workers and servers have joined, for the status server of the driver's Pod."""

    def __init__(self) -> None:
        self._noted: dict[str, dict[str, int]] = {}

    def note(self, kind: str, here: int, wanted: int) -> None:
        """Records the current number of a kind, "worker" or "server", and the largest so far."""
        before = self._noted.get(kind, {})
        now = {"here": here, "wanted": wanted, "most": max(here, before.get("most", 0))}
        file = os.environ.get(JOINED_FILE_VARIABLE)
        if now != before and file:
            self._noted[kind] = now
            write_atomically(file, json.dumps(self._noted))


def wait_for_pods(spec: ExperimentSpec, roll: RollCall) -> None:
    """Waits for the Pods of all parameter servers and of one worker, which a cluster may be slow to start."""
    import ray

    needed = {"server": spec.num_parameter_servers, "worker": 1}
    wanted = needed | {"worker": spec.num_workers}
    told = time.monotonic()
    while True:
        resources = ray.cluster_resources()
        there = {kind: int(resources.get(resource_of(kind), 0)) for kind in needed}
        for kind, count in there.items():
            roll.note(kind, min(count, wanted[kind]), wanted[kind])
        missing = [kind for kind, count in needed.items() if there[kind] < count]
        if not missing:
            return
        if time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            have = ", ".join(f"{there[kind]} of {needed[kind]} {kind}s" for kind in missing)
            log.warning("waiting for Pods: %s have joined", have)
        time.sleep(LOOK_SECONDS)
