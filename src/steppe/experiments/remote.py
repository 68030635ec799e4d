"""Experiments on clusters: the run folder here remembers where each one is, and what was last seen of it."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import ClusterError, ProjectError, StateError, SteppeError, UserError
from steppe.experiments.states import ENDED, State
from steppe.experiments.store import RunFolder, Status, is_own
from steppe.records.durable import write_atomically
from steppe.specs.files import PROJECT_FILE, find_project, read_spec_file

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable
    from steppe.platforms.kubernetes.remote_run import RemoteRun
    from steppe.platforms.kubernetes.rendering import Plan
    from steppe.platforms.kubernetes.sights import Sight
    from steppe.runners import Progress
    from steppe.specs.experiment import ExperimentSpec

PLACE_FILE = "cluster.json"
LOOK_SECONDS = 1.0
"""How often a run that is followed is looked at."""
UNREACHABLE_SECONDS = 120.0
"""For how long a cluster may be out of reach before nobody follows a run any more."""
PENDING_SECONDS = 900.0
"""For how long a run that is followed may wait for its Pod."""
PODS_GONE = "its Pods are gone; somebody has deleted them"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where an experiment is."""

    cluster: str
    """As `steppe cluster list` names it."""
    namespace: str
    name: str
    """What its objects' names begin with."""
    generation: int = 1
    start: int = 0
    owns_cluster: bool = False
    """Whether the cluster was made for this experiment alone, and ends with it."""
    project: str = ""
    """What its project was called when it was first started, which its objects' names follow from."""
    has_begun: bool = True
    """Whether its last start went through: one that was cut short may have left Pods."""


def place_of(folder: RunFolder) -> Place | None:
    """Where the experiment is; None where it is on this machine."""
    path = folder.path / PLACE_FILE
    if not path.exists():
        return None
    data = read_spec_file(path)
    known = {field.name for field in dataclasses.fields(Place)}
    try:
        return Place(**{key: value for key, value in data.items() if key in known})
    except TypeError:
        raise StateError(
            f"{path} does not say where the experiment is; delete it to have the experiment here"
        ) from None


def plan(folder: RunFolder, spec: ExperimentSpec, reachable: Reachable | None, place: Place | None = None) -> Plan:
    """What the experiment looks like on a cluster."""
    from steppe.experiments import named_files
    from steppe.experiments.user_modules import user_modules
    from steppe.platforms.kubernetes.rendering import Plan
    from steppe.specs.kubernetes import joined

    root = find_project(folder.path)
    cluster = reachable.spec if reachable is not None else spec.cluster
    # All of it in the experiment's own spec: whoever reads its results later need not know the cluster's.
    pods = joined(cluster.kubernetes if cluster is not None else None, spec.kubernetes)
    spec = spec.model_copy(update={"platform": "kubernetes", "kubernetes": pods, "cluster": cluster})
    namespace = place.namespace if place is not None else reachable.namespace if reachable is not None else "default"
    folders = [Path.cwd(), *([root] if root else [])]
    named_files.check(spec)
    return Plan(
        spec=spec,
        project=(place.project if place is not None else "") or _project_name(folder, root),
        namespace=namespace,
        cluster=cluster,
        modules=user_modules(spec, folders) | named_files.small_files(spec, folders),
        files=named_files.large_files(spec),
        generation=str(place.generation if place is not None else 1),
        start=str(place.start if place is not None else 1),
        origin=f"{getpass.getuser()}@{socket.gethostname()}:{folder.path}",
    )


def manifest(folder: RunFolder, cluster: str | None, namespace: str | None) -> str:
    """The experiment's objects as YAML; the tokens that its Pods share are never printed."""
    from steppe.clusters import registry
    from steppe.platforms.kubernetes.rendering import as_yaml, render
    from steppe.platforms.kubernetes.words import TOKEN_KEYS

    place = place_of(folder)
    name = cluster or (place.cluster if place is not None else None)
    made = plan(folder, folder.spec(), registry.find(name) if name is not None else None, place)
    if namespace is not None:
        made = dataclasses.replace(made, namespace=namespace)
    literals = " ".join(f"--from-literal={key}=$(openssl rand -hex 32)" for key in TOKEN_KEYS)
    comment = (
        f"Experiment {folder.name}. Its Pods share tokens, which are made once:\n"
        f"  kubectl create secret generic {made.name}-tokens --namespace {made.namespace} {literals}\n"
        f"  kubectl label secret {made.name}-tokens --namespace {made.namespace} steppe/run={made.name}\n"
        "All of it is removed again by:\n"
        f"  kubectl delete all,configmap,secret,pvc --namespace {made.namespace} --selector steppe/run={made.name}"
    )
    return as_yaml(render(made, for_any_server=True), comment)


def settle_place(folder: RunFolder, spec: ExperimentSpec, cluster: str | None, tell: Tell) -> Place:
    """Where the experiment is to run: where it is already, on `cluster`, or on the one that its spec describes."""
    from steppe.clusters import lifecycle as clusters
    from steppe.clusters import registry
    from steppe.experiments.own_cluster import name_for

    place = place_of(folder)
    if place is not None:
        if cluster not in (None, place.cluster):
            raise StateError(
                f'experiment "{folder.name}" is on cluster "{place.cluster}", and its results too; delete it there '
                "first, or make another experiment"
            )
        return place
    if cluster is None and spec.cluster is None:
        raise UserError(
            f'experiment "{folder.name}" has platform "kubernetes" and no cluster; name one: '
            f"{folder.ways.start_on('CLUSTER')}"
        )
    name = cluster or (spec.cluster.name if spec.cluster is not None else None) or name_for(folder.name)
    wanted = spec.cluster if spec.cluster is not None else None if registry.knows(name) else _described(name, folder)
    # Remembered with the cluster: a start that is cut short while it is made must not leave it without its owner.
    made_for = "" if cluster is not None else str(folder.path)
    # What cannot be started is not to cost a cluster.
    described = registry.read(name).spec if registry.knows(name) else wanted
    plan(folder, spec.model_copy(update={"cluster": described}), None)
    reachable = clusters.ensure(name, wanted, tell, made_for)
    from steppe.platforms.kubernetes.naming import run_name

    project = _project_name(folder, find_project(folder.path))
    owns = reachable.is_owned and registry.read(name).made_for == str(folder.path)
    name = run_name(project, spec.name)
    return Place(reachable.name, reachable.namespace, name, owns_cluster=owns, project=project)


def start(folder: RunFolder, place: Place, *, renew: bool = False) -> Place:
    """Begins the prepared experiment on its cluster, or goes on with it there."""
    is_known, status = place_of(folder) is not None, folder.read_status()
    place = dataclasses.replace(place, start=place.start + 1, generation=place.generation + renew, has_begun=True)
    with _reached(place) as (reachable, run):
        made = plan(folder, folder.spec(), reachable, place)
        run.check(made, is_known=is_known)
        # Before anything is made: Pods that nobody knows of would run for ever.
        _write_place(folder, dataclasses.replace(place, has_begun=False))
        try:
            run.start(made, is_known=is_known)
        except BaseException:
            with contextlib.suppress(ClusterError):
                run.end_pods(place.start)
                folder.write_status(status)
                if is_known or run.origin == made.origin:
                    _write_place(folder, place)
                else:
                    (folder.path / PLACE_FILE).unlink()
            raise
        _write_place(folder, place)
        folder.write_status(
            dataclasses.replace(status, state="starting", reason="", phase="its Pod is starting", finished=None)
        )
    return place


def status(folder: RunFolder, place: Place) -> Status:
    """What can be seen of it now, noted here too; one that has ended stays as it was."""
    from steppe.clusters import registry

    if (known := folder.read_status()).state in ENDED and place.has_begun:
        return known
    if not registry.knows(place.cluster):
        # Not written down: it may be registered again.
        return dataclasses.replace(known, state="failed", reason=_unknown(place), phase="")
    with _reached(place) as (_, run):
        try:
            sight = run.look()
        except StateError as error:
            # Nothing of it is there. Not written down either: whoever starts it anew, or deletes it, does that.
            return dataclasses.replace(known, state="failed", reason=str(error), phase="") if known.is_live else known
        if not place.has_begun:
            if not sight.is_alive:
                # Its start goes on in another process, or was cut short before it had made any Pods.
                return known
            _write_place(folder, dataclasses.replace(place, has_begun=True))
        seen = _noted(folder, _status(folder, sight))
        if known.is_live and not seen.is_live:
            # Nobody has followed it: what is left of its Pods, such as a simulator beside it, has nothing to do.
            _settle(folder, run, seen, place.start)
        return seen


def follow(folder: RunFolder, on_status: Callable[[Status], None]) -> Status:
    """Looks at a run until it ends or cannot go on; its Pods are ended then, and what it left stays."""
    from steppe.platforms.kubernetes.patience import Patience

    place = _placed(folder)
    with _reached(place) as (_, run):
        reached = progressed = time.monotonic()
        patience, timestep = Patience(), 0
        while True:
            try:
                sight = run.look()
                reached = time.monotonic()
            except ClusterError as error:
                if time.monotonic() - reached > UNREACHABLE_SECONDS:
                    raise
                on_status(dataclasses.replace(folder.read_status(), phase=str(error)))
                time.sleep(LOOK_SECONDS)
                continue
            seen = _noted(folder, _status(folder, sight))
            on_status(seen)
            if not seen.is_live:
                _settle(folder, run, seen, place.start)
                return seen
            now = time.monotonic()
            if patience.ends(sight.trouble, sight.seconds):
                # Nobody is to pay for its waiting.
                return _ended(folder, run, seen, "failed", sight.trouble)
            if not sight.phase or seen.timestep != timestep:
                # Some of its workers may be missing while it trains.
                progressed, timestep = now, seen.timestep
            if now - progressed > PENDING_SECONDS:
                raise ClusterError(
                    f'experiment "{folder.name}" still waits on cluster "{place.cluster}": {sight.phase}; it goes on '
                    f"waiting there: look again with {folder.ways.show}, or end it with {folder.ways.stop}"
                )
            time.sleep(LOOK_SECONDS)


def progress_of(status: Status) -> Progress:
    """What is seen of a run, for displays."""
    from steppe.runners import Progress

    return Progress(
        phase=status.phase,
        timestep=status.timestep,
        episode=status.episode,
        update=status.update,
        mean_return=status.mean_return,
        mean_length=status.mean_length,
        best_return=status.best_return,
        steps_per_second=status.steps_per_second or 0.0,
        seconds=status.seconds,
        notices=status.notices,
    )


def pause(folder: RunFolder, timeout: float) -> Status:
    """Asks the driver to save a checkpoint and pause; the status when its Pods have ended."""
    return _asked_to_end(folder, "pause", "paused", timeout)


def stop(folder: RunFolder, timeout: float) -> Status:
    """Asks the driver to save a checkpoint and stop; one that waits for its Pods is stopped at once."""
    return _asked_to_end(folder, "stop", "stopped", timeout)


@contextlib.contextmanager
def log_of(folder: RunFolder) -> Iterator[tuple[Callable[[int], bytes], Callable[[], bool]]]:
    """(what was logged from a byte on, whether the run still goes on), to be asked again and again."""
    with _reached(_placed(folder)) as (_, run):
        yield run.log, lambda: _noted(folder, _status(folder, run.look())).is_live


def files(folder: RunFolder) -> list[dict[str, Any]]:
    """Path, size and checksum of every file of the run."""
    with _reached(_placed(folder)) as (_, run):
        return run.files()


def download(folder: RunFolder, to: Path, *, force: bool, tell: Tell | None = None) -> list[Path]:
    """Fetches what the run left, each file checked; a download that was cut short goes on where it was."""

    def is_result(path: str) -> bool:
        return not any(is_own(part) for part in Path(path).parts)

    with _reached(_placed(folder)) as (_, run):
        return run.download(to, is_result, force=force, tell=tell)


def settle_stored(folder: RunFolder, *, erase: bool) -> str | None:
    """Before an experiment is deleted: where in object storage its results stay, which `erase` removes."""
    from steppe.clusters import registry

    place = place_of(folder)
    if place is None or not registry.knows(place.cluster):
        return None
    with _reached(place) as (_, run):
        if erase:
            run.erase_stored()
            return None
        with contextlib.suppress(ClusterError):
            return run.stored_at()
    return None


def delete(folder: RunFolder) -> None:
    """Removes the experiment and its results from the cluster."""
    from steppe.clusters import registry

    place = _placed(folder)
    # Of a cluster that is gone or forgotten nothing can be reached any more.
    if registry.knows(place.cluster):
        delete_at(place)


def delete_at(place: Place) -> None:
    """Removes all that is there, results included."""
    with _reached(place) as (_, run):
        run.delete()


def _asked_to_end(folder: RunFolder, action: str, wanted: State, timeout: float) -> Status:
    place = _placed(folder)
    start = place.start
    with _reached(place) as (_, run):
        seen = _noted(folder, _status(folder, run.look()))
        folder.advance(seen.state, "stop" if action == "stop" else "ask_pause")
        if not seen.is_live:
            return _ended(folder, run, seen, "stopped", "stopped while paused")
        if seen.state == "starting":
            # Nothing has been trained since the last checkpoint.
            if not seen.timestep and action == "pause":
                raise StateError(
                    f'experiment "{folder.name}" has not begun to train ({seen.phase or "starting"}), so there is '
                    f"nothing to pause; end it with: {folder.ways.stop}"
                )
            return _ended(folder, run, seen, wanted, f"{wanted} while it was starting")
        run.ask(action)
        deadline = time.monotonic() + timeout
        while seen.is_live:
            if time.monotonic() > deadline:
                raise SteppeError(
                    f'experiment "{folder.name}" is not {wanted} after {timeout:g} s; it is still {seen.state}'
                    f"{f' ({seen.phase})' if seen.phase else ''}; look again with: {folder.ways.show}"
                )
            time.sleep(LOOK_SECONDS / 2)
            seen = _noted(folder, _status(folder, run.look()))
        _settle(folder, run, seen, start)
        return seen


def _ended(folder: RunFolder, run: RemoteRun, seen: Status, state: State, reason: str) -> Status:
    seen = dataclasses.replace(seen, state=state, reason=reason, finished=time.time(), phase="")
    _settle(folder, run, seen, _placed(folder).start)
    return _noted(folder, seen)


def _settle(folder: RunFolder, run: RemoteRun, status: Status, start: int) -> None:
    """Keeps the last status with the experiment, and ends the Pods of that start."""
    run.end_pods(start)
    if _placed(folder).start == start:
        run.note(dataclasses.asdict(status))


def _status(folder: RunFolder, sight: Sight) -> Status:
    """What is seen of a run, in the words of the state machine."""
    known = folder.read_status()
    seen = Status.from_data(sight.status) if sight.status else None
    if sight.is_alive:
        if seen is None or not seen.is_live:
            base = seen or known
            return dataclasses.replace(
                base, state="starting", reason="", finished=None, phase=sight.phase or "starting", created=known.created
            )
        return dataclasses.replace(seen, phase=sight.phase or seen.phase, created=known.created)
    if seen is None:
        # It never said a word.
        seen = known
    seen = dataclasses.replace(seen, created=known.created)
    if seen.is_live or (sight.trouble and seen.state != "failed"):
        reason = sight.trouble or PODS_GONE
        return dataclasses.replace(seen, state="failed", reason=reason, finished=time.time(), phase="")
    return seen


def _noted(folder: RunFolder, status: Status) -> Status:
    """The same, written down here for when the cluster cannot be asked."""
    if status != folder.read_status():
        folder.write_status(status)
    return status


@contextlib.contextmanager
def _reached(place: Place) -> Iterator[tuple[Reachable, RemoteRun]]:
    from steppe.clusters import registry
    from steppe.platforms.kubernetes.kubeapi import Kube
    from steppe.platforms.kubernetes.remote_run import RemoteRun

    if not registry.knows(place.cluster):
        raise ClusterError(_unknown(place))
    reachable = registry.find(place.cluster)
    with Kube(reachable.kubeconfig, reachable.context, place.namespace, reachable.name) as kube:
        yield reachable, RemoteRun(kube, place.name)


def _unknown(place: Place) -> str:
    return (
        f'cluster "{place.cluster}", where it is, is not known here any more; register it again under that name '
        "(steppe cluster create), or delete the experiment"
    )


def _placed(folder: RunFolder) -> Place:
    place = place_of(folder)
    if place is None:
        raise StateError(f'experiment "{folder.name}" is on no cluster')
    return place


def _described(name: str, folder: RunFolder) -> Any:
    """The spec in configs/clusters/ of a cluster that is not there yet; None where there is none either."""
    from steppe.specs.cluster import ClusterSpec
    from steppe.specs.files import locate_config, shown_path
    from steppe.specs.validation import validate

    root = find_project(folder.path)
    path = locate_config(name, [root / "configs" / "clusters"]) if root is not None else None
    return None if path is None else validate(ClusterSpec, read_spec_file(path), source=shown_path(path))


def _project_name(folder: RunFolder, root: Path | None) -> str:
    if root is None:
        return folder.path.parent.name
    about = read_spec_file(root / PROJECT_FILE)
    if not isinstance(about, dict):
        raise ProjectError(
            f"{root / PROJECT_FILE} does not describe a project; write it anew with: steppe init --force"
        )
    return str(about.get("name") or root.name)


def _write_place(folder: RunFolder, place: Place) -> None:
    write_atomically(folder.path / PLACE_FILE, json.dumps(dataclasses.asdict(place), indent=1) + "\n")
