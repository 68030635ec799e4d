"""Results in object storage, as handled by a client without credentials for it: Pods have them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from steppe.errors import ClusterError, StateError
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.diagnosis.pod_health import termination_of
from steppe.platforms.kubernetes.diagnosis.pod_watch import PodHopeless, watch
from steppe.platforms.kubernetes.manifests import naming, rendering
from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan

Json = dict[str, Any]
ERASER_SECONDS = 600.0
"""How long the removal of all results may take."""


def check_location(before: ManifestPlan, plan: ManifestPlan) -> None:
    """Raises StateError if a plan would move the results of an existing experiment."""
    was, now = before.pods.results, plan.pods.results
    if was != now:
        raise StateError(
            f'the results of experiment "{plan.spec.name}" are {_where(was)}, and cannot be {_where(now)} from now on; '
            f"{'leave kubernetes.results out' if was is None else f'set kubernetes.results to {was}'}, or make another "
            "experiment"
        )


def erase(kube: Kube, plan: ManifestPlan, owner_uid: str) -> None:
    """Removes the results of an ended experiment from object storage, by a short-lived Pod."""
    name = f"{plan.name}-eraser"
    labels = {naming.RUN: plan.name}
    # A driver that is still ending may still store results.
    if left := kube.wait_until_gone("Pod", labels | {naming.ROLE: "driver"}):
        raise ClusterError(f"Pod {left[0]} does not end, and may still store results; try again")
    kube.delete("Pod", name)
    kube.wait_until_gone("Pod", labels | {naming.ROLE: "eraser"})
    kube.create(rendering.reader(plan, owner_uid=owner_uid, role="eraser"))
    try:
        words = _last_words(kube, name)
    finally:
        with contextlib.suppress(ClusterError):
            kube.delete("Pod", name)
    if "error" in words:
        raise ClusterError(f"nothing was deleted, since the stored results cannot be: {words['error']}")


def _last_words(kube: Kube, name: str) -> Json:
    ended: Json | None = None
    try:
        for pod, _ in watch(kube, name, ERASER_SECONDS):
            if (ended := termination_of(pod)) is not None:
                break
    except PodHopeless as error:
        return {"error": str(error)}
    assert ended is not None
    try:
        return dict(json.loads(ended.get("message") or ""))
    except ValueError:
        return {"error": ended.get("message") or f"its Pod ended with exit code {ended.get('exitCode')}"}


def _where(results: str | None) -> str:
    return "on a disk of the cluster" if results is None else f"in {results}"
