"""The workload that makes an experiment's Pods, as a client sees it: Kubernetes' own Jobs, or a RayJob of KubeRay."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeError
from steppe.platforms.kubernetes.diagnosis.pod_health import (
    NO_DASHBOARD,
    POOL_ROLES,
    PodHealth,
    ending_of,
    health_of,
    hopeless,
    is_running,
    ray_job_health,
    roles_that_last,
    worst,
)
from steppe.platforms.kubernetes.manifests import kuberay, naming, rendering
from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan

Json = dict[str, Any]
MOST_PODS = 30
"""How many Pods of a role are examined for problems: a problem that a thousand share is found in some of them too."""
NOT_RUNNING = "status.phase!=Running,status.phase!=Succeeded"
"""Selects the Pods that wait or have failed."""


class Workload(Protocol):
    """Makes and ends Pods."""

    def check(self) -> None:
        """Raises ClusterError if the cluster cannot run this workload; makes nothing."""

    def make(self, plan: ManifestPlan, owner_uid: str) -> None:
        """Creates the objects that make the Pods."""

    def end(self, start: int | None = None) -> None:
        """Ends all Pods, or only those of one start of the experiment."""

    def wait_until_gone(self) -> None:
        """Waits until another workload of the same name can be created."""

    def health(self, drivers: list[Json]) -> PodHealth | None:
        """The health of a run none of whose `drivers` answers; None if nothing makes Pods."""

    def pool_health(self, expendable: Collection[str]) -> PodHealth:
        """The health of the Pods that work for a driver that answers; it does not need those of `expendable` roles."""


def workload_of(engine: str, kube: Kube, run: str) -> Workload:
    """The workload of an engine, for the experiment whose objects' names begin with `run`."""
    return RayJobWorkload(kube, run) if engine == "kuberay" else JobWorkload(kube, run)


class JobWorkload:
    """One Job for each kind of Pod."""

    def __init__(self, kube: Kube, run: str) -> None:
        self._kube, self._labels = kube, {naming.RUN: run}

    def check(self) -> None:
        """Does nothing: every cluster has Jobs."""

    def make(self, plan: ManifestPlan, owner_uid: str) -> None:
        """Creates the driver's Job first, so that it is the first to get a node: the others need it."""
        for job in rendering.jobs(plan):
            self._kube.create(rendering.with_owner(plan, job, owner_uid))

    def end(self, start: int | None = None) -> None:
        """Deletes the Jobs."""
        for job in self._kube.listed("Job", _since(self._labels, start)):
            self._kube.delete("Job", job["metadata"]["name"])

    def wait_until_gone(self) -> None:
        """Does nothing: Jobs are gone at once, unlike their Pods."""

    def health(self, drivers: list[Json]) -> PodHealth | None:
        """Why there are no Pods, or why they do not run."""
        jobs = self._kube.listed("Job", self._labels)
        own = [job for job in jobs if _role(job) == "driver"]
        if not own:
            return None
        if (ending := ending_of(own[0])) is not None:
            why = health_of(drivers, [], []).phase if ending else ""
            return PodHealth(is_alive=False, trouble="; ".join(part for part in (ending, why) if part))
        roles = [role for role in map(_role, jobs) if role in POOL_ROLES]
        pods = [*drivers, *_some_pods(self._kube, self._labels, roles)]
        # Only the driver knows whether it has any workers.
        return health_of(pods, jobs, self._events(jobs), expendable=POOL_ROLES)

    def pool_health(self, expendable: Collection[str]) -> PodHealth:
        """The health of the pool's Pods and Jobs."""
        jobs = [job for job in self._kube.listed("Job", self._labels) if _role(job) in POOL_ROLES]
        lasting = roles_that_last(jobs, expendable)
        given_up = []
        for job in jobs:
            # Pods of the pool end well by themselves only if no driver has answered them for a day.
            if ending_of(job) == "":
                name = job["metadata"]["name"]
                sentence = f"the Pods of Job {name} have given up waiting for the driver; stop and resume it"
                given_up.append(PodHealth(phase=sentence) if _role(job) in lasting else hopeless(sentence))
        pods = _some_pods(self._kube, self._labels, map(_role, jobs))
        return worst([*given_up, health_of(pods, jobs, self._events(jobs), expendable)])

    def _events(self, jobs: list[Json]) -> list[Json]:
        """The events of Jobs, as far as the user may list them."""
        found: list[Json] = []
        for job in jobs:
            with contextlib.suppress(KubeError):
                found += self._kube.listed("Event", fields=f"involvedObject.uid={job['metadata']['uid']}")
        return found


class RayJobWorkload:
    """One RayJob, from which the KubeRay operator makes all Pods."""

    def __init__(self, kube: Kube, run: str) -> None:
        self._kube, self._run, self._labels = kube, run, {naming.RUN: run}

    def check(self) -> None:
        """Raises ClusterError if KubeRay is not installed."""
        if has_kuberay(self._kube) is False:
            raise ClusterError(
                f'cluster "{self._kube.name}" has no KubeRay, which kubernetes.engine asks for; have an administrator '
                f"install it ({kuberay.INSTALLATION}), or leave kubernetes.engine out"
            )

    def make(self, plan: ManifestPlan, owner_uid: str) -> None:
        """Creates the RayJob, unless an old KubeRay would start its Ray without a token."""
        for job in rendering.workloads(plan):
            made = self._kube.create(rendering.with_owner(plan, job, owner_uid))
            if kuberay.is_too_old_for(made):
                self.end()
                raise KubeError(
                    f'the KubeRay of cluster "{self._kube.name}" is older than {kuberay.OLDEST_KUBERAY} and knows no '
                    "tokens, so that anybody in the cluster could use the experiment's Ray; have it upgraded "
                    f"({kuberay.INSTALLATION}), or leave kubernetes.engine out"
                )

    def end(self, start: int | None = None) -> None:
        """Deletes the RayJob; KubeRay deletes its Pods."""
        for job in self._listed(_since(self._labels, start)):
            self._kube.delete("RayJob", job["metadata"]["name"])

    def wait_until_gone(self) -> None:
        """Waits until KubeRay has ended the RayJob's Pods and removed its finalizer."""
        if not self._listed(self._labels):
            return
        left = self._kube.wait_until_gone("RayJob", self._labels)
        if left:
            raise ClusterError(
                f"RayJob {left[0]} is not let go by the KubeRay operator; see that it runs, or, when KubeRay was "
                f"uninstalled: kubectl patch rayjob {left[0]} --namespace {self._kube.namespace} --type merge "
                """--patch '{"metadata": {"finalizers": null}}'"""
            )

    def health(self, drivers: list[Json]) -> PodHealth | None:
        """The progress of KubeRay with the RayJob."""
        job = self._kube.get("RayJob", self._run)
        if job is None:
            return None
        job_health = ray_job_health(job)
        if not job_health.is_alive:
            return job_health
        pool = _some_pods(self._kube, self._labels, POOL_ROLES)
        # KubeRay starts the training once all Pods are ready; before that the driver cannot tell who has joined.
        health = health_of([*drivers, *pool], [], [], expendable={_role(pod) for pod in pool if is_running(pod)})
        if not health.phase:
            return job_health
        if NO_DASHBOARD in health.phase:
            return hopeless(
                "the Ray in its image lacks what KubeRay gives its orders to; build the image with "
                """"steppe image build --package 'ray[default]'", or leave kubernetes.engine out"""
            )
        return health

    def pool_health(self, expendable: Collection[str]) -> PodHealth:
        """The health of the pool's Pods; if there are none, only KubeRay knows why."""
        health = health_of(_some_pods(self._kube, self._labels, POOL_ROLES), [], [], expendable)
        if not health.phase and (job := self._kube.get("RayJob", self._run)) is not None:
            return PodHealth(phase=ray_job_health(job).phase)
        return health

    def _listed(self, labels: dict[str, str]) -> list[Json]:
        try:
            return self._kube.listed("RayJob", labels)
        except KubeError as error:
            # KubeRay was uninstalled, and all its objects with it.
            if error.code == 404:
                return []
            raise


def has_kuberay(kube: Kube) -> bool | None:
    """Whether the cluster knows RayJobs; None if the user may not ask."""
    answer = kube.ask("GET", f"/apis/{kuberay.API}")
    if answer.code == 404:
        return False
    if answer.code != 200:
        return None
    return any(each.get("name") == kuberay.PLURAL for each in json.loads(answer.body).get("resources") or ())


def _some_pods(kube: Kube, labels: dict[str, str], roles: Iterable[str]) -> list[Json]:
    """Some Pods of each role, those that do not run first."""
    found: dict[str, Json] = {}
    for role in roles:
        for fields in (NOT_RUNNING, ""):
            some = kube.listed("Pod", labels | {naming.ROLE: role}, fields, limit=MOST_PODS)
            found |= {pod["metadata"]["name"]: pod for pod in some}
            if len(some) == MOST_PODS:
                break
    return list(found.values())


def _role(thing: Json) -> str:
    return str(thing["metadata"]["labels"].get(naming.ROLE))


def _since(labels: dict[str, str], start: int | None) -> dict[str, str]:
    return labels if start is None else labels | {naming.START: str(start)}
