"""Whether a cluster can run experiments, and how to fix what is missing."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.agreement import PREFIX, RESULTS, TERMINATION_LOG
from steppe.platforms.kubernetes.client.asking import DOOR_SECONDS, FORBIDDEN
from steppe.platforms.kubernetes.client.engines import has_kuberay
from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeError
from steppe.platforms.kubernetes.diagnosis.patience import NotComing, watch
from steppe.platforms.kubernetes.diagnosis.waiting import is_ready_to_answer, termination_of
from steppe.platforms.kubernetes.manifests import naming, permissions, rendering
from steppe.platforms.kubernetes.manifests.kuberay import INSTALLATION
from steppe.platforms.kubernetes.manifests.pod_spec import pod_template
from steppe.platforms.kubernetes.manifests.rendering import Plan
from steppe.platforms.kubernetes.manifests.shapes import GPU
from steppe.runners.pods import DOOR_PORT

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable
    from steppe.specs.running.kubernetes import Engine

Json = dict[str, Any]
Outcome = Literal["ok", "failed", "unknown"]
OLDEST = (1, 20)
TRIAL_ROLE = "driver"
TRIAL_SECONDS = 300.0
"""How long a trial Pod may take, which may be the first to pull a large image."""
SETTLING_SECONDS = 20.0
"""For how long a Pod may find no node before that is taken for more than a passing lack of room."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
STORE_FAILED, NOT_ASKED = 4, 5
"""The exit codes of a trial Pod whose object storage does not do what results need, and of one that nobody reached."""
ASK_SECONDS = 60.0
"""For how long a trial Pod waits to be asked something."""
# What a driver needs of its image and its disk, in one line each.
SCRIPT = f"""
import pathlib, steppe.experiments.process.run
file = pathlib.Path("{RESULTS}/trial")
file.write_text("steppe")
assert file.read_text() == "steppe"
pathlib.Path("{TERMINATION_LOG}").write_text("fine")
"""
# And of its object storage, where results are kept there.
STORE_SCRIPT = f"""
import os, sys
from steppe.errors import SteppeError
from steppe.platforms.kubernetes.storage.object_store import ObjectStore
try:
    store = ObjectStore(os.environ["{PREFIX}STORE"] + "/" + os.environ["{PREFIX}HEAD"])
    store.write("trial", b"steppe")
    assert store.sizes() == {{"trial": 6}} and store.erase() == 1
except SteppeError as error:
    pathlib.Path("{TERMINATION_LOG}").write_text(str(error))
    sys.exit({STORE_FAILED})
"""
# And of the way to its door, which tells a client how an experiment is going.
DOOR_SCRIPT = f"""
import http.server, sys, time
class Door(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.is_asked = True
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(("", {DOOR_PORT}), Door)
server.is_asked, server.timeout, deadline = False, 1.0, time.monotonic() + {ASK_SECONDS}
while not server.is_asked and time.monotonic() < deadline:
    server.handle_request()
sys.exit(0 if server.is_asked else {NOT_ASKED})
"""


@dataclass(frozen=True)
class Finding:
    """What was found about one thing that experiments need."""

    what: str
    outcome: Outcome
    sentence: str
    fix: str = ""


def check(
    kube: Kube,
    reachable: Reachable,
    tell: Callable[[str], None],
    *,
    has_trial: bool = True,
    seconds: float = TRIAL_SECONDS,
) -> Iterator[Finding]:
    """Looks at one thing after the other; the last is a trial Pod with its results, which are removed again."""
    tell("asks the API server")
    reached = _reach(kube)
    yield reached
    if reached.outcome == "failed":
        return
    place = _namespace(kube)
    yield place
    if place.outcome == "failed":
        return
    tell("asks what is allowed")
    engine = reachable.spec.kubernetes.engine
    allowed = _permissions(kube, engine, reachable.spec.kubernetes.network_policy is not False)
    yield allowed
    if engine == "kuberay":
        yield _kuberay(kube)
    classes = _storage_classes(kube)
    pods = reachable.spec.kubernetes
    if (gpus := _gpus(kube, reachable)) is not None:
        yield gpus
    if not has_trial or allowed.outcome == "failed":
        yield _storage(classes, pods.storage_class) if pods.results is None else _unseen(pods.results)
        return
    yield from _trial(kube, reachable, classes, tell, seconds)


def _reach(kube: Kube) -> Finding:
    try:
        answer = kube.ask("GET", "/version/")
        if answer.code != 200:
            raise kube.refused(answer, "its version")
        about = json.loads(answer.body)
    except ClusterError as error:
        return Finding("API server", "failed", str(error))
    version = str(about.get("gitVersion", "?"))
    number = tuple(int("".join(filter(str.isdigit, str(about.get(part, "0")))) or 0) for part in ("major", "minor"))
    if number < OLDEST:
        fix = "upgrade the cluster"
        return Finding("API server", "failed", f"Kubernetes {version} is older than 1.20, the oldest that works", fix)
    return Finding("API server", "ok", f"Kubernetes {version} answers")


def _namespace(kube: Kube) -> Finding:
    answer = kube.ask("GET", f"/api/v1/namespaces/{kube.namespace}")
    if answer.code == 200:
        if json.loads(answer.body).get("status", {}).get("phase") == "Terminating":
            return Finding("namespace", "failed", f'namespace "{kube.namespace}" is being deleted', "take another one")
        return Finding("namespace", "ok", f'namespace "{kube.namespace}" is there')
    if answer.code == 404:
        fix = f"kubectl create namespace {kube.namespace}"
        return Finding("namespace", "failed", f'there is no namespace "{kube.namespace}"', fix)
    if answer.code == 401:
        return Finding("namespace", "failed", str(kube.refused(answer, "the namespace")))
    return Finding("namespace", "unknown", f'these credentials may not look at namespace "{kube.namespace}" itself')


def _permissions(kube: Kube, engine: Engine | None, has_policy: bool) -> Finding:
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
            return Finding("permissions", "unknown", f"cannot be asked for: {kube.refused(answer, 'permissions')}")
        if not json.loads(answer.body)["status"].get("allowed"):
            refused.append(f"{verb} {resource}")
    if refused:
        fix = permissions.way_to_get_it(kube.name, kube.namespace)
        return Finding("permissions", "failed", f"these credentials may not {', '.join(refused)}", fix)
    return Finding(
        "permissions", "ok", f"all {len(permissions.needed(engine, has_policy))} that are needed are granted"
    )


def _kuberay(kube: Kube) -> Finding:
    """Whether what the cluster's engine asks for is installed; a RayJob shows whether it is new enough."""
    match has_kuberay(kube):
        case True:
            return Finding("KubeRay", "ok", "RayJobs are known")
        case False:
            fix = f"install it ({INSTALLATION}), or leave kubernetes.engine out"
            return Finding("KubeRay", "failed", "it is not installed, and kubernetes.engine asks for it", fix)
    return Finding("KubeRay", "unknown", "these credentials may not ask whether it is installed")


def _storage_classes(kube: Kube) -> list[Json] | None:
    """The cluster's storage classes; None where these credentials may not look."""
    answer = kube.ask("GET", "/apis/storage.k8s.io/v1/storageclasses")
    return json.loads(answer.body)["items"] if answer.code == 200 else None


def _storage(classes: list[Json] | None, wanted: str | None) -> Finding:
    """What the storage classes alone tell."""
    if classes is None:
        return Finding("storage", "unknown", "these credentials may not list storage classes; a trial Pod would show")
    names = [each["metadata"]["name"] for each in classes]
    if wanted is not None and wanted not in names:
        there = f"; it has {', '.join(names)}" if names else ""
        return Finding("storage", "failed", f'there is no storage class "{wanted}"{there}', _storage_fix(names))
    default = [
        each["metadata"]["name"]
        for each in classes
        if (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    if wanted is None and not default:
        return Finding("storage", "failed", "there is no default storage class", _storage_fix(names))
    return Finding("storage", "ok", f'results get disks of storage class "{wanted or default[0]}"')


def _unseen(results: str) -> Finding:
    return Finding("storage", "unknown", f"results are kept in {results}; a trial Pod would show whether they can be")


def _storage_fix(names: list[str]) -> str:
    if names:
        return f"name one in each experiment: steppe experiment new ... --set kubernetes.storage_class={names[0]}"
    return "install a driver for disks, and a storage class for it"


def _gpus(kube: Kube, reachable: Reachable) -> Finding | None:
    """Whether nodes offer GPUs; None where none are asked for."""
    spec = reachable.spec
    wanted = spec.gpus_per_node or max(
        pod.gpus or 0.0 for pod in (spec.kubernetes.driver, spec.kubernetes.worker, spec.kubernetes.server)
    )
    if not wanted:
        return None
    answer = kube.ask("GET", "/api/v1/nodes")
    if answer.code != 200:
        return Finding("GPUs", "unknown", "these credentials may not list nodes")
    nodes = json.loads(answer.body)["items"]
    found = sum(int(node["status"].get("allocatable", {}).get(GPU, 0)) for node in nodes)
    if not found:
        fix = (
            "install NVIDIA's device plugin: kubectl apply -f "
            "https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/main/deployments/static/nvidia-device-plugin.yml"
        )
        return Finding("GPUs", "failed", f"none of the {len(nodes)} nodes offers {GPU}", fix)
    parts = f" (parts that {spec.clients_per_gpu} share)" if spec.gpu_sharing else ""
    return Finding("GPUs", "ok", f"the nodes offer {found}{parts}")


def _trial(
    kube: Kube, reachable: Reachable, classes: list[Json] | None, tell: Callable[[str], None], seconds: float
) -> Iterator[Finding]:
    """Runs Steppe in a Pod like a driver's, whose results are kept as an experiment's are."""
    plan = _plan(reachable, kube.namespace)
    claims, pod = rendering.claims(plan), _pod(plan, seconds)
    _remove_leftovers(kube, plan)
    try:
        for claim in claims:
            kube.create(claim)
        kube.create(pod)
        ran = _wait(kube, pod["metadata"]["name"], pod["spec"]["containers"][0]["image"], tell, seconds)
        if plan.pods.results is not None:
            yield from _stored(ran, plan.pods.results)
        else:
            yield from _on_disk(kube, ran, claims[0]["metadata"]["name"], classes, plan.pods.storage_class)
    except KubeError as error:
        yield Finding("image and nodes", "failed", str(error))
    finally:
        for manifest in (pod, *claims):
            with contextlib.suppress(ClusterError):
                kube.delete(manifest["kind"], manifest["metadata"]["name"])


def _on_disk(kube: Kube, ran: Finding, claim: str, classes: list[Json] | None, wanted: str | None) -> Iterator[Finding]:
    """What a trial Pod shows of the disk for results."""
    bound = kube.get("PersistentVolumeClaim", claim) or {}
    if bound.get("status", {}).get("phase") == "Bound":
        kind = bound.get("spec", {}).get("storageClassName")
        yield Finding("storage", "ok", "a disk was made" + (f' of storage class "{kind}"' if kind else ""))
        yield ran
        return
    from_classes = _storage(classes, wanted)
    reason = _claim_reason(kube, bound) or (from_classes.sentence if from_classes.outcome == "failed" else "")
    if reason:
        fix = from_classes.fix or _storage_fix([each["metadata"]["name"] for each in classes or []])
        yield Finding("storage", "failed", f"no disk is made: {reason}", fix)
    elif ran.outcome == "failed":
        yield ran
    else:
        yield Finding("image and nodes", "failed", "the Pod ended without its disk")


def _stored(ran: Finding, results: str) -> Iterator[Finding]:
    """What a trial Pod shows of the object storage for results."""
    if ran.outcome == "ok":
        yield Finding("storage", "ok", f"an object was written to {results}, and removed again")
    yield ran


def _plan(reachable: Reachable, namespace: str) -> Plan:
    from steppe.specs.experiment import ExperimentSpec

    data = {"name": f"check-{secrets.token_hex(3)}", "environment": {"id": "CartPole-v1"}, "agent": {"type": "ppo"}}
    spec = ExperimentSpec.model_validate(data | {"platform": "kubernetes"})
    return Plan(spec, "check", namespace, cluster=reachable.spec)


def _pod(plan: Plan, seconds: float) -> Json:
    """A driver's Pod that runs the scripts, without what only an experiment has."""
    template = pod_template(plan, plan.crowds[0])
    spec, container = template["spec"], template["spec"]["containers"][0]
    own = {"experiment", "tokens", "modules"}
    script = SCRIPT + ("" if plan.pods.results is None else STORE_SCRIPT) + DOOR_SCRIPT
    container = container | {
        "command": ["python3", "-P", "-c", script],
        "volumeMounts": [mount for mount in container["volumeMounts"] if mount["name"] not in own],
    }
    spec = spec | {
        "containers": [container],
        "volumes": [volume for volume in spec["volumes"] if volume["name"] not in own],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(seconds) + 60,
        "terminationGracePeriodSeconds": 1,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"] | {"name": f"{plan.name}-trial"},
        "spec": spec,
    }


def _wait(kube: Kube, name: str, image: str, tell: Callable[[str], None], seconds: float) -> Finding:
    """Waits until the Pod has ended well, or says why it does not."""
    begin, silence = time.monotonic(), ""
    try:
        for pod, trouble in watch(kube, name, seconds):
            ended = termination_of(pod)
            if ended is not None and ended.get("reason") != "OOMKilled":
                return _found(ended, image, silence)
            if is_ready_to_answer(pod):
                silence = _asked(kube, name) or silence
            if trouble is not None and not trouble.is_final and time.monotonic() - begin > SETTLING_SECONDS:
                raise NotComing(trouble.sentence)
            tell(trouble.sentence if trouble is not None else "waits for a trial Pod, which pulls the image")
    except NotComing as error:
        return Finding("image and nodes", "failed", str(error))
    except KubeError as error:
        if error.code not in FORBIDDEN:
            raise
        fix = permissions.way_to_get_it(kube.name, kube.namespace) if error.code == 403 else ""
        return Finding("permissions", "failed", str(error), fix)
    raise AssertionError


def _asked(kube: Kube, name: str) -> str:
    """Why a trial Pod cannot be asked, as a client asks a driver; nothing where it can. KubeError where nobody may."""
    try:
        kube.ask_pod(name, DOOR_PORT, "/", seconds=DOOR_SECONDS)
    except KubeError as error:
        if error.code in FORBIDDEN:
            raise
        # Before its door is open, its node refuses.
        return "" if "connection refused" in str(error) else str(error)
    return ""


def _found(ended: Json, image: str, silence: str) -> Finding:
    """What a trial Pod that has ended shows; `silence` is why it could not be asked."""
    if ended.get("exitCode") == 0:
        return Finding("image and nodes", "ok", f"a Pod of {image} started, wrote to its results, and answered")
    if ended.get("exitCode") == NOT_ASKED:
        return Finding(
            "way to Pods",
            "failed",
            f"a Pod started, and the API server brings no answer of it{f': {silence}' if silence else ''}",
            f"let the API server reach port {DOOR_PORT} of Pods (NetworkPolicies, and firewalls between control plane "
            "and nodes)",
        )
    last = str(ended.get("message", "")).strip().splitlines() or [f"exit code {ended.get('exitCode')}"]
    if ended.get("exitCode") == STORE_FAILED:
        return Finding("storage", "failed", last[-1])
    return Finding("image and nodes", "failed", f"Steppe does not run in that image: {last[-1]}")


def _claim_reason(kube: Kube, claim: Json) -> str:
    """Why a claim gets no disk."""
    uid = claim.get("metadata", {}).get("uid")
    if uid is None:
        return ""
    with contextlib.suppress(ClusterError):
        for event in kube.listed("Event", fields=f"involvedObject.uid={uid}"):
            if event.get("reason") in ("ProvisioningFailed", "FailedBinding"):
                return " ".join(str(event.get("message", "")).split())
    return ""


def _remove_leftovers(kube: Kube, plan: Plan) -> None:
    """What a check that was killed has left: Pods that are over, and their disks."""
    labels = {naming.MANAGED_BY: naming.MANAGER, naming.PROJECT: plan.labels[naming.PROJECT]}
    for pod in kube.listed("Pod", labels):
        name = pod["metadata"]["name"]
        if name.endswith("-trial") and pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            kube.delete("Pod", name)
            kube.delete("PersistentVolumeClaim", f"{name.removesuffix('-trial')}-results")
