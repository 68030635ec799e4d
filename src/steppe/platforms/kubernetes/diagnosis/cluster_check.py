"""`steppe cluster check`: whether a cluster can run experiments, and how to fix what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.client.workloads import has_kuberay
from steppe.platforms.kubernetes.diagnosis.storage_check import ClusterFinding, check_storage_class, storage_classes
from steppe.platforms.kubernetes.diagnosis.trial_pod import TRIAL_SECONDS, run_trial
from steppe.platforms.kubernetes.manifests import permissions
from steppe.platforms.kubernetes.manifests.kuberay import INSTALLATION
from steppe.platforms.kubernetes.manifests.pod_groups import GPU

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable
    from steppe.specs.running.kubernetes import Engine

OLDEST = (1, 20)


def check(
    kube: Kube,
    reachable: Reachable,
    tell: Callable[[str], None],
    *,
    has_trial: bool = True,
    seconds: float = TRIAL_SECONDS,
) -> Iterator[ClusterFinding]:
    """Checks one thing after the other; the last check is a trial Pod with results, which are removed again."""
    tell("asks the API server")
    for needed in (_check_api_server, _check_namespace):
        yield (found := needed(kube))
        if found.outcome == "failed":
            return
    tell("asks what is allowed")
    pods = reachable.spec.kubernetes
    yield (allowed := _check_permissions(kube, pods.engine, pods.network_policy is not False))
    if pods.engine == "kuberay":
        yield _check_kuberay(kube)
    classes = storage_classes(kube)
    if (gpus := _check_gpus(kube, reachable)) is not None:
        yield gpus
    if has_trial and allowed.outcome != "failed":
        yield from run_trial(kube, reachable, classes, tell, seconds)
    elif pods.results is None:
        yield check_storage_class(classes, pods.storage_class)
    else:
        sentence = f"results are kept in {pods.results}; a trial Pod would show whether they can be"
        yield ClusterFinding("storage", "unknown", sentence)


def _check_api_server(kube: Kube) -> ClusterFinding:
    try:
        answer = kube.ask("GET", "/version/")
        if answer.code != 200:
            raise kube.refused(answer, "its version")
        about = json.loads(answer.body)
    except ClusterError as error:
        return ClusterFinding("API server", "failed", str(error))
    version = str(about.get("gitVersion", "?"))
    number = tuple(int("".join(filter(str.isdigit, str(about.get(part, "0")))) or 0) for part in ("major", "minor"))
    if number < OLDEST:
        fix = "upgrade the cluster"
        return ClusterFinding(
            "API server", "failed", f"Kubernetes {version} is older than 1.20, the oldest that works", fix
        )
    return ClusterFinding("API server", "ok", f"Kubernetes {version} answers")


def _check_namespace(kube: Kube) -> ClusterFinding:
    answer = kube.ask("GET", f"/api/v1/namespaces/{kube.namespace}")
    if answer.code == 200:
        if json.loads(answer.body).get("status", {}).get("phase") == "Terminating":
            return ClusterFinding(
                "namespace", "failed", f'namespace "{kube.namespace}" is being deleted', "take another one"
            )
        return ClusterFinding("namespace", "ok", f'namespace "{kube.namespace}" is there')
    if answer.code == 404:
        fix = f"kubectl create namespace {kube.namespace}"
        return ClusterFinding("namespace", "failed", f'there is no namespace "{kube.namespace}"', fix)
    if answer.code == 401:
        return ClusterFinding("namespace", "failed", str(kube.refused(answer, "the namespace")))
    return ClusterFinding(
        "namespace", "unknown", f'these credentials may not look at namespace "{kube.namespace}" itself'
    )


def _check_permissions(kube: Kube, engine: Engine | None, has_policy: bool) -> ClusterFinding:
    refused = []
    for verb, resource, group in permissions.needed(engine, has_policy):
        name, _, part = resource.partition("/")
        attributes = {"namespace": kube.namespace, "verb": verb, "group": group, "resource": name, "subresource": part}
        question = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = kube.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question)
        if answer.code >= 400:
            return ClusterFinding(
                "permissions", "unknown", f"cannot be asked for: {kube.refused(answer, 'permissions')}"
            )
        if not json.loads(answer.body)["status"].get("allowed"):
            refused.append(f"{verb} {resource}")
    if refused:
        fix = permissions.way_to_get_it(kube.name, kube.namespace)
        return ClusterFinding("permissions", "failed", f"these credentials may not {', '.join(refused)}", fix)
    return ClusterFinding(
        "permissions", "ok", f"all {len(permissions.needed(engine, has_policy))} that are needed are granted"
    )


def _check_kuberay(kube: Kube) -> ClusterFinding:
    """Whether KubeRay is installed; only a RayJob shows whether it is new enough."""
    match has_kuberay(kube):
        case True:
            return ClusterFinding("KubeRay", "ok", "RayJobs are known")
        case False:
            fix = f"install it ({INSTALLATION}), or leave kubernetes.engine out"
            return ClusterFinding("KubeRay", "failed", "it is not installed, and kubernetes.engine asks for it", fix)
    return ClusterFinding("KubeRay", "unknown", "these credentials may not ask whether it is installed")


def _check_gpus(kube: Kube, reachable: Reachable) -> ClusterFinding | None:
    """Whether nodes offer GPUs; None if the cluster's spec asks for none."""
    spec = reachable.spec
    wanted = spec.gpus_per_node or max(
        pod.gpus or 0.0 for pod in (spec.kubernetes.driver, spec.kubernetes.worker, spec.kubernetes.server)
    )
    if not wanted:
        return None
    answer = kube.ask("GET", "/api/v1/nodes")
    if answer.code != 200:
        return ClusterFinding("GPUs", "unknown", "these credentials may not list nodes")
    nodes = json.loads(answer.body)["items"]
    found = sum(int(node["status"].get("allocatable", {}).get(GPU, 0)) for node in nodes)
    if not found:
        fix = (
            "install NVIDIA's device plugin: kubectl apply -f "
            "https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/main/deployments/static/nvidia-device-plugin.yml"
        )
        return ClusterFinding("GPUs", "failed", f"none of the {len(nodes)} nodes offers {GPU}", fix)
    parts = f" (parts that {spec.clients_per_gpu} share)" if spec.gpu_sharing else ""
    return ClusterFinding("GPUs", "ok", f"the nodes offer {found}{parts}")
