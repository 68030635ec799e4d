"""Run mode distributed as a RayJob: the KubeRay operator makes the Pods, starts Ray in them, and has the head train.

The head's Pod is the driver's: it has the claim, the labels by which the Service and the client find it, and, once the
training is submitted to it, the status server. All others only run Ray.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from steppe.platforms.kubernetes.agreement import MODULES, PREFIX, STATUS_TOKEN
from steppe.platforms.kubernetes.manifests.pod_groups import PodGroup
from steppe.platforms.kubernetes.manifests.pod_spec import command_of, pod_template
from steppe.runners.pods import DOOR_PORT, RAY_PORT, RAY_VARIABLE, resource_of, store_bytes

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan

Json = dict[str, Any]
API, KIND, PLURAL = "ray.io/v1", "RayJob", "rayjobs"
RAY_VERSION = "2.60.0"
"""The oldest Ray that Steppe runs on; KubeRay uses it only to decide whether that Ray knows tokens."""
OLDEST_KUBERAY = "1.5.1"
"""The first KubeRay that knows tokens."""
INSTALLATION = "https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/kuberay-operator-installation.html"
DASHBOARD_PORT = 8265
"""The port of Ray's dashboard, to which KubeRay submits the training and from which it gets its state."""
NODE_PORT = 6380
"""The port of the Ray of every Pod, independent of the version of Ray in its image."""
RETRIES = 2
"""How often KubeRay replaces all Pods; before that the driver itself restarts a training that dies."""


def ray_job(plan: ManifestPlan, metadata: Json) -> Json:
    """The RayJob that makes all Pods of a plan."""
    driver, *others = plan.pod_groups
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            # The operator itself submits the training, again if another head has replaced the first.
            "submissionMode": "HTTPMode",
            "entrypoint": (f"cd {MODULES} && " if plan.modules else "") + f"exec {' '.join(command_of('driver'))}",
            "shutdownAfterJobFinishes": True,
            "backoffLimit": RETRIES,
            "rayClusterSpec": {
                "rayVersion": RAY_VERSION,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {"rayStartParams": _head_start_params(plan, driver), "template": _head(plan, driver)},
                "workerGroupSpecs": [_group(plan, group) for group in others],
            },
        },
    }


def is_too_old_for(made: Json) -> bool:
    """Whether the cluster has dropped an unknown field of a RayJob, so that its Ray would accept jobs from anybody."""
    return "authOptions" not in made["spec"]["rayClusterSpec"]


def _head(plan: ManifestPlan, group: PodGroup) -> Json:
    template = _template(plan, group)
    container = template["spec"]["containers"][0]
    grace = str(template["spec"]["terminationGracePeriodSeconds"])
    container["env"] += [
        {"name": RAY_VARIABLE, "value": f"$({PREFIX}IP):{RAY_PORT}"},
        # Without this, Ray kills a job three seconds after SIGTERM, and a checkpoint may take longer to write.
        {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": grace},
    ]
    # KubeRay finds Ray's ports by these names.
    ports = {"door": DOOR_PORT, "gcs-server": RAY_PORT, "dashboard": DASHBOARD_PORT}
    container["ports"] = [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in ports.items()]
    container["readinessProbe"] = _probe(DASHBOARD_PORT)
    container["livenessProbe"] = _probe(RAY_PORT, is_patient=True)
    # SIGTERM ends Ray; the training is ended before that, while its parameter servers still answer.
    container["lifecycle"] = {"preStop": {"exec": {"command": command_of("hand-over")}}}
    for volume in template["spec"]["volumes"]:
        if volume["name"] == "tokens":
            # KubeRay makes the token of Ray itself.
            volume["secret"]["items"] = [item for item in volume["secret"]["items"] if item["key"] == STATUS_TOKEN]
    return template


def _group(plan: ManifestPlan, group: PodGroup) -> Json:
    template = _template(plan, group)
    spec, container = template["spec"], template["spec"]["containers"][0]
    # These Pods have no status server.
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "tokens"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "tokens"]
    container["readinessProbe"] = _probe(NODE_PORT)
    container["livenessProbe"] = _probe(NODE_PORT, is_patient=True)
    return {
        "groupName": group.role,
        "replicas": group.count,
        "minReplicas": group.count,
        "maxReplicas": group.count,
        "rayStartParams": _group_start_params(group),
        "template": template,
    }


def _template(plan: ManifestPlan, group: PodGroup) -> Json:
    """A Job's Pod template, in which KubeRay sets the command of the first container."""
    template = pod_template(plan, group)
    container = template["spec"]["containers"][0]
    del container["command"]
    container["env"] = [*container["env"], {"name": "RAY_worker_niceness", "value": "0"}]
    return template


def _head_start_params(plan: ManifestPlan, group: PodGroup) -> dict[str, str]:
    """The parameters of `ray start` in the driver's Pod, which has no room for workers and servers."""
    store = int(plan.spec.ray.object_store * 2**30)
    # If the dashboard is requested explicitly, Ray ends with a clear error if it is not installed.
    return _start_params(0, group.devices, store) | {"dashboard-host": "0.0.0.0", "include-dashboard": "true"}


def _group_start_params(group: PodGroup) -> dict[str, str]:
    # A shell reads this.
    room = f"'{json.dumps({resource_of(group.role): group.members})}'"
    store = store_bytes(group.memory * 2**30)
    # The Pods reserve CPUs for workers and servers; Ray only counts the room for actors.
    return _start_params(1000, group.devices, store) | {"resources": room}


def _start_params(cpus: int, gpus: int, store: int) -> dict[str, str]:
    return {
        "node-ip-address": f"${PREFIX}IP",
        "node-manager-port": str(NODE_PORT),
        "num-cpus": str(cpus),
        "num-gpus": str(gpus),
        "object-store-memory": str(store),
        "disable-usage-stats": "true",
        "log-color": "false",
    }


def _probe(port: int, *, is_patient: bool = False) -> Json:
    """A probe that needs nothing in the image; KubeRay's own probes need wget, even in workers."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 10 if is_patient else 2, "failureThreshold": 30}
