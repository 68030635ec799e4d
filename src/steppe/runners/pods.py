"""What the Pods of one experiment agree on: ports, and which of them hold which Ray actors."""

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
"""Where the driver tells how it is going, and hears what is asked of it."""
LEARNER_PORT = 8471
"""Where the learner of run mode async takes in workers."""
RAY_PORT = 6379
"""Where the driver's Ray takes in the other Pods."""
CREW_FILE_VARIABLE = "STEPPE_CREW_FILE"
"""Names the file in which a learner writes down what its workers must know."""
JOINED_FILE_VARIABLE = "STEPPE_JOINED_FILE"
"""Names the file in which a training writes down how many have joined it."""
RAY_VARIABLE = "STEPPE_POD_RAY"
"""Names the address of a Ray that runs in the driver's Pod already, since somebody else starts it."""
STORE_SHARE, LARGEST_STORE = 0.3, 2**28
"""How much of the memory of a worker's or server's Pod Ray may keep messages in, and how many bytes at most."""
LOOK_SECONDS, TELL_SECONDS = 0.5, 60.0
"""How often Pods that are missing are looked for, and how often that is told."""

log = logging.getLogger(__name__)


def resource_of(kind: str) -> str:
    """Ray's name for room for one actor of this kind, "worker" or "server", which only the Pods of that kind have."""
    return f"steppe_{kind}"


def pod_resources(spec: ExperimentSpec, kind: str) -> dict[str, float]:
    """What an actor of this kind asks Ray for, beside CPUs and GPUs."""
    return {resource_of(kind): 1} if spec.platform == "kubernetes" else {}


def ray_of(spec: ExperimentSpec) -> RaySpec:
    """The Ray of a driver and the other Pods of its experiment: one that is there, or one that the driver starts."""
    address = os.environ.get(RAY_VARIABLE) or None
    return spec.ray.model_copy(update={"port": RAY_PORT if address is None else None, "address": address})


def is_listening(host: str, port: int, seconds: float) -> bool:
    """Whether somebody listens there, who takes no longer than that to answer."""
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError:
        return False
    return True


def store_bytes(memory: float) -> int:
    """How many bytes of a Pod's memory Ray may keep messages in."""
    return int(min(memory * STORE_SHARE, LARGEST_STORE))


class RollCall:
    """Writes down who has joined the training, for the driver's Pod to tell."""

    def __init__(self) -> None:
        self._noted: dict[str, dict[str, int]] = {}

    def note(self, kind: str, here: int, wanted: int) -> None:
        """So many of this kind, "worker" or "server", are here now; the most that ever were are remembered."""
        before = self._noted.get(kind, {})
        now = {"here": here, "wanted": wanted, "most": max(here, before.get("most", 0))}
        file = os.environ.get(JOINED_FILE_VARIABLE)
        if now != before and file:
            self._noted[kind] = now
            write_atomically(file, json.dumps(self._noted))


def wait_for_pods(spec: ExperimentSpec, roll: RollCall) -> None:
    """Waits until there is room for every parameter server and for a worker: a cluster may take its time for Pods."""
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
