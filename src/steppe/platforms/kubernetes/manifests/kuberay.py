"""Run mode distributed as a RayJob: the KubeRay operator makes the Pods, starts Ray in them, and has one of them train.

The head's Pod is the driver's: it has the claim, the labels by which the Service and the client find it, and, once it
is ordered to train, the door. All others only run Ray.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from steppe.platforms.kubernetes.agreement import DOOR_TOKEN, MODULES, PREFIX
from steppe.platforms.kubernetes.manifests.pod_spec import command_of, pod_template
from steppe.platforms.kubernetes.manifests.shapes import Crowd
from steppe.runners.pods import DOOR_PORT, RAY_PORT, RAY_VARIABLE, resource_of, store_bytes

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.manifests.rendering import Plan

Json = dict[str, Any]
API, KIND, PLURAL = "ray.io/v1", "RayJob", "rayjobs"
RAY_VERSION = "2.60.0"
"""The oldest Ray that Steppe runs on; KubeRay only asks whether that is new enough for tokens."""
OLDEST_KUBERAY = "1.5.1"
"""The first that knows tokens."""
INSTALLATION = "https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/kuberay-operator-installation.html"
DASHBOARD_PORT = 8265
"""Where KubeRay gives its orders to Ray, and asks how they are going."""
NODE_PORT = 6380
"""Where the Ray of every Pod listens, whatever its image has of Ray."""
RETRIES = 2
"""How often KubeRay makes all Pods anew: a driver whose training dies begins it again by itself."""
NO_DASHBOARD = "Cannot include dashboard"
"""What Ray says where it is installed without its dashboard."""


def ray_job(plan: Plan, metadata: Json) -> Json:
    """The RayJob that makes all Pods of a plan."""
    driver, *others = plan.crowds
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            # The operator itself gives the order, and gives it again to a head that has replaced another.
            "submissionMode": "HTTPMode",
            "entrypoint": (f"cd {MODULES} && " if plan.modules else "") + f"exec {' '.join(command_of('driver'))}",
            "shutdownAfterJobFinishes": True,
            "backoffLimit": RETRIES,
            "rayClusterSpec": {
                "rayVersion": RAY_VERSION,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {"rayStartParams": _head_words(plan, driver), "template": _head(plan, driver)},
                "workerGroupSpecs": [_group(plan, crowd) for crowd in others],
            },
        },
    }


def is_too_old_for(made: Json) -> bool:
    """Whether the cluster has dropped from a RayJob what it does not know, and Ray would take orders from anybody."""
    return "authOptions" not in made["spec"]["rayClusterSpec"]


class Standing(NamedTuple):
    """How a RayJob is doing."""

    is_over: bool
    """Whether KubeRay will do nothing more about it."""
    has_succeeded: bool
    """Whether its driver has ended as it should: completed, or paused or stopped as asked."""
    sentence: str
    """What it waits for, or why it has failed."""
    is_queued: bool = False
    """Whether it waits for its turn."""


def standing_of(job: Json) -> Standing:
    """What a RayJob's status says."""
    status = job.get("status") or {}
    phase, reason = status.get("jobDeploymentStatus", ""), _plain(status.get("message", ""))
    name = job["metadata"]["name"]
    match phase:
        case "Complete" | "Failed" | "ValidationFailed":
            succeeded = status.get("jobStatus") == "SUCCEEDED"
            why = reason or _plain(status.get("reason", "")) or f"its state is {status.get('jobStatus') or phase}"
            return Standing(True, succeeded, f"RayJob {name} has ended: {why}")
        case "":
            return Standing(False, False, f"RayJob {name} waits for the KubeRay operator to take it up")
        case "Suspended" | "Suspending":
            return Standing(False, False, f"RayJob {name} waits for its turn, as its queue says", True)
        case "Retrying":
            return Standing(False, False, f"RayJob {name} has failed, and KubeRay makes its Pods anew")
    conditions = (status.get("rayClusterStatus") or {}).get("conditions") or []
    for condition in conditions:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return Standing(False, False, f"KubeRay cannot make a Pod: {_plain(condition.get('message', ''))}")
    return Standing(False, False, "")


def _head(plan: Plan, crowd: Crowd) -> Json:
    template = _template(plan, crowd)
    container = template["spec"]["containers"][0]
    grace = str(template["spec"]["terminationGracePeriodSeconds"])
    container["env"] += [
        {"name": RAY_VARIABLE, "value": f"$({PREFIX}IP):{RAY_PORT}"},
        # Ray ends what it was ordered three seconds after asking it to end, which may still have a checkpoint to write.
        {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": grace},
    ]
    # KubeRay finds Ray's ports by these names.
    ports = {"door": DOOR_PORT, "gcs-server": RAY_PORT, "dashboard": DASHBOARD_PORT}
    container["ports"] = [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in ports.items()]
    container["readinessProbe"] = _probe(DASHBOARD_PORT)
    container["livenessProbe"] = _probe(RAY_PORT, patient=True)
    # SIGTERM ends Ray; the training is asked before that, while there still is a Ray to ask for parameters.
    container["lifecycle"] = {"preStop": {"exec": {"command": command_of("hand-over")}}}
    for volume in template["spec"]["volumes"]:
        if volume["name"] == "tokens":
            # Ray's token is KubeRay's.
            volume["secret"]["items"] = [item for item in volume["secret"]["items"] if item["key"] == DOOR_TOKEN]
    return template


def _group(plan: Plan, crowd: Crowd) -> Json:
    template = _template(plan, crowd)
    spec, container = template["spec"], template["spec"]["containers"][0]
    # Nobody asks for the door there.
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "tokens"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "tokens"]
    container["readinessProbe"] = _probe(NODE_PORT)
    container["livenessProbe"] = _probe(NODE_PORT, patient=True)
    return {
        "groupName": crowd.role,
        "replicas": crowd.count,
        "minReplicas": crowd.count,
        "maxReplicas": crowd.count,
        "rayStartParams": _group_words(crowd),
        "template": template,
    }


def _template(plan: Plan, crowd: Crowd) -> Json:
    """As a Job's, but KubeRay says what the first container runs."""
    template = pod_template(plan, crowd)
    container = template["spec"]["containers"][0]
    del container["command"]
    container["env"] = [*container["env"], {"name": "RAY_worker_niceness", "value": "0"}]
    return template


def _head_words(plan: Plan, crowd: Crowd) -> dict[str, str]:
    """How Ray is started in the driver's Pod, where no worker or server is to be."""
    store = int(plan.spec.ray.object_store * 2**30)
    # Asked for by name, a dashboard that is not installed is an error that says so.
    return _words(0, crowd.devices, store) | {"dashboard-host": "0.0.0.0", "include-dashboard": "true"}


def _group_words(crowd: Crowd) -> dict[str, str]:
    # A shell reads this.
    room = f"'{json.dumps({resource_of(crowd.role): crowd.members})}'"
    store = store_bytes(crowd.memory * 2**30)
    # What workers and servers take is promised by their Pods: Ray only counts places.
    return _words(1000, crowd.devices, store) | {"resources": room}


def _words(cpus: int, gpus: int, store: int) -> dict[str, str]:
    return {
        "node-ip-address": f"${PREFIX}IP",
        "node-manager-port": str(NODE_PORT),
        "num-cpus": str(cpus),
        "num-gpus": str(gpus),
        "object-store-memory": str(store),
        "disable-usage-stats": "true",
        "log-color": "false",
    }


def _probe(port: int, *, patient: bool = False) -> Json:
    """Needs nothing in the image, where KubeRay's own want wget in a worker's too."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 10 if patient else 2, "failureThreshold": 30}


def _plain(text: str) -> str:
    return " ".join(str(text).split()).rstrip(".")[:500]
