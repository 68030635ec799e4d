"""An experiment on a cluster, as a client sees it: start it, look at it, ask something of it, fetch its files."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from steppe.errors import ClusterError, StateError
from steppe.platforms.kubernetes.client import result_files, run_objects
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.client.status_client import StatusClient
from steppe.platforms.kubernetes.client.workloads import Workload
from steppe.platforms.kubernetes.diagnosis.driver_phase import (
    is_expendable,
    missing_pods,
    silent_phase,
    starting_phase,
    stuck_phase,
    with_sidecar_failure,
)
from steppe.platforms.kubernetes.diagnosis.pod_health import PodHealth, is_running, sidecar_failure, termination_of
from steppe.platforms.kubernetes.diagnosis.pod_watch import PodHopeless, watch
from steppe.platforms.kubernetes.manifests import naming, rendering
from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan
from steppe.platforms.kubernetes.storage import stored_results
from steppe.platforms.kubernetes.storage.object_store import stored_at

Json = dict[str, Any]
READER_SECONDS = 180.0
"""How long a reader may take to start."""
POOL_SECONDS = 10.0
"""How long the health of the pool is kept before another look, since some workers may be missing for a whole run."""
LARGEST_NOTE = 200_000


class RemoteRun:
    """One experiment on one cluster."""

    def __init__(self, kube: Kube, name: str) -> None:
        """`name` is the beginning of all its objects' names."""
        self.kube, self.name = kube, name
        self._client = StatusClient(kube, name)
        self._known_workload: Workload | None = None
        self._known_pool_health: tuple[float, set[str], PodHealth] | None = None

    def check(self, plan: ManifestPlan, *, is_known: bool = False) -> None:
        """Refuses a plan that cannot be started here, before anything is made.

        `is_known` says that the experiment is the caller's own, from wherever it was started before.
        """
        run_objects.check(self.kube, plan, is_known=is_known)

    def start(self, plan: ManifestPlan, *, is_known: bool = False) -> None:
        """Creates every object that does not exist; the Pods of an earlier start are ended first."""
        self._known_workload = None
        run_objects.create(self.kube, plan, is_known=is_known)

    def look(self) -> PodHealth:
        """How the run is doing."""
        # As long as the driver answers, nothing else is asked for: there may be a thousand other Pods.
        drivers = self._drivers()
        for pod in reversed(drivers):
            if is_running(pod) and (answer := self._client.status_at(pod)) is not None:
                return self._health_by_driver(answer, pod)
        last = self._last_words(drivers)
        if last is not None and last.get("is_over"):
            return PodHealth(last.get("status"), is_alive=False)
        health = self._workload().health(drivers)
        if health is None:
            return PodHealth(self._noted_status(), is_alive=False)
        if not health.is_alive:
            return self._health_of_ended(health.trouble, last)
        return replace(
            health,
            status=last.get("status") if last is not None else self._noted_status(),
            phase=health.trouble or self._awaited(drivers, health),
            is_heard=False,
            is_silent=any(map(is_running, drivers)),
        )

    def ask(self, action: str) -> None:
        """Asks the driver to pause or stop."""
        pod = self._answering_driver()
        if pod is None:
            raise StateError("its driver does not run, so nothing can be asked of it")
        self._client.body_of(self._client.request(pod, "/ask", method="POST", body={"action": action}))

    def log(self, start: int = 0, is_patient: bool = False) -> bytes:
        """The log from byte `start` on; with `is_patient` no reader is started while a driver is still to come."""
        with self._source(is_patient) as pod:
            path = f"/log?from={start}"
            return self._client.body_of(self._client.request(pod, path, seconds=result_files.FILE_SECONDS))

    def files(self) -> list[Json]:
        """Every file with its size and checksum."""
        with self._files() as files:
            return files.listed()

    def download(
        self, to: Path, wanted: Callable[[str], bool], *, force: bool, tell: Callable[[str], None] | None = None
    ) -> list[Path]:
        """Fetches files, each checked by its checksum; files that exist here, whole or in part, are not sent again."""
        with self._files() as files:
            return result_files.download(files, to, wanted, force=force, tell=tell)

    def note(self, status: Json) -> None:
        """Keeps a status with the experiment, for when its Pods are gone."""
        text = json.dumps(status)
        if len(text) > LARGEST_NOTE:
            text = json.dumps(status | {"notices": [], "before": None})[:LARGEST_NOTE]
        self.kube.patch("ConfigMap", self.name, {"metadata": {"annotations": {naming.STATUS: text}}})

    def end_pods(self, start: int) -> None:
        """Ends everything that runs since that start, and nothing of a later one; the results stay."""
        self._workload().end(start)

    def delete(self) -> list[str]:
        """Deletes all objects, results included; returns the names of Pods that are still ending."""
        return run_objects.delete(self.kube, self.name, self._workload())

    def stored_at(self) -> str | None:
        """The URL of its results in object storage; None if they are on a disk of the cluster."""
        root = self._root()
        results = None if root is None else self._plan_of(root).pods.results
        return None if results is None else stored_at(results, self.name, self._client.token())

    def erase_stored(self) -> None:
        """Removes its results from object storage; it must have ended."""
        root = self._root()
        if root is not None and (plan := self._plan_of(root)).pods.results is not None:
            stored_results.erase(self.kube, plan, root["metadata"]["uid"])

    @property
    def origin(self) -> str | None:
        """From where it was last started; None if the cluster does not have it or does not know."""
        return run_objects.annotations_of(self._root() or {}).get(naming.ORIGIN)

    def _root(self) -> Json | None:
        return self.kube.get("ConfigMap", self.name)

    def _plan_of(self, root: Json) -> ManifestPlan:
        return run_objects.plan_of(root, self.kube.namespace)

    def _drivers(self) -> list[Json]:
        """The driver's Pods, the newest last."""
        pods = self.kube.listed("Pod", {naming.RUN: self.name, naming.ROLE: "driver"})
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _workload(self) -> Workload:
        """The workload that its root names; it stays the same until the next start."""
        if self._known_workload is None:
            self._known_workload = run_objects.workload_in(self._root() or {}, self.kube, self.name)
        return self._known_workload

    def _health_by_driver(self, answer: Json, pod: Json) -> PodHealth:
        """The health that a driver reports, with the reason if it lacks servers or workers."""
        status, joined = with_sidecar_failure(answer.get("status"), pod), answer.get("joined") or {}
        missing = missing_pods(joined)
        if answer["is_over"] or not missing:
            return PodHealth(status, is_alive=not answer["is_over"], phase=sidecar_failure(pod))
        health = self._pool_health({kind for kind, each in joined.items() if is_expendable(kind, each)})
        return replace(health, status=status, phase=f"{missing}: {health.phase}" if health.phase else missing)

    def _pool_health(self, expendable: set[str]) -> PodHealth:
        now, known = time.monotonic(), self._known_pool_health
        if known is None or known[0] < now - POOL_SECONDS or known[1] != expendable:
            self._known_pool_health = known = (now, expendable, self._workload().pool_health(expendable))
        return known[2]

    def _health_of_ended(self, trouble: str, last: Json | None) -> PodHealth:
        """The health of a run that has ended without reporting how: its results tell."""
        if not trouble:
            return PodHealth(self._status_of_results(), is_alive=False)
        if last is not None:
            status = last.get("status") or {}
            reason = f"; its last Pod: {status['reason']}" if status.get("reason") else ""
            return PodHealth(status, is_alive=False, trouble=trouble + reason)
        try:
            status = self._status_of_results()
        except ClusterError:
            # The problem that ended the run may keep a reader from running too.
            status = self._noted_status()
        return PodHealth(status, is_alive=False, trouble=trouble)

    def _last_words(self, drivers: list[Json]) -> Json | None:
        """The last report of the newest driver that left one when it ended."""
        for pod in reversed(drivers):
            ended = termination_of(pod)
            if ended is None:
                continue
            with contextlib.suppress(ValueError):
                words = json.loads(ended.get("message") or "")
                if isinstance(words, dict):
                    return words | {"status": with_sidecar_failure(words.get("status"), pod)}
        return None

    def _noted_status(self) -> Json | None:
        text = run_objects.annotations_of(self._existing_root()).get(naming.STATUS)
        with contextlib.suppress(ValueError):
            return dict(json.loads(text)) if text else None
        return None

    def _existing_root(self) -> Json:
        root = self._root()
        if root is None:
            raise StateError(
                f'cluster "{self.kube.name}" has no experiment "{self.name}" in namespace "{self.kube.namespace}" any '
                "more; start it anew with --force"
            )
        return root

    def _status_of_results(self) -> Json | None:
        """The status in the results, read by a reader since no Pod of the run is left to report it."""
        with self._reader() as pod:
            answer = self._client.body_of(self._client.request(pod, "/status"))
            return json.loads(answer).get("status")  # type: ignore[no-any-return]

    def _answers(self, pod: Json) -> bool:
        return is_running(pod) and self._client.status_at(pod) is not None

    def _answering_driver(self) -> str | None:
        """The name of the newest driver's Pod that answers."""
        return next((pod["metadata"]["name"] for pod in reversed(self._drivers()) if self._answers(pod)), None)

    @contextlib.contextmanager
    def _source(self, is_patient: bool = False) -> Iterator[str]:
        """A Pod that shows the files: the driver's, or a reader for as long as it is needed."""
        if (driver := self._answering_driver()) is not None:
            yield driver
            return
        # A reader would hold the disk, and a driver on another node could then not mount it.
        if (is_patient or self._has_disk_of_one_node()) and (phase := self._awaited_driver()):
            raise result_files.NotNow(f"its files cannot be read now: {phase}; try again when its driver answers")
        with self._reader() as reader:
            yield reader

    def _has_disk_of_one_node(self) -> bool:
        """Whether its results are on a disk that Pods of two nodes cannot mount at once."""
        root = self._root()
        pods = None if root is None else self._plan_of(root).pods
        return pods is not None and pods.results is None and pods.access_mode != "ReadWriteMany"

    def _awaited_driver(self) -> str:
        """The phase of a driver that is expected to answer later; empty if none is."""
        drivers = self._drivers()
        if (self._last_words(drivers) or {}).get("is_over"):
            return ""
        health = self._workload().health(drivers)
        return self._awaited(drivers, health) if health is not None and health.is_alive else ""

    def _awaited(self, drivers: list[Json], health: PodHealth) -> str:
        """The phase of a run while no driver answers."""
        return (
            stuck_phase(drivers, self.kube.namespace)
            or health.phase
            or silent_phase(drivers, self._client.silence, self.kube.name)
            or starting_phase(drivers)
        )

    @contextlib.contextmanager
    def _reader(self) -> Iterator[str]:
        """A short-lived Pod that shows the results; every caller has one of its own, so nobody ends another's."""
        root, kube = self._existing_root(), self.kube
        run_objects.delete_readers(
            kube, self.name, lambda pod: pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        )
        pod = rendering.reader(self._plan_of(root), owner_uid=root["metadata"]["uid"], suffix=secrets.token_hex(3))
        name = pod["metadata"]["name"]
        try:
            kube.create(pod)
            for made, _ in watch(kube, name, READER_SECONDS):
                if self._answers(made):
                    break
            yield name
        except PodHopeless as error:
            raise ClusterError(f"the results cannot be read: {error}") from None
        finally:
            with contextlib.suppress(ClusterError):
                kube.delete("Pod", name)

    def _files(self) -> result_files.ResultFiles:
        return result_files.ResultFiles(self._source, self._still_answers, self._client.request, self._client.refused)

    def _still_answers(self, name: str) -> bool:
        pod = self.kube.get("Pod", name)
        return pod is not None and self._answers(pod)
