"""A fake of the KubeRay operator, which cannot be downloaded here: makes a RayJob's Pods, and starts the training.

It behaves as KubeRay does in everything that Steppe depends on: it accepts the same fields and refuses the same
mistakes, runs the same command in containers with its own token, makes a Service for the head, replaces Pods, submits
the training again to a new head, has a finalizer, and writes the status subresource. Two things differ: the training is
submitted by `kubectl exec` instead of Ray's dashboard, which test images lack, and Pods are owned by the RayJob itself.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import secrets
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from kube_testbed import Testbed

from steppe.platforms.kubernetes.agreement import FAILED_FOR_GOOD

Json = dict[str, Any]
CRD = "rayjobs.ray.io"
API = "/apis/ray.io/v1/namespaces"
FINALIZER = "ray.io/rayjob-finalizer"
LOOK_SECONDS = 1.0
SUFFIX = 5
"""The number of characters that KubeRay adds to a RayJob's name to name its RayCluster."""
LONGEST_NAME = 47
OLDEST_RAY_WITH_TOKENS = (2, 52, 0)
OWN_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")
"""Parameters of Ray that KubeRay has fields for; to set both is refused."""

TEXT, TRUTH, WHOLE = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "format": "int32"}
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


# Kubernetes validates a Pod's own fields when the Pod is made, here as with KubeRay.
_TEMPLATE = _object(
    {"metadata": _object({"annotations": TEXTS, "labels": TEXTS, "name": TEXT, "namespace": TEXT}), "spec": ANYTHING}
)
_GROUP = {"rayStartParams": TEXTS, "resources": TEXTS, "labels": TEXTS, "template": _TEMPLATE}
_WORKER_GROUP = _GROUP | {
    "groupName": TEXT,
    "replicas": WHOLE | {"default": 0},
    "minReplicas": WHOLE | {"default": 0},
    "maxReplicas": WHOLE | {"default": 2**31 - 1},
    "numOfHosts": WHOLE | {"default": 1},
    "suspend": TRUTH,
}
CLUSTER_FIELDS: Json = {
    "rayVersion": TEXT,
    "authOptions": _object({"mode": TEXT | {"enum": ["disabled", "token"]}}),
    "enableInTreeAutoscaling": TRUTH,
    "suspend": TRUTH,
    "headGroupSpec": _object(_GROUP, "template"),
    "workerGroupSpecs": {
        "type": "array",
        "items": _object(_WORKER_GROUP, "groupName", "minReplicas", "maxReplicas", "template"),
    },
}
"""The fields of a RayCluster that concern Steppe; a server drops all others."""
WITHOUT_TOKENS = {name: field for name, field in CLUSTER_FIELDS.items() if name != "authOptions"}
"""The same fields in a KubeRay from before tokens."""
_CONDITION = _object(
    dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), TEXT),
    *("type", "status", "reason", "message", "lastTransitionTime"),
)
STATUS = _object(
    dict.fromkeys(("jobDeploymentStatus", "jobStatus", "message", "reason", "jobId", "rayClusterName"), TEXT)
    | {"rayClusterStatus": _object({"conditions": {"type": "array", "items": _CONDITION}}), "failed": WHOLE}
)


def schema_of(cluster_fields: Json = CLUSTER_FIELDS) -> Json:
    """The schema by which a server validates a RayJob."""
    spec = {
        "submissionMode": TEXT | {"default": "K8sJobMode"},
        "entrypoint": TEXT,
        "shutdownAfterJobFinishes": TRUTH,
        "ttlSecondsAfterFinished": WHOLE | {"default": 0},
        "backoffLimit": WHOLE | {"default": 0},
        "activeDeadlineSeconds": WHOLE,
        "suspend": TRUTH,
        "rayClusterSpec": _object(cluster_fields, "headGroupSpec"),
    }
    return _object({"spec": _object(spec), "status": STATUS})


def refusal_of(job: Json) -> str | None:
    """The mistake that the operator finds in a RayJob that the server has accepted, or None."""
    name, spec = job["metadata"]["name"], job["spec"]
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        return f"{name} cannot be the name of a RayJob"
    if spec.get("submissionMode") not in ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"):
        return "it is not known how to give the order"
    shuts_down = spec.get("shutdownAfterJobFinishes", False)
    if (spec.get("suspend") or spec.get("ttlSecondsAfterFinished")) and not shuts_down:
        return "suspend and ttlSecondsAfterFinished need shutdownAfterJobFinishes"
    if spec.get("backoffLimit", 0) < 0 or spec.get("activeDeadlineSeconds", 1) <= 0:
        return "a limit is too small"
    cluster = spec.get("rayClusterSpec")
    if cluster is None:
        return "there is no rayClusterSpec"
    for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())):
        words = group.get("rayStartParams", {})
        if not group["template"].get("spec", {}).get("containers"):
            return "a group has no container"
        if "labels" in words or (group.get("resources") and any(words.get(word) for word in OWN_RESOURCES)):
            return "rayStartParams say what has a field of its own"
    if cluster.get("authOptions", {}).get("mode") == "token":
        version = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?.*", cluster.get("rayVersion", ""))
        if version is None or tuple(int(part or 0) for part in version.groups()) < OLDEST_RAY_WITH_TOKENS:
            return "that Ray knows no tokens"
    return None


@contextlib.contextmanager
def ray_jobs(testbed: Testbed, cluster_fields: Json = CLUSTER_FIELDS) -> Iterator[None]:
    """Installs the definition of RayJobs on a cluster for the duration of the block."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema_of(cluster_fields)},
        "subresources": {"status": {}},
    }
    names = {"kind": "RayJob", "listKind": "RayJobList", "plural": "rayjobs", "singular": "rayjob"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD},
        "spec": {"group": "ray.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    testbed.apply(definition)
    testbed.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")
    try:
        yield
    finally:
        # A failed test may leave RayJobs whose finalizer no operator removes any more.
        for job in json.loads(testbed.kubectl("get", "rayjobs", "--all-namespaces", "-o", "json"))["items"]:
            about = job["metadata"]
            words = ("patch", "rayjob", about["name"], "-n", about["namespace"], "--type=merge")
            testbed.kubectl(*words, "-p", json.dumps({"metadata": {"finalizers": None}}), check=False)
        testbed.kubectl("delete", "crd", CRD, "--timeout=60s")


class RayOperator:
    """Handles the RayJobs of one namespace in a thread, as long as its context lasts."""

    def __init__(self, testbed: Testbed, namespace: str) -> None:
        self._testbed, self._namespace = testbed, namespace
        self._orders: dict[str, subprocess.Popen[bytes]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> RayOperator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for order in self._orders.values():
            order.kill()
            order.wait()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            # An object may be deleted by others between two rounds.
            with contextlib.suppress(AssertionError):
                for job in self._testbed.objects("rayjobs", self._namespace):
                    self._tend(job)

    def _tend(self, job: Json) -> None:
        name, about = job["metadata"]["name"], job["metadata"]
        if about.get("deletionTimestamp"):
            if FINALIZER in about.get("finalizers", []):
                self._patch(name, {"metadata": {"finalizers": None}})
            return
        status = job.get("status", {})
        # A RayJob has no phase if it is new or starts again.
        phase = status.get("jobDeploymentStatus", "")
        if not phase and (refusal := refusal_of(job)) is not None:
            failed = "ValidationFailed"
            self._note(name, jobDeploymentStatus=failed, reason=failed, message=refusal)
        elif not phase:
            self._patch(name, {"metadata": {"finalizers": [FINALIZER]}})
            cluster = f"{name}-{secrets.token_hex(SUFFIX)[:SUFFIX]}"
            self._note(name, jobDeploymentStatus="Initializing", rayClusterName=cluster)
            self._apply(job, _secret(cluster), _service(cluster))
        elif phase in ("Complete", "Failed"):
            self._end_pods(status["rayClusterName"])
        elif phase == "Retrying":
            if not self._end_pods(status["rayClusterName"]):
                self._note(name, jobDeploymentStatus="", jobStatus="", rayClusterName="")
        elif phase != "ValidationFailed":
            self._tend_pods(job)

    def _end_pods(self, cluster: str) -> list[Json]:
        """Deletes all Pods of a Ray; returns those that still exist."""
        selector = f"ray.io/cluster={cluster}"
        self._testbed.kubectl("delete", "pods", "-n", self._namespace, "--wait=false", "-l", selector)
        return self._testbed.objects("pods", self._namespace, selector)

    def _tend_pods(self, job: Json) -> None:
        name, cluster = job["status"]["rayClusterName"], job["spec"]["rayClusterSpec"]
        there = {
            pod["metadata"]["name"]: pod
            for pod in self._testbed.objects("pods", self._namespace, f"ray.io/cluster={name}")
        }
        wanted = {f"{name}-head": _pod(name, cluster["headGroupSpec"], "ray start --head")}
        for group in cluster["workerGroupSpecs"]:
            for number in range(group["replicas"]):
                start = f"ray start --address={name}-head-svc:6379"
                wanted[f"{name}-{group['groupName']}-{number}"] = _pod(name, group, start)
        for pod_name, pod in wanted.items():
            if pod_name not in there:
                pod["metadata"] = {**pod["metadata"], "name": pod_name}
                self._apply(job, pod)
        if all(pod_name in there and _is_ready(there[pod_name]) for pod_name in wanted):
            self._order(job, there[f"{name}-head"])

    def _order(self, job: Json, head: Json) -> None:
        name = job["metadata"]["name"]
        # The training must be submitted again to a restarted container, as to a new Pod.
        container = head["status"]["containerStatuses"][0]["containerID"]
        order = self._orders.get(container)
        if order is None:
            words = ["exec", head["metadata"]["name"], "-n", self._namespace, "-c", "driver", "--", "/bin/sh", "-c"]
            command = ["kubectl", f"--kubeconfig={self._testbed.kubeconfig}", *words, job["spec"]["entrypoint"]]
            self._orders[container] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._note(name, jobDeploymentStatus="Running", jobStatus="RUNNING")
        elif order.poll() == 0:
            self._note(name, jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
        elif order.returncode == FAILED_FOR_GOOD:
            failed = job["status"].get("failed", 0) + 1
            phase = "Retrying" if failed <= job["spec"]["backoffLimit"] else "Failed"
            self._note(name, jobDeploymentStatus=phase, jobStatus="FAILED", reason="AppFailed", failed=failed)
        elif order.returncode is not None:
            # The connection was cut, or the training ended without a report.
            del self._orders[container]

    def _apply(self, job: Json, *made: Json) -> None:
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob"} | {key: job["metadata"][key] for key in ("name", "uid")}
        for each in made:
            each["metadata"] = {**each["metadata"], "ownerReferences": [owner]}
        self._testbed.apply(*made, namespace=self._namespace)

    def _note(self, name: str, **status: Any) -> None:
        """Updates the status subresource."""
        path = f"{API}/{self._namespace}/rayjobs/{name}"
        job = json.loads(self._testbed.kubectl("get", "--raw", path))
        job["status"] = {word: value for word, value in (job.get("status", {}) | status).items() if value != ""}
        self._testbed.kubectl("replace", "--raw", f"{path}/status", "-f", "-", given=json.dumps(job))

    def _patch(self, name: str, changes: Json) -> None:
        self._testbed.kubectl("patch", "rayjob", name, "-n", self._namespace, "--type=merge", "-p", json.dumps(changes))


def _pod(cluster: str, group: Json, start: str) -> Json:
    """A Pod of a group, whose first container starts Ray."""
    template = copy.deepcopy(group["template"])
    is_head = "groupName" not in group
    words = group["rayStartParams"] | ({"include-dashboard": "false"} if is_head else {})
    line = " ".join(f"--{name}" if value == "true" else f"--{name}={value}" for name, value in sorted(words.items()))
    container = template["spec"]["containers"][0]
    container |= {"command": ["/bin/bash", "-c", "--"], "args": [f"ulimit -n 65536; {start} {line} --block"]}
    if is_head:
        container["readinessProbe"]["tcpSocket"] = {"port": 6379}
    token = {"secretKeyRef": {"name": cluster, "key": "auth_token"}}
    container["env"] += [{"name": "RAY_AUTH_MODE", "value": "token"}, {"name": "RAY_AUTH_TOKEN", "valueFrom": token}]
    template["metadata"]["labels"] |= {"ray.io/cluster": cluster, "ray.io/node-type": "head" if is_head else "worker"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]}


def _secret(name: str) -> Json:
    data = {"auth_token": secrets.token_hex(32)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def _service(name: str) -> Json:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"ray.io/cluster": name, "ray.io/node-type": "head"},
        "ports": [{"name": "gcs-server", "port": 6379, "protocol": "TCP"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{name}-head-svc"}, "spec": spec}


def _is_ready(pod: Json) -> bool:
    states = pod.get("status", {}).get("containerStatuses") or []
    return not pod["metadata"].get("deletionTimestamp") and bool(states) and all(each["ready"] for each in states)
