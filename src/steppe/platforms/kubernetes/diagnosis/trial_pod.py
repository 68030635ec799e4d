"""The trial Pod of `steppe cluster check`: Steppe runs in it as a driver does, with results stored as a run's are."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from steppe.errors import ClusterError, clause
from steppe.platforms.kubernetes.agreement import PREFIX, RESULTS, TERMINATION_LOG
from steppe.platforms.kubernetes.client.kubeapi import FORBIDDEN, Kube, KubeError
from steppe.platforms.kubernetes.client.status_client import STATUS_SECONDS
from steppe.platforms.kubernetes.diagnosis.pod_health import is_running, termination_of
from steppe.platforms.kubernetes.diagnosis.pod_watch import PodHopeless, watch
from steppe.platforms.kubernetes.diagnosis.storage_check import ClusterFinding, check_storage_class, storage_fix
from steppe.platforms.kubernetes.manifests import naming, permissions, rendering
from steppe.platforms.kubernetes.manifests.pod_spec import pod_template
from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan
from steppe.runners.pods import DOOR_PORT

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable

Json = dict[str, Any]
TRIAL_SECONDS = 300.0
"""How long a trial Pod may take, which may be the first to pull a large image."""
SETTLING_SECONDS = 20.0
"""For how long a Pod may wait for a node before that counts as more than a passing lack of room."""
STORE_FAILED, NOT_ASKED = 4, 5
"""The exit codes of a trial Pod whose object storage does not work, and of one that no request has reached."""
ASK_SECONDS = 60.0
"""For how long a trial Pod waits for a request."""
# The script imports the same modules as a driver and writes to its disk.
SCRIPT = f"""
import pathlib, steppe.experiments.process.run
file = pathlib.Path("{RESULTS}/trial")
file.write_text("steppe")
assert file.read_text() == "steppe"
pathlib.Path("{TERMINATION_LOG}").write_text("fine")
"""
# If results are in object storage, it writes an object there.
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
# It waits for a request, as the status server of a driver does.
STATUS_SCRIPT = f"""
import http.server, sys, time
class Status(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.is_asked = True
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(("", {DOOR_PORT}), Status)
server.is_asked, server.timeout, deadline = False, 1.0, time.monotonic() + {ASK_SECONDS}
while not server.is_asked and time.monotonic() < deadline:
    server.handle_request()
sys.exit(0 if server.is_asked else {NOT_ASKED})
"""


def run_trial(
    kube: Kube, reachable: Reachable, classes: list[Json] | None, tell: Callable[[str], None], seconds: float
) -> Iterator[ClusterFinding]:
    """Runs a trial Pod on the cluster, deletes it with its disk, and yields the findings."""
    plan = _trial_plan(reachable, kube.namespace)
    claims, pod = rendering.claims(plan), _trial_pod(plan, seconds)
    _remove_leftovers(kube, plan)
    try:
        for claim in claims:
            kube.create(claim)
        kube.create(pod)
        ran = _wait_for_end(kube, pod["metadata"]["name"], pod["spec"]["containers"][0]["image"], tell, seconds)
        if plan.pods.results is not None:
            yield from _findings_in_store(ran, plan.pods.results)
        else:
            yield from _findings_on_disk(kube, ran, claims[0]["metadata"]["name"], classes, plan.pods.storage_class)
    except KubeError as error:
        yield ClusterFinding("image and nodes", "failed", str(error))
    finally:
        for manifest in (pod, *claims):
            with contextlib.suppress(ClusterError):
                kube.delete(manifest["kind"], manifest["metadata"]["name"])


def _findings_on_disk(
    kube: Kube, ran: ClusterFinding, claim: str, classes: list[Json] | None, wanted: str | None
) -> Iterator[ClusterFinding]:
    """The findings of a trial Pod about itself and the disk for its results."""
    bound = kube.get("PersistentVolumeClaim", claim) or {}
    if bound.get("status", {}).get("phase") == "Bound":
        kind = bound.get("spec", {}).get("storageClassName")
        yield ClusterFinding("storage", "ok", "a disk was made" + (f' of storage class "{kind}"' if kind else ""))
        yield ran
        return
    from_classes = check_storage_class(classes, wanted)
    reason = _claim_reason(kube, bound) or (from_classes.sentence if from_classes.outcome == "failed" else "")
    if reason:
        fix = from_classes.fix or storage_fix(classes)
        yield ClusterFinding("storage", "failed", f"no disk is made: {reason}", fix)
    elif ran.outcome == "failed":
        yield ran
    else:
        yield ClusterFinding("image and nodes", "failed", "the Pod ended without its disk")


def _findings_in_store(ran: ClusterFinding, results: str) -> Iterator[ClusterFinding]:
    """The findings of a trial Pod about itself and the object storage for its results."""
    if ran.outcome == "ok":
        yield ClusterFinding("storage", "ok", f"an object was written to {results}, and removed again")
    yield ran


def _trial_plan(reachable: Reachable, namespace: str) -> ManifestPlan:
    from steppe.specs.experiment import ExperimentSpec

    data = {"name": f"check-{secrets.token_hex(3)}", "environment": {"id": "CartPole-v1"}, "agent": {"type": "ppo"}}
    spec = ExperimentSpec.model_validate(data | {"platform": "kubernetes"})
    return ManifestPlan(spec, "check", namespace, cluster=reachable.spec)


def _trial_pod(plan: ManifestPlan, seconds: float) -> Json:
    """A driver's Pod that runs the scripts, without the volumes that only an experiment has."""
    template = pod_template(plan, plan.pod_groups[0])
    spec, container = template["spec"], template["spec"]["containers"][0]
    own = {"experiment", "tokens", "modules"}
    script = SCRIPT + ("" if plan.pods.results is None else STORE_SCRIPT) + STATUS_SCRIPT
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


def _wait_for_end(kube: Kube, name: str, image: str, tell: Callable[[str], None], seconds: float) -> ClusterFinding:
    """Waits for the end of the trial Pod; the finding says whether it ended well, or why it did not."""
    begin, silence = time.monotonic(), ""
    try:
        for pod, health in watch(kube, name, seconds):
            ended = termination_of(pod)
            if ended is not None and ended.get("reason") != "OOMKilled":
                return _finding_at_end(ended, image, silence)
            if is_running(pod):
                silence = _silence(kube, name) or silence
            if health.phase and not health.trouble and time.monotonic() - begin > SETTLING_SECONDS:
                raise PodHopeless(health.phase)
            tell(health.phase or "waits for a trial Pod, which pulls the image")
    except PodHopeless as error:
        return ClusterFinding("image and nodes", "failed", str(error))
    except KubeError as error:
        if error.code not in FORBIDDEN:
            raise
        fix = permissions.way_to_get_it(kube.name, kube.namespace) if error.code == 403 else ""
        return ClusterFinding("permissions", "failed", str(error), fix)
    raise AssertionError


def _silence(kube: Kube, name: str) -> str:
    """Why a request does not reach a trial Pod, empty if it does; KubeError if the user may not ask Pods."""
    try:
        kube.ask_pod(name, DOOR_PORT, "/", seconds=STATUS_SECONDS)
    except KubeError as error:
        if error.code in FORBIDDEN:
            raise
        # Its node refuses connections until the Pod listens.
        return "" if "connection refused" in str(error) else str(error)
    return ""


def _finding_at_end(ended: Json, image: str, silence: str) -> ClusterFinding:
    """The finding from the end of a trial Pod; `silence` is why no request has reached it."""
    if ended.get("exitCode") == 0:
        return ClusterFinding("image and nodes", "ok", f"a Pod of {image} started, wrote to its results, and answered")
    if ended.get("exitCode") == NOT_ASKED:
        return ClusterFinding(
            "way to Pods",
            "failed",
            f"a Pod started, and the API server brings no answer of it{f': {silence}' if silence else ''}",
            f"let the API server reach port {DOOR_PORT} of Pods (NetworkPolicies, and firewalls between control plane "
            "and nodes)",
        )
    last = str(ended.get("message", "")).strip().splitlines() or [f"exit code {ended.get('exitCode')}"]
    if ended.get("exitCode") == STORE_FAILED:
        return ClusterFinding("storage", "failed", last[-1])
    return ClusterFinding("image and nodes", "failed", f"Steppe does not run in that image: {last[-1]}")


def _claim_reason(kube: Kube, claim: Json) -> str:
    uid = claim.get("metadata", {}).get("uid")
    if uid is None:
        return ""
    with contextlib.suppress(ClusterError):
        for event in kube.listed("Event", fields=f"involvedObject.uid={uid}"):
            if event.get("reason") in ("ProvisioningFailed", "FailedBinding"):
                return clause(event.get("message", ""))
    return ""


def _remove_leftovers(kube: Kube, plan: ManifestPlan) -> None:
    """Deletes what killed checks have left: Pods that have ended, and their disks."""
    labels = {naming.MANAGED_BY: naming.MANAGER, naming.PROJECT: plan.labels[naming.PROJECT]}
    for pod in kube.listed("Pod", labels):
        name = pod["metadata"]["name"]
        if name.endswith("-trial") and pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            kube.delete("Pod", name)
            kube.delete("PersistentVolumeClaim", f"{name.removesuffix('-trial')}-results")
