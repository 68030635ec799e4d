"""Creating and deleting the objects of a run. All belong to its root, a ConfigMap, and are deleted with it."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Collection
from typing import Any

from steppe.errors import ClusterError, StateError
from steppe.platforms.kubernetes.agreement import SPEC_KEY, TOKEN_KEYS
from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeError
from steppe.platforms.kubernetes.client.workloads import Workload, workload_of
from steppe.platforms.kubernetes.diagnosis.driver_phase import not_ending
from steppe.platforms.kubernetes.manifests import naming, permissions, rendering
from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan
from steppe.platforms.kubernetes.storage import stored_results

Json = dict[str, Any]


def check(kube: Kube, plan: ManifestPlan, *, is_known: bool = False) -> Json | None:
    """Refuses a plan that cannot be started here, before anything is made; returns the root if there is one.

    `is_known` says that the experiment is the caller's own, from wherever it was started before.
    """
    workload_of(plan.engine, kube, plan.name).check()
    root = kube.get("ConfigMap", plan.name)
    if root is not None:
        if not is_known:
            _check_origin(kube, root, plan)
        stored_results.check_location(plan_of(root, kube.namespace), plan)
    return root


def create(kube: Kube, plan: ManifestPlan, *, is_known: bool = False) -> None:
    """Creates every object that does not exist; the Pods of an earlier start are ended first."""
    workload = workload_of(plan.engine, kube, plan.name)
    manifest = rendering.root(plan)
    root = check(kube, plan, is_known=is_known)
    is_new = root is None
    if root is None:
        root = kube.create(manifest)
    uid = root["metadata"]["uid"]
    try:
        _end_earlier_start(kube, workload_in(root, kube, plan.name), plan.name)
        for each in rendering.carried(plan):
            kube.create_or_keep(rendering.with_owner(plan, each, uid))
        kube.patch("ConfigMap", plan.name, _changes(root, manifest))
        _delete_carried(kube, root, but=plan.carried)
        if kube.get("Secret", f"{plan.name}-tokens") is None:
            tokens = {key: secrets.token_hex(32) for key in TOKEN_KEYS}
            kube.create_or_keep(rendering.with_owner(plan, rendering.secret(plan, tokens), uid))
        for each in (*rendering.claims(plan), rendering.service(plan)):
            kube.create_or_keep(rendering.with_owner(plan, each, uid))
        _replace_policy(kube, plan, uid)
        workload.make(plan, uid)
    except BaseException:
        # A failed start leaves nothing behind, even after Ctrl-C, unless there were results before.
        with contextlib.suppress(ClusterError):
            workload.end()
        if is_new:
            with contextlib.suppress(ClusterError):
                kube.delete("ConfigMap", plan.name)
        raise


def delete(kube: Kube, name: str, workload: Workload) -> list[str]:
    """Deletes all objects of a run, results included; returns the names of Pods that are still ending."""
    workload.end()
    workload.wait_until_gone()
    delete_readers(kube, name, lambda pod: True)
    _delete_carried(kube, kube.get("ConfigMap", name) or {})
    # A NetworkPolicy that the user may not delete is deleted with the root that owns it.
    with contextlib.suppress(KubeError):
        kube.delete("NetworkPolicy", name)
    for kind, suffix in (
        ("Pod", "-eraser"),
        ("Service", ""),
        ("Secret", "-tokens"),
        ("PersistentVolumeClaim", "-results"),
        ("ConfigMap", ""),
    ):
        kube.delete(kind, name + suffix)
    return kube.wait_until_gone("Pod", {naming.RUN: name})


def delete_readers(kube: Kube, name: str, which: Callable[[Json], bool]) -> None:
    """Deletes the Pods that show the results of a run, of those that `which` chooses."""
    for pod in kube.listed("Pod", {naming.RUN: name, naming.ROLE: "reader"}):
        if which(pod):
            kube.delete("Pod", pod["metadata"]["name"])


def workload_in(root: Json, kube: Kube, name: str) -> Workload:
    """The workload that a root names."""
    return workload_of(annotations_of(root).get(naming.ENGINE, ""), kube, name)


def plan_of(root: Json, namespace: str) -> ManifestPlan:
    """The part of the plan of a started experiment that a reader needs."""
    from steppe.spec_files import read_experiment

    spec = read_experiment(json.loads(root["data"][SPEC_KEY]))
    return ManifestPlan(spec, annotations_of(root).get(naming.PROJECT, ""), namespace, cluster=spec.cluster)


def annotations_of(root: Json) -> dict[str, str]:
    """The annotations of a root, which may be an empty object."""
    return root.get("metadata", {}).get("annotations") or {}


def _check_origin(kube: Kube, root: Json, plan: ManifestPlan) -> None:
    known = annotations_of(root).get(naming.ORIGIN, "")
    if plan.origin and known and known != plan.origin:
        raise StateError(
            f'namespace "{kube.namespace}" of cluster "{kube.name}" has an experiment '
            f'"{plan.spec.name}" of a project "{plan.project}" already, started from {known}; choose another name, '
            "or another namespace"
        )


def _end_earlier_start(kube: Kube, workload: Workload, name: str) -> None:
    """Ends the workload, and waits until no Pod writes results any more."""
    workload.end()
    workload.wait_until_gone()
    left = kube.wait_until_gone("Pod", {naming.RUN: name, naming.ROLE: "driver"})
    if left:
        raise ClusterError(not_ending(left[0], kube.namespace))


def _changes(root: Json, manifest: Json) -> Json:
    """The merge patch that turns an earlier root into the one of this start; keys that are gone become null."""
    changes: Json = {"metadata": {"annotations": manifest["metadata"]["annotations"]}}
    for part in ("data", "binaryData"):
        changes[part] = dict.fromkeys(root.get(part) or {}) | (manifest.get(part) or {})
    return changes


def _delete_carried(kube: Kube, root: Json, but: Collection[str] = ()) -> None:
    """Deletes the ConfigMaps with the large files of an earlier start."""
    for name in annotations_of(root).get(naming.CARRIED, "").split():
        if name not in but:
            kube.delete("ConfigMap", name)


def _replace_policy(kube: Kube, plan: ManifestPlan, uid: str) -> None:
    """Replaces the NetworkPolicy of an earlier start before there is a Pod to connect to."""
    wanted = rendering.network_policies(plan)
    try:
        kube.delete("NetworkPolicy", plan.name)
        for each in wanted:
            kube.create(rendering.with_owner(plan, each, uid))
    except KubeError as error:
        if error.code != 403:
            raise
        if wanted:
            raise KubeError(
                f'you may not make NetworkPolicies in namespace "{kube.namespace}" of cluster '
                f'"{kube.name}", and without one any Pod of the cluster can connect to the experiment\'s; '
                f"{permissions.way_to_get_it(kube.name, kube.namespace)}; or do without it: "
                "kubernetes.network_policy false",
                error.code,
            ) from error
