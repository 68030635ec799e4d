"""What people ask of an experiment: make it, start, pause, resume, stop, copy its results."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import EnvironmentAway, MissingEnvironment, StateError, SteppeError, UserError
from steppe.experiments import old_client, resume_rules
from steppe.experiments.given_environment import check_objects_known
from steppe.experiments.hints import Ways
from steppe.experiments.on_cluster import idle_nodes, own_cluster, places, remote
from steppe.experiments.project import known_stores, let_user_modules_import
from steppe.experiments.run_folder.states import State, stands
from steppe.experiments.run_folder.store import REQUEST_FILE, RunFolder, Status, Store, is_own
from steppe.files.durable import storing

if TYPE_CHECKING:
    from steppe.specs.experiment import ExperimentSpec

WAIT_SECONDS = 120.0
WITHOUT_NAME = "run"
"""What a spec is called until its run folder gives it a name."""


def check(spec: ExperimentSpec, start: Path, resumed: Path | None = None) -> list[str]:
    """All that can be known before training: notices, or the error that names the mistake.

    `resumed` is the folder of a run that trains on.
    """
    from steppe import runners

    let_user_modules_import(start)
    try:
        return runners.check(spec, resumed)
    except EnvironmentAway:
        if not (spec.kubernetes and spec.kubernetes.sidecars):
            raise
        return ["its agent and network are not checked yet, since its simulator only runs beside it, in its Pods"]
    except MissingEnvironment as error:
        if not _names_image(spec):
            if spec.platform != "kubernetes":
                raise
            raise MissingEnvironment(
                f"{error}; where only the image of its Pods has it, name that in kubernetes.image, or in "
                "kubernetes.worker.image where workers act"
            ) from None
        return ["its agent and network are not checked yet, since its environment is not installed here"]


def _names_image(spec: ExperimentSpec) -> bool:
    """Whether its Pods may have what this machine has not."""
    pods = spec.kubernetes
    return any(each.image is not None for each in (pods, pods.driver, pods.worker))


def create(
    spec: ExperimentSpec,
    store: Store,
    *,
    name: str | None = None,
    path: Path | None = None,
    force: bool = False,
    ways: Ways | None = None,
) -> RunFolder:
    """The spec's run folder: at `path`, or called `name` in the store, or a new number after what it trains."""
    from steppe.specs.experiment import valid_name

    if path is None:
        path = (store.new_folder(stem(spec)) if name is None else store.folder(name)).path
    folder = RunFolder(path, ways)
    seed = spec.seed if spec.seed is not None else _random_seed()
    folder.create(spec.model_copy(update={"name": valid_name(folder.name), "seed": seed}), force=force)
    return folder


def stem(spec: ExperimentSpec) -> str:
    """What a run without a name is called, before its number: `CartPole-v1-ppo`."""
    words = re.sub(
        r"[^A-Za-z0-9_]*[^A-Za-z0-9._-][^A-Za-z0-9_]*|\.{2,}", "-", f"{spec.environment.id}-{spec.agent.type}"
    )
    return words.strip("-.")[-60:].strip("-.") or "run"


def prepare(
    folder: RunFolder,
    *,
    resume: bool = False,
    force: bool = False,
    fields: dict[str, Any] | None = None,
    sets: list[str] | None = None,
) -> list[str]:
    """Everything that must hold before the experiment is started, and what `force`, `fields` and `sets` change in it.

    Returns what a user should know of the changes.
    """
    place = places.place_of(folder)
    status = folder.status()
    if status.is_live and place is not None:
        raise StateError(
            f'experiment "{folder.name}" is {status.state} already on cluster "{place.cluster}"; stop it first: '
            f"{folder.ways.stop}"
        )
    if status.is_live:
        with folder.lock("resume" if resume else "start") as status:
            pass  # refused here with the owner's process, unless it ended just now
    if force and resume:
        raise UserError("resume trains on and force starts anew; give one of the two")
    before = spec = folder.spec()
    check_objects_known(before.environment)
    is_old = old_client.made(folder)
    if fields or sets:
        spec = resume_rules.changed(folder, before, fields or {}, sets or [], resume)
    if is_old and spec.seed is None:
        spec = spec.model_copy(update={"seed": _random_seed()})
    notices = [] if spec is before else check(spec, folder.path, folder.path if resume else None)
    if is_old:
        notices = [f"experiment.json is the old tfcli's; it is kept as {old_client.OLD_SPEC_FILE}", *notices]
    if resume:
        _check_leaves_more(folder, before, spec, _trained(folder, status, is_here=place is None))
        _check_resumable(folder, spec, status, is_here=place is None)
        notices += resume_rules.moved_decay(folder, before, spec) if place is None else []
    elif not force:
        _check_startable(folder, status)
    with folder.lock("resume" if resume else "start") as status:
        if force:
            folder.advance(status.state, "renew")
            if place is None:
                folder.set_aside(status)
            folder.write_status(Status(created=time.time()))
        if is_old:
            old_client.keep_spec(folder)
        if spec is not before:
            folder.write_spec(spec)
    return notices


def check_has_cluster(spec: ExperimentSpec) -> None:
    """Refuses to start an experiment at once that is for a cluster and describes none."""
    if spec.platform == "kubernetes" and spec.cluster is None:
        raise UserError(
            'platform "kubernetes" needs a cluster; describe one (-C), or make the experiment without starting it and '
            "then start it on a cluster: steppe experiment start -e NAME -c CLUSTER"
        )


def is_for_cluster(folder: RunFolder, cluster: str | None = None) -> bool:
    """Whether the experiment is started on a cluster, where one is named, and not on this machine."""
    return (
        cluster is not None or places.place_of(folder) is not None or folder.spec_data().get("platform") == "kubernetes"
    )


def start_on_cluster(
    folder: RunFolder,
    cluster: str | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> places.Place:
    """Starts the prepared experiment on a cluster, which is made first where the experiment describes a new one."""
    with own_cluster.staying(folder):
        return _start_on_cluster(folder, cluster, resume, force, tell)


def _start_on_cluster(
    folder: RunFolder, cluster: str | None, resume: bool, force: bool, tell: Callable[[str], None]
) -> places.Place:
    is_new = places.place_of(folder) is None
    if is_new and resume:
        raise StateError(
            f'the results of experiment "{folder.name}" are on this machine, so it is resumed here: '
            f"{folder.ways.resume_with('platform', 'local')}; to start it anew on a cluster, stop it, and: "
            f"{folder.ways.start_on(cluster or 'CLUSTER')}"
        )
    spec = folder.spec()
    place = places.settle_place(folder, spec, cluster, tell)
    if notice := idle_nodes.notice_of(spec, place.cluster):
        tell(notice)
    return remote.start(folder, place, renew=force and not is_new)


def start_detached(folder: RunFolder, *, resume: bool = False) -> int:
    """Starts a process of its own that trains the prepared experiment; its id, once it owns the folder."""
    from steppe.platforms import LocalPlatform

    logged = log_size(folder)
    process = LocalPlatform().launch(training_command(folder, resume=resume), log=folder.log)
    while True:
        exit_code = process.exit_code()
        if folder.read_status().pid == process.pid:
            return process.pid
        if exit_code is not None:
            break
        time.sleep(0.02)
    raise SteppeError(f'experiment "{folder.name}" could not be started: {last_words(folder, logged)}')


def training_command(folder: RunFolder, *, resume: bool = False) -> list[str]:
    """What trains the prepared experiment in a process of its own."""
    more = ["--resume"] if resume else []
    return [sys.executable, "-P", "-m", "steppe.experiments.process.run", str(folder.path), *more]


def pause(folder: RunFolder, timeout: float = WAIT_SECONDS) -> Status:
    """Asks the owner to save a checkpoint and pause; the status when it has."""
    if places.place_of(folder) is not None:
        return remote.pause(folder, timeout)
    folder.advance(folder.status().state, "ask_pause")
    folder.ask("pause")
    return wait_until_ended(folder, "paused", timeout)


def stop(folder: RunFolder, timeout: float = WAIT_SECONDS) -> Status:
    """Asks the owner to save a checkpoint and stop; a paused experiment is marked stopped."""
    if places.place_of(folder) is not None:
        return remote.stop(folder, timeout)
    status = folder.status()
    folder.advance(status.state, "stop")
    if status.is_live:
        folder.ask("stop")
        return wait_until_ended(folder, "stopped", timeout)
    with folder.lock("stop") as status:
        state = folder.advance(status.state, "stop")
        status = dataclasses.replace(status, state=state, reason="stopped while paused", finished=time.time())
        folder.write_status(status)
    return status


def wait_until_ended(folder: RunFolder, wanted: State, timeout: float) -> Status:
    """The status once no process owns the experiment any more."""
    deadline = time.monotonic() + timeout
    while (status := folder.status()).is_live:
        if time.monotonic() > deadline:
            raise SteppeError(
                f'experiment "{folder.name}" is not {wanted} after {timeout:g} s; it is still {status.state}'
                f"{f' ({status.phase})' if status.phase else ''} and ends after its current chunk of training; "
                f"look again with: {folder.ways.show}"
            )
        time.sleep(0.05)
    return status


def download(
    folder: RunFolder, to: Path, *, force: bool = False, tell: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Copies what the run left to the folder `to`; files that are there already are refused, or replaced by `force`.

    Of one that has completed on a cluster of its own, the results come home first, and that cluster ends.
    """
    to = to.absolute()
    if to.resolve().is_relative_to(folder.path.resolve()):
        raise UserError(f"{to} lies inside the run folder itself; choose another --to")
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file; choose another --to")
    if own_cluster.is_home_bound(folder):
        own_cluster.bring_home(folder, tell)
    if places.place_of(folder) is not None:
        return remote.download(folder, to, force=force)
    copies = {
        source: to / source.relative_to(folder.path) for source in folder.files() if _is_result(source, folder.path)
    }
    existing = [copy for copy in copies.values() if copy.exists()]
    if existing and not force:
        raise UserError(f"{existing[0]} exists already; choose another --to, or use --force to replace it")
    copied = {source: copy for source, copy in copies.items() if _copy(source, copy)}
    # A running experiment removes its oldest checkpoint: better none of it than a part.
    for source in [source for source in copied if not source.parent.exists()]:
        copy = copied.pop(source)
        with contextlib.suppress(OSError):
            copy.unlink()
            copy.parent.rmdir()
    return list(copied.values())


def check_deletable(folder: RunFolder, start: Path) -> Store:
    """The store that an experiment can be deleted from, one of those that are known from the folder `start`."""
    stores = [store for store in known_stores(start) if store.path.resolve() == folder.path.parent.resolve()]
    if not stores:
        raise StateError(
            f"{folder.path} is in neither this project's experiments/ nor ./steppe-runs/; "
            "go to the folder it belongs to, or delete it yourself"
        )
    with remote.deleting(folder):
        folder.advance(folder.status().state, "delete")
    return stores[0]


def delete(folder: RunFolder, start: Path, *, stored: bool = False) -> str | None:
    """Deletes an experiment and its results; where they stay in object storage, unless those are deleted too."""
    store = check_deletable(folder, start)
    with remote.deleting(folder):
        left = remote.settle_stored(folder, erase=stored)
        own_cluster.delete(folder)
    store.delete(folder)
    return left


def has_checkpoint(folder: RunFolder) -> bool:
    """Whether there is anything to resume from."""
    from steppe.records.checkpoints import list_checkpoints

    return bool(list_checkpoints(folder.path))


def _check_startable(folder: RunFolder, status: Status) -> None:
    if status.state in ("failed", "stopped") and places.place_of(folder) is None and not has_checkpoint(folder):
        raise StateError(
            f'experiment "{folder.name}" {stands(status.state)} and left no checkpoint; start it anew with: '
            f"{folder.ways.restart} (what it left is kept beside)"
        )
    folder.advance(status.state, "start")


def _check_resumable(folder: RunFolder, spec: ExperimentSpec, status: Status, is_here: bool = True) -> None:
    if status.state == "created":
        raise StateError(
            f'experiment "{folder.name}" has not been started yet, so there is nothing to resume; '
            f"start it with: {folder.ways.start}"
        )
    if is_here and not has_checkpoint(folder):
        raise StateError(
            f'experiment "{folder.name}" has no checkpoint to resume from; start it anew with: {folder.ways.restart}'
        )
    reached = _reached(spec, status)
    if status.state == "completed" and reached:
        limit, field, more = reached
        raise StateError(
            f'experiment "{folder.name}" is completed ({limit}); to train on, give it more: '
            f"{folder.ways.resume_with(field, more)}"
        )


def _trained(folder: RunFolder, status: Status, is_here: bool) -> tuple[int, int]:
    """(episodes, timesteps) that the newest checkpoint has; a run that was killed has lost what came after it."""
    from steppe.records.checkpoints import latest_manifest

    manifest = latest_manifest(folder.path) if is_here else {}
    return manifest.get("episode", status.episode), manifest.get("timestep", status.timestep)


def _check_leaves_more(
    folder: RunFolder, before: ExperimentSpec, spec: ExperimentSpec, trained_so_far: tuple[int, int]
) -> None:
    """Refuses new limits that the training is beyond already."""
    for field, trained, old, limit in zip(
        ("episodes", "total_timesteps"), trained_so_far, before.limits, spec.limits, strict=True
    ):
        if limit is not None and limit != old and 0 < limit <= trained:
            raise UserError(
                f'{field}={limit:,} leaves nothing to train: experiment "{folder.name}" has had {trained:,} already; '
                f"give it more: {folder.ways.resume_with(field, 2 * trained)}"
            )


def _reached(spec: ExperimentSpec, status: Status) -> tuple[str, str, Any] | None:
    """(the limit that was reached, its field, a value that leaves more to do), or None when there is more to do."""
    episodes, timesteps = spec.limits
    if timesteps is not None and status.timestep >= timesteps:
        return (
            f"{timesteps:,} timesteps",
            "total_timesteps",
            2 * (timesteps if 2 * timesteps > status.timestep else status.timestep),
        )
    if episodes is not None and status.episode >= episodes:
        return f"{episodes:,} episodes", "episodes", 2 * episodes
    goal = spec.stop_at_return
    if goal is not None and status.mean_return is not None and status.mean_return >= goal:
        return f"mean return {status.mean_return:.1f} of {goal:g}", "stop_at_return", None
    return None


def _is_result(path: Path, folder: Path) -> bool:
    below = path.relative_to(folder)
    return not any(is_own(part) for part in below.parts) and below.name != REQUEST_FILE


def _copy(source: Path, copy: Path) -> bool:
    """Whether the source was still there."""
    with storing(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(source, copy)
        except FileNotFoundError:
            if source.exists():
                raise
            return False
    return True


def log_size(folder: RunFolder) -> int:
    """How many bytes its log has by now."""
    return folder.log.stat().st_size if folder.log.exists() else 0


def last_words(folder: RunFolder, logged: int) -> str:
    """The last line that a process added to a log of `logged` bytes."""
    data = folder.log.read_bytes()[logged:] if folder.log.exists() else b""
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "its process ended at once"


def _random_seed() -> int:
    import secrets

    return secrets.randbelow(2**31)
