"""What makes an experiment's Pods, as a client sees it: Kubernetes' own Jobs, or a RayJob of KubeRay."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, Protocol

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeError
from steppe.platforms.kubernetes.diagnosis.waiting import (
    CREW,
    SURE_SECONDS,
    Trouble,
    end_of,
    gravest,
    is_ready_to_answer,
    lasting_roles,
    trouble_of,
)
from steppe.platforms.kubernetes.manifests import kuberay, naming, rendering
from steppe.platforms.kubernetes.manifests.rendering import Plan

Json = dict[str, Any]
MOST_PODS = 30
"""So many Pods of a role are looked at for trouble: what a thousand have in common, some of them have too."""
NOT_RUNNING = "status.phase!=Running,status.phase!=Succeeded"
"""Selects the Pods that wait, or have failed."""


class Outlook(NamedTuple):
    """What is to be expected of Pods that do not answer."""

    sentence: str = ""
    """What they wait for, or why they will not come."""
    is_final: bool = False
    """Whether waiting will not help."""
    is_over: bool = False
    """Whether all has ended, so that only the results can tell how."""
    has_succeeded: bool = False
    """Whether it has ended as it should."""
    seconds: float = SURE_SECONDS
    """For how long what is final must last before it is believed."""
    may_pass: bool = False
    """Whether what is final passes by itself at times."""
    is_queued: bool = False
    """Whether they wait for their turn."""


class Engine(Protocol):
    """Makes and ends Pods."""

    def check(self) -> None:
        """Finds out before anything is made whether the cluster has what it takes."""

    def make(self, plan: Plan, owner_uid: str) -> None:
        """Makes what makes the Pods."""

    def end(self, start: int | None = None) -> None:
        """Ends all Pods, or those of one start of the experiment."""

    def wait_until_gone(self) -> None:
        """Waits until there is room for another one of the same name."""

    def look(self, drivers: list[Json]) -> Outlook | None:
        """What is to be expected, given the driver's Pods, none of which answers; None where nothing makes any."""

    def trouble_of_crew(self, spare: Collection[str]) -> Trouble | None:
        """What keeps those from running who work for a driver that answers; it goes on without those of `spare`."""


def engine_named(name: str, kube: Kube, run: str) -> Engine:
    """As a root's annotation names it, for the experiment whose objects' names begin with `run`."""
    return RayJobs(kube, run) if name == "kuberay" else Jobs(kube, run)


class Jobs:
    """One Job for each kind of Pod."""

    def __init__(self, kube: Kube, run: str) -> None:
        self._kube, self._labels = kube, {naming.RUN: run}

    def check(self) -> None:
        """Every cluster has them."""

    def make(self, plan: Plan, owner_uid: str) -> None:
        """The driver's first: the others come to nothing without one, so it is the first to get room."""
        for job in rendering.jobs(plan):
            self._kube.create(rendering.with_owner(plan, job, owner_uid))

    def end(self, start: int | None = None) -> None:
        """Deletes the Jobs."""
        for job in self._kube.listed("Job", _since(self._labels, start)):
            self._kube.delete("Job", job["metadata"]["name"])

    def wait_until_gone(self) -> None:
        """They are gone at once, if not their Pods."""

    def look(self, drivers: list[Json]) -> Outlook | None:
        """Why there are no Pods, or why they do not run."""
        jobs = self._kube.listed("Job", self._labels)
        own = [job for job in jobs if _role(job) == "driver"]
        if not own:
            return None
        if (end := end_of(own[0])) is not None:
            why = trouble_of(drivers, [], []) if end.sentence else None
            sentence = end.sentence if why is None else f"{end.sentence}; {why.sentence}"
            return Outlook(sentence, is_final=True, is_over=True, has_succeeded=not end.sentence)
        pods = [*drivers, *_some_pods(self._kube, self._labels, (role for role in map(_role, jobs) if role in CREW))]
        # Only the driver can tell whether it has anybody to work with.
        return _outlook(trouble_of(pods, jobs, self._events(jobs), spare=CREW))

    def trouble_of_crew(self, spare: Collection[str]) -> Trouble | None:
        """Of their Pods and their Jobs."""
        jobs = [job for job in self._kube.listed("Job", self._labels) if _role(job) in CREW]
        lasting = lasting_roles(jobs, spare)
        given_up = [
            Trouble(
                f"the Pods of Job {job['metadata']['name']} have given up waiting for the driver; stop and resume it",
                is_final=_role(job) not in lasting,
            )
            for job in jobs
            if (end := end_of(job)) is not None and not end.sentence
        ]
        pods = _some_pods(self._kube, self._labels, map(_role, jobs))
        other = trouble_of(pods, jobs, self._events(jobs), spare)
        return gravest([*given_up, *([other] if other is not None else [])])

    def _events(self, jobs: list[Json]) -> list[Json]:
        """What happened to Jobs; whoever may not see that is told less."""
        found: list[Json] = []
        for job in jobs:
            with contextlib.suppress(KubeError):
                found += self._kube.listed("Event", fields=f"involvedObject.uid={job['metadata']['uid']}")
        return found


class RayJobs:
    """One RayJob, from which the KubeRay operator makes all Pods."""

    def __init__(self, kube: Kube, run: str) -> None:
        self._kube, self._run, self._labels = kube, run, {naming.RUN: run}

    def check(self) -> None:
        """Whether KubeRay is installed."""
        if has_kuberay(self._kube) is False:
            raise ClusterError(
                f'cluster "{self._kube.name}" has no KubeRay, which kubernetes.engine asks for; have an administrator '
                f"install it ({kuberay.INSTALLATION}), or leave kubernetes.engine out"
            )

    def make(self, plan: Plan, owner_uid: str) -> None:
        """The RayJob; not one that an old KubeRay would run with its door open."""
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
        """KubeRay lets a RayJob go when it has ended what it runs."""
        if not self._listed(self._labels):
            return
        left = self._kube.wait_until_gone("RayJob", self._labels)
        if left:
            raise ClusterError(
                f"RayJob {left[0]} is not let go by the KubeRay operator; see that it runs, or, when KubeRay was "
                f"uninstalled: kubectl patch rayjob {left[0]} --namespace {self._kube.namespace} --type merge "
                """--patch '{"metadata": {"finalizers": null}}'"""
            )

    def look(self, drivers: list[Json]) -> Outlook | None:
        """How far KubeRay has come with it."""
        job = self._kube.get("RayJob", self._run)
        if job is None:
            return None
        standing = kuberay.standing_of(job)
        if standing.is_over:
            return Outlook(standing.sentence, True, True, standing.has_succeeded)
        crew = _some_pods(self._kube, self._labels, CREW)
        # KubeRay has the driver train when all Pods are ready: before that it cannot tell who has joined.
        trouble = trouble_of([*drivers, *crew], [], [], spare={_role(pod) for pod in crew if is_ready_to_answer(pod)})
        if trouble is None:
            is_full = "exceeded quota" in standing.sentence
            return Outlook(standing.sentence, is_final=is_full, may_pass=is_full, is_queued=standing.is_queued)
        if kuberay.NO_DASHBOARD in trouble.sentence:
            return Outlook(
                "the Ray in its image lacks what KubeRay gives its orders to; build the image with "
                """"steppe image build --package 'ray[default]'", or leave kubernetes.engine out""",
                is_final=True,
            )
        return _outlook(trouble)

    def trouble_of_crew(self, spare: Collection[str]) -> Trouble | None:
        """Of their Pods; why there are none only KubeRay knows."""
        trouble = trouble_of(_some_pods(self._kube, self._labels, CREW), [], [], spare)
        job = self._kube.get("RayJob", self._run) if trouble is None else None
        sentence = kuberay.standing_of(job).sentence if job is not None else ""
        return Trouble(sentence, is_final=False) if sentence else trouble

    def _listed(self, labels: dict[str, str]) -> list[Json]:
        try:
            return self._kube.listed("RayJob", labels)
        except KubeError as error:
            # KubeRay was uninstalled, and all its objects with it.
            if error.code == 404:
                return []
            raise


def has_kuberay(kube: Kube) -> bool | None:
    """Whether the cluster knows RayJobs; None where that cannot be asked."""
    answer = kube.ask("GET", f"/apis/{kuberay.API}")
    if answer.code == 404:
        return False
    if answer.code != 200:
        return None
    return any(each.get("name") == kuberay.PLURAL for each in json.loads(answer.body).get("resources") or ())


def _some_pods(kube: Kube, labels: dict[str, str], roles: Iterable[str]) -> list[Json]:
    """Some of each role, those that do not run first."""
    found: dict[str, Json] = {}
    for role in roles:
        for fields in (NOT_RUNNING, ""):
            some = kube.listed("Pod", labels | {naming.ROLE: role}, fields, limit=MOST_PODS)
            found |= {pod["metadata"]["name"]: pod for pod in some}
            if len(some) == MOST_PODS:
                break
    return list(found.values())


def _outlook(trouble: Trouble | None) -> Outlook:
    if trouble is None:
        return Outlook()
    return Outlook(
        trouble.sentence,
        trouble.is_final,
        seconds=trouble.seconds,
        may_pass=trouble.may_pass,
        is_queued=trouble.is_queued,
    )


def _role(thing: Json) -> str:
    return str(thing["metadata"]["labels"].get(naming.ROLE))


def _since(labels: dict[str, str], start: int | None) -> dict[str, str]:
    return labels if start is None else labels | {naming.START: str(start)}
