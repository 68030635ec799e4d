"""Stands in for the KubeRay operator, which cannot be fetched here: makes a RayJob's Pods, and has the head train.

As far as Steppe depends on it, it does what KubeRay does: the same command in containers, its own token, a Service for
the head, a new Pod for one that is gone, the order given again to a new head, a finalizer. Two things differ: the order
comes by `kubectl exec` and not by Ray's dashboard, which test images lack, and Pods belong to the RayJob itself.
"""

from __future__ import annotations

import contextlib
import copy
import json
import secrets
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from kube_testbed import Testbed

Json = dict[str, Any]
CRD = "rayjobs.ray.io"
FINALIZER = "ray.io/rayjob-finalizer"
LOOK_SECONDS = 1.0
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
WITHOUT_TOKENS = {
    "type": "object",
    "properties": {"rayVersion": {"type": "string"}, "headGroupSpec": ANYTHING},
}
"""A rayClusterSpec as KubeRay had it before it knew of tokens; the server drops whatever else is in one."""


@contextlib.contextmanager
def ray_jobs(testbed: Testbed, cluster_spec: Json = ANYTHING) -> Iterator[None]:
    """A cluster that knows RayJobs."""
    spec = {"type": "object", "properties": {"rayClusterSpec": cluster_spec}}
    schema = {"type": "object", "properties": {"spec": spec | {"x-kubernetes-preserve-unknown-fields": True}}}
    schema["properties"]["status"] = ANYTHING
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
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
        # Of a test that has failed there may be some left that no operator lets go any more.
        for job in json.loads(testbed.kubectl("get", "rayjobs", "--all-namespaces", "-o", "json"))["items"]:
            about = job["metadata"]
            words = ("patch", "rayjob", about["name"], "-n", about["namespace"], "--type=merge")
            testbed.kubectl(*words, "-p", json.dumps({"metadata": {"finalizers": None}}), check=False)
        testbed.kubectl("delete", "crd", CRD, "--timeout=60s")


class RayOperator:
    """Tends the RayJobs of one namespace, in a thread, while its context lasts."""

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
            # Somebody else may delete an object between two looks.
            with contextlib.suppress(AssertionError):
                for job in self._testbed.objects("rayjobs", self._namespace):
                    self._tend(job)

    def _tend(self, job: Json) -> None:
        name, about = job["metadata"]["name"], job["metadata"]
        if about.get("deletionTimestamp"):
            if FINALIZER in about.get("finalizers", []):
                self._patch(name, {"metadata": {"finalizers": None}})
            return
        phase = job.get("status", {}).get("jobDeploymentStatus")
        if phase is None:
            self._patch(name, {"metadata": {"finalizers": [FINALIZER]}, "status": {"jobDeploymentStatus": "New"}})
            self._apply(job, _secret(name), _service(name))
            self._patch(name, {"status": {"jobDeploymentStatus": "Initializing"}})
        elif phase in ("Complete", "Failed"):
            self._testbed.kubectl(
                "delete", "pods", "-n", self._namespace, "-l", f"ray.io/cluster={name}", "--wait=false"
            )
        else:
            self._tend_pods(job)

    def _tend_pods(self, job: Json) -> None:
        name, cluster = job["metadata"]["name"], job["spec"]["rayClusterSpec"]
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
        # A container that has begun anew knows nothing of the order, no more than one of another Pod.
        container = head["status"]["containerStatuses"][0]["containerID"]
        order = self._orders.get(container)
        if order is None:
            words = ["exec", head["metadata"]["name"], "-n", self._namespace, "-c", "driver", "--", "/bin/sh", "-c"]
            command = ["kubectl", f"--kubeconfig={self._testbed.kubeconfig}", *words, job["spec"]["entrypoint"]]
            self._orders[container] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._patch(name, {"status": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}})
        elif order.poll() in (0, 3):
            status = ("Complete", "SUCCEEDED") if order.returncode == 0 else ("Failed", "FAILED")
            self._patch(name, {"status": dict(zip(("jobDeploymentStatus", "jobStatus"), status, strict=True))})
        elif order.returncode is not None:
            # It was cut off, or has ended without a word.
            del self._orders[container]

    def _apply(self, job: Json, *made: Json) -> None:
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob"} | {key: job["metadata"][key] for key in ("name", "uid")}
        for each in made:
            each["metadata"] = {**each["metadata"], "ownerReferences": [owner]}
        self._testbed.apply(*made, namespace=self._namespace)

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
