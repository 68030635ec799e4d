"""An experiment on a cluster, as a client sees it: start it, look at it, ask something of it, fetch its files."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from steppe.errors import ClusterError, StateError
from steppe.platforms.kubernetes.agreement import TOKEN_KEYS
from steppe.platforms.kubernetes.client import fetching
from steppe.platforms.kubernetes.client.asking import Doors
from steppe.platforms.kubernetes.client.engines import Engine, Outlook, engine_named
from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeError
from steppe.platforms.kubernetes.client.sights import (
    Sight,
    can_do_with,
    explained,
    lack,
    not_ending,
    phase_of,
    stuck,
    unheard,
)
from steppe.platforms.kubernetes.diagnosis.patience import NotComing, watch
from steppe.platforms.kubernetes.diagnosis.waiting import Trouble, end_beside, is_ready_to_answer, termination_of
from steppe.platforms.kubernetes.manifests import naming, permissions, rendering
from steppe.platforms.kubernetes.manifests.rendering import Plan
from steppe.platforms.kubernetes.storage import stored_results
from steppe.platforms.kubernetes.storage.object_store import stored_at

Json = dict[str, Any]
READER_SECONDS = 180.0
"""How long a reader may take to start."""
CREW_SECONDS = 10.0
"""How long is believed what was seen of workers that are missing: some may be for as long as a run lasts."""
LARGEST_NOTE = 200_000


class RemoteRun:
    """One experiment on one cluster."""

    def __init__(self, kube: Kube, name: str) -> None:
        """`name` is what its objects' names begin with."""
        self.kube, self.name = kube, name
        self._labels = {naming.RUN: name}
        self._doors = Doors(kube, name)
        self._known_engine: Engine | None = None
        self._seen_of_crew: tuple[float, set[str], Trouble | None] | None = None

    def check(self, plan: Plan, *, is_known: bool = False) -> Json | None:
        """Refuses what cannot be started here, before anything is made; the root, where there is one.

        `is_known` says that it is the caller's own experiment, from wherever it was started before.
        """
        engine_named(plan.engine, self.kube, self.name).check()
        root = self.kube.get("ConfigMap", plan.name)
        if root is not None:
            if not is_known:
                self._check_ours(root, plan)
            stored_results.check_place(self._plan_of(root), plan)
        return root

    def start(self, plan: Plan, *, is_known: bool = False) -> None:
        """Makes everything that is not there; what runs since an earlier start must have ended."""
        kube = self.kube
        engine = engine_named(plan.engine, kube, self.name)
        manifest = rendering.root(plan)
        root = self.check(plan, is_known=is_known)
        is_new = root is None
        if root is None:
            root = kube.create(manifest)
        uid = root["metadata"]["uid"]
        try:
            self._end_work(self._engine_of(root))
            for each in rendering.carried(plan):
                kube.create_or_keep(rendering.with_owner(plan, each, uid))
            kube.patch("ConfigMap", plan.name, _changes(root, manifest))
            self._delete_carried(root, but=plan.carried)
            self._known_engine = engine
            if kube.get("Secret", f"{plan.name}-tokens") is None:
                tokens = {key: secrets.token_hex(32) for key in TOKEN_KEYS}
                kube.create_or_keep(rendering.with_owner(plan, rendering.secret(plan, tokens), uid))
            for each in (*rendering.claims(plan), rendering.service(plan)):
                kube.create_or_keep(rendering.with_owner(plan, each, uid))
            self._replace_policy(plan, uid)
            engine.make(plan, uid)
        except BaseException:
            # Nothing is left of a start that came to nothing, be it by Ctrl-C, unless there were results before.
            with contextlib.suppress(ClusterError):
                engine.end()
            if is_new:
                with contextlib.suppress(ClusterError):
                    kube.delete("ConfigMap", plan.name)
            raise

    def look(self) -> Sight:
        """How it is going."""
        # Only the driver's, as long as it answers: there may be a thousand others.
        drivers = self._drivers()
        for pod in reversed(drivers):
            if is_ready_to_answer(pod) and (answer := self._doors.status_at(pod)) is not None:
                return self._answered(answer, pod)
        last = self._last_words(drivers)
        if last is not None and last.get("is_over"):
            return Sight(last.get("status"), is_alive=False)
        outlook = self._engine().look(drivers)
        if outlook is None:
            return Sight(self._noted(), is_alive=False)
        if outlook.is_over:
            return self._over(outlook, last)
        status = last.get("status") if last is not None else self._noted()
        trouble = outlook.sentence if outlook.is_final else ""
        phase = trouble or self._awaited(drivers, outlook)
        return Sight(
            *(status, True, phase, trouble, outlook.seconds, outlook.may_pass, outlook.is_queued),
            is_heard=False,
            is_silent=any(map(is_ready_to_answer, drivers)),
        )

    def ask(self, action: str) -> None:
        """Asks the driver to pause or stop."""
        with self._at_driver() as pod:
            if pod is None:
                raise StateError("its driver does not run, so nothing can be asked of it")
            self._doors.expect(self._doors.ask(pod, "/ask", method="POST", body={"action": action}))

    def log(self, start: int = 0, is_patient: bool = False) -> bytes:
        """What was logged from byte `start` on; who is patient rather waits than have a reader started."""
        with self._at_door(is_patient) as pod:
            return self._doors.expect(self._doors.ask(pod, f"/log?from={start}", seconds=fetching.FILE_SECONDS))

    def files(self) -> list[Json]:
        """Every file with its size and checksum."""
        with self._files() as files:
            return files.listed()

    def download(
        self, to: Path, wanted: Callable[[str], bool], *, force: bool, tell: Callable[[str], None] | None = None
    ) -> list[Path]:
        """Fetches files, each checked by its checksum; what is here already, whole or in part, is not fetched again."""
        with self._files() as files:
            return fetching.download(files, to, wanted, force=force, tell=tell)

    def note(self, status: Json) -> None:
        """Keeps a status with the experiment, for when its Pods are gone."""
        text = json.dumps(status)
        if len(text) > LARGEST_NOTE:
            text = json.dumps(status | {"notices": [], "before": None})[:LARGEST_NOTE]
        self.kube.patch("ConfigMap", self.name, {"metadata": {"annotations": {naming.STATUS: text}}})

    def end_pods(self, start: int) -> None:
        """Ends everything that runs since that start, and nothing of a later one; the results stay."""
        self._engine().end(start)

    def delete(self) -> list[str]:
        """Removes all of it, results included; the names of Pods that are still ending."""
        engine = self._engine()
        engine.end()
        engine.wait_until_gone()
        self._delete_readers(lambda pod: True)
        self._delete_carried(self.kube.get("ConfigMap", self.name) or {})
        # Whoever may not delete a NetworkPolicy has it go with the root that owns it.
        with contextlib.suppress(KubeError):
            self.kube.delete("NetworkPolicy", self.name)
        for kind, name in (
            ("Pod", f"{self.name}-eraser"),
            ("Service", self.name),
            ("Secret", f"{self.name}-tokens"),
            ("PersistentVolumeClaim", f"{self.name}-results"),
            ("ConfigMap", self.name),
        ):
            self.kube.delete(kind, name)
        return self.kube.wait_until_gone("Pod", self._labels)

    def stored_at(self) -> str | None:
        """Where in object storage its results are; None where they are on a disk of the cluster."""
        root = self.kube.get("ConfigMap", self.name)
        results = None if root is None else self._plan_of(root).pods.results
        return None if results is None else stored_at(results, self.name, self._doors.token())

    def erase_stored(self) -> None:
        """Removes its results from object storage; it must have ended."""
        root = self.kube.get("ConfigMap", self.name)
        if root is not None and (plan := self._plan_of(root)).pods.results is not None:
            stored_results.erase(self.kube, plan, root["metadata"]["uid"])

    @property
    def exists(self) -> bool:
        """Whether the cluster has it."""
        return self.kube.get("ConfigMap", self.name) is not None

    @property
    def origin(self) -> str | None:
        """From where it was last started; None where the cluster has it not, or does not know."""
        root = self.kube.get("ConfigMap", self.name) or {}
        return (root.get("metadata", {}).get("annotations") or {}).get(naming.ORIGIN)

    def _replace_policy(self, plan: Plan, uid: str) -> None:
        """Makes the NetworkPolicy of this start in place of an earlier one, before there is a Pod to connect to."""
        wanted = rendering.network_policies(plan)
        try:
            self.kube.delete("NetworkPolicy", plan.name)
            for each in wanted:
                self.kube.create(rendering.with_owner(plan, each, uid))
        except KubeError as error:
            if error.code == 403 and wanted:
                raise KubeError(
                    f'you may not make NetworkPolicies in namespace "{self.kube.namespace}" of cluster '
                    f'"{self.kube.name}", and without one any Pod of the cluster can connect to the experiment\'s; '
                    f"{permissions.way_to_get_it(self.kube.name, self.kube.namespace)}; or do without it: "
                    "kubernetes.network_policy false",
                    error.code,
                ) from error
            if error.code != 403:
                raise

    def _check_ours(self, root: Json, plan: Plan) -> None:
        known = root["metadata"].get("annotations", {}).get(naming.ORIGIN, "")
        if plan.origin and known and known != plan.origin:
            raise StateError(
                f'namespace "{self.kube.namespace}" of cluster "{self.kube.name}" has an experiment '
                f'"{plan.spec.name}" of a project "{plan.project}" already, started from {known}; choose another name, '
                "or another namespace"
            )

    def _drivers(self) -> list[Json]:
        """The driver's Pods, the newest last."""
        pods = self.kube.listed("Pod", self._labels | {naming.ROLE: "driver"})
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _engine(self) -> Engine:
        """What makes its Pods, as its root says; that stays so until somebody starts it again."""
        if self._known_engine is None:
            self._known_engine = self._engine_of(self.kube.get("ConfigMap", self.name) or {})
        return self._known_engine

    def _engine_of(self, root: Json) -> Engine:
        annotations = root.get("metadata", {}).get("annotations") or {}
        return engine_named(annotations.get(naming.ENGINE, ""), self.kube, self.name)

    def _end_work(self, engine: Engine) -> None:
        """Ends what runs, and waits until nobody writes results any more."""
        engine.end()
        engine.wait_until_gone()
        left = self.kube.wait_until_gone("Pod", self._labels | {naming.ROLE: "driver"})
        if left:
            raise ClusterError(not_ending(left[0], self.kube.namespace))

    def _answered(self, answer: Json, pod: Json) -> Sight:
        """What a driver tells, and where it lacks servers or workers, why."""
        status, joined = explained(answer.get("status"), pod), answer.get("joined") or {}
        missing = lack(joined)
        if answer["is_over"] or not missing:
            return Sight(status, is_alive=not answer["is_over"], phase=end_beside(pod))
        trouble = self._trouble_of_crew({kind for kind, each in joined.items() if can_do_with(kind, each)})
        if trouble is None:
            return Sight(status, is_alive=True, phase=missing)
        final = trouble.sentence if trouble.is_final else ""
        phase = f"{missing}: {trouble.sentence}"
        return Sight(status, True, phase, final, trouble.seconds, trouble.may_pass, trouble.is_queued)

    def _trouble_of_crew(self, spare: set[str]) -> Trouble | None:
        now = time.monotonic()
        known = self._seen_of_crew
        if known is None or known[0] < now - CREW_SECONDS or known[1] != spare:
            self._seen_of_crew = known = (now, spare, self._engine().trouble_of_crew(spare))
        return known[2]

    def _over(self, outlook: Outlook, last: Json | None) -> Sight:
        """What has ended without saying how: its results know."""
        if outlook.has_succeeded:
            return Sight(self._status_of_results(), is_alive=False)
        if last is not None:
            status = last.get("status") or {}
            reason = f"; its last Pod: {status['reason']}" if status.get("reason") else ""
            return Sight(status, is_alive=False, trouble=outlook.sentence + reason)
        try:
            status = self._status_of_results()
        except ClusterError:
            # What keeps a reader from running may be what has ended the run.
            status = self._noted()
        return Sight(status, is_alive=False, trouble=outlook.sentence)

    def _last_words(self, drivers: list[Json]) -> Json | None:
        for pod in reversed(drivers):
            ended = termination_of(pod)
            if ended is None:
                continue
            with contextlib.suppress(ValueError):
                words = json.loads(ended.get("message") or "")
                if isinstance(words, dict):
                    return words | {"status": explained(words.get("status"), pod)}
        return None

    def _noted(self) -> Json | None:
        root = self.kube.get("ConfigMap", self.name)
        if root is None:
            raise StateError(
                f'cluster "{self.kube.name}" has no experiment "{self.name}" in namespace "{self.kube.namespace}" any '
                "more; start it anew with --force"
            )
        text = (root["metadata"].get("annotations") or {}).get(naming.STATUS)
        with contextlib.suppress(ValueError):
            return dict(json.loads(text)) if text else None
        return None

    def _status_of_results(self) -> Json | None:
        """How the run has ended, where no Pod of it is left to say it."""
        with self._reader() as pod:
            return json.loads(self._doors.expect(self._doors.ask(pod, "/status"))).get("status")  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _at_driver(self) -> Iterator[str | None]:
        """The driver's Pod, where it answers."""
        answering = [
            pod for pod in self._drivers() if is_ready_to_answer(pod) and self._doors.status_at(pod) is not None
        ]
        yield answering[-1]["metadata"]["name"] if answering else None

    @contextlib.contextmanager
    def _at_door(self, is_patient: bool = False) -> Iterator[str]:
        """A Pod that shows the files: the driver's, or a reader for as long as it is needed."""
        with self._at_driver() as pod:
            if pod is not None:
                yield pod
                return
        # A reader would hold the disk, which a driver on another node could then not have.
        if (is_patient or self._has_disk_of_one_node()) and (phase := self._driver_to_come()):
            raise fetching.NotNow(f"its files cannot be read now: {phase}; try again when its driver answers")
        with self._reader() as pod:
            yield pod

    def _has_disk_of_one_node(self) -> bool:
        """Whether its results are on a disk that Pods of two nodes cannot have at once."""
        root = self.kube.get("ConfigMap", self.name)
        pods = None if root is None else self._plan_of(root).pods
        return pods is not None and pods.results is None and pods.access_mode != "ReadWriteMany"

    def _driver_to_come(self) -> str:
        """What a driver that is to come, or to answer again, waits for; empty where none will."""
        drivers = self._drivers()
        if (self._last_words(drivers) or {}).get("is_over"):
            return ""
        outlook = self._engine().look(drivers)
        return "" if outlook is None or outlook.is_over else self._awaited(drivers, outlook)

    def _awaited(self, drivers: list[Json], outlook: Outlook) -> str:
        """What is waited for while no driver answers."""
        return (
            stuck(drivers, self.kube.namespace)
            or outlook.sentence
            or unheard(drivers, self._doors.silence, self.kube.name)
            or phase_of(drivers)
        )

    @contextlib.contextmanager
    def _reader(self) -> Iterator[str]:
        root, kube = self.kube.get("ConfigMap", self.name), self.kube
        if root is None:
            self._noted()
            raise AssertionError
        self._delete_readers(lambda pod: pod.get("status", {}).get("phase") in ("Succeeded", "Failed"))
        # One for each who reads: nobody ends another's.
        pod = rendering.reader(self._plan_of(root), owner_uid=root["metadata"]["uid"], suffix=secrets.token_hex(3))
        name = pod["metadata"]["name"]
        try:
            kube.create(pod)
            self._wait_for_reader(name)
            yield name
        finally:
            with contextlib.suppress(ClusterError):
                kube.delete("Pod", name)

    def _plan_of(self, root: Json) -> Plan:
        """What a reader needs to know of the plan that the experiment was started with."""
        from steppe.spec_files import read_experiment

        spec = read_experiment(json.loads(root["data"]["experiment.json"]))
        annotations = root["metadata"].get("annotations") or {}
        return Plan(spec, annotations.get(naming.PROJECT, ""), self.kube.namespace, cluster=spec.cluster)

    def _delete_readers(self, which: Callable[[Json], bool]) -> None:
        for pod in self.kube.listed("Pod", self._labels | {naming.ROLE: "reader"}):
            if which(pod):
                self.kube.delete("Pod", pod["metadata"]["name"])

    def _delete_carried(self, root: Json, but: Collection[str] = ()) -> None:
        """The large files of an earlier start."""
        annotations = root.get("metadata", {}).get("annotations") or {}
        for name in annotations.get(naming.CARRIED, "").split():
            if name not in but:
                self.kube.delete("ConfigMap", name)

    def _wait_for_reader(self, name: str) -> None:
        try:
            for pod, _ in watch(self.kube, name, READER_SECONDS):
                if is_ready_to_answer(pod) and self._doors.status_at(pod) is not None:
                    return
        except NotComing as error:
            raise ClusterError(f"the results cannot be read: {error}") from None

    def _files(self) -> fetching.Files:
        return fetching.Files(self._at_door, self._still_answers, self._doors.ask, self._doors.refused)

    def _still_answers(self, name: str) -> bool:
        pod = self.kube.get("Pod", name)
        return pod is not None and is_ready_to_answer(pod) and self._doors.status_at(pod) is not None


def _changes(root: Json, manifest: Json) -> Json:
    """What makes an earlier root the one of this start: what it held and holds no more is taken out."""
    changes: Json = {"metadata": {"annotations": manifest["metadata"]["annotations"]}}
    for part in ("data", "binaryData"):
        wanted = manifest.get(part) or {}
        changes[part] = dict.fromkeys(root.get(part) or {}) | wanted
    return changes
