"""The life cycle of an experiment: check, create, prepare a start, download, delete."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import EnvironmentAway, MissingEnvironment, StateError, UserError
from steppe.experiments import old_client, resume_rules
from steppe.experiments.given_environment import check_objects_known
from steppe.experiments.hints import Ways
from steppe.experiments.locations import Location, location_of
from steppe.experiments.project import known_stores, let_user_modules_import
from steppe.experiments.run_folder.states import Event, stands
from steppe.experiments.run_folder.store import RunFolder, Status, Store

if TYPE_CHECKING:
    from steppe.specs.experiment import ExperimentSpec

WITHOUT_NAME = "run"
"""The name of a spec until its run folder gives it one."""


def check(spec: ExperimentSpec, start: Path, resumed: Path | None = None) -> list[str]:
    """Builds the experiment to find every mistake before training; returns notices.

    `resumed` is the folder of a run that is resumed.
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
    """Whether its Pods have an image of the user's, which may have packages that this machine lacks."""
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
    """Makes the run folder: at `path`, or called `name` in the store, or with a new number after its `stem`."""
    from steppe.specs.experiment import valid_name

    if path is None:
        path = (store.new_folder(stem(spec)) if name is None else store.folder(name)).path
    folder = RunFolder(path, ways)
    seed = spec.seed if spec.seed is not None else _random_seed()
    folder.create(spec.model_copy(update={"name": valid_name(folder.name), "seed": seed}), force=force)
    return folder


def stem(spec: ExperimentSpec) -> str:
    """The name, before its number, of a run that was given none: `CartPole-v1-ppo`."""
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
    """Refuses a start that cannot work, and applies the changes that `force`, `fields` and `sets` ask for.

    Returns notices of the changes.
    """
    location, event = location_of(folder), _start_event(resume)
    status = location.status()
    location.check_idle(status, event)
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
        # A killed run has lost its training after its newest checkpoint.
        manifest = location.manifest()
        _check_leaves_more(folder, before, spec, manifest, status)
        _check_resumable(location, spec, status)
        notices += resume_rules.moved_decay(before, spec, location.newest_checkpoint())
    elif not force:
        _check_startable(location, status)
    with folder.lock(event) as status:
        if force:
            folder.advance(status.state, "renew")
            location.set_aside(status)
            folder.write_status(Status(created=time.time()))
        if is_old:
            old_client.keep_spec(folder)
        if spec is not before:
            folder.write_spec(spec)
    return notices


def check_has_cluster(spec: ExperimentSpec) -> None:
    """Refuses to start an experiment that is for a cluster and describes none."""
    if spec.platform == "kubernetes" and spec.cluster is None:
        raise UserError(
            'platform "kubernetes" needs a cluster; describe one (-C), or make the experiment without starting it and '
            "then start it on a cluster: steppe experiment start -e NAME -c CLUSTER"
        )


def download(
    folder: RunFolder, to: Path, *, force: bool = False, tell: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Copies the results to the folder `to`; existing files are refused, or replaced with `force`.

    A run that has completed on a cluster of its own first gets its results into its run folder, and that cluster ends.
    """
    to = to.absolute()
    if to.resolve().is_relative_to(folder.path.resolve()):
        raise UserError(f"{to} lies inside the run folder itself; choose another --to")
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file; choose another --to")
    return location_of(folder).download(to, force=force, tell=tell)


def check_deletable(folder: RunFolder, start: Path) -> Store:
    """The store, known from the folder `start`, from which the experiment can be deleted."""
    stores = [store for store in known_stores(start) if store.path.resolve() == folder.path.parent.resolve()]
    if not stores:
        raise StateError(
            f"{folder.path} is in neither this project's experiments/ nor ./steppe-runs/; "
            "go to the folder it belongs to, or delete it yourself"
        )
    location_of(folder).check_deletable()
    return stores[0]


def delete(folder: RunFolder, start: Path, *, stored: bool = False) -> str | None:
    """Deletes an experiment with its results; returns where they stay in object storage, unless `stored`."""
    store = check_deletable(folder, start)
    left = location_of(folder).delete(stored=stored)
    store.delete(folder)
    return left


def _start_event(resume: bool) -> Event:
    return "resume" if resume else "start"


def _check_startable(location: Location, status: Status) -> None:
    folder = location.folder
    if status.state in ("failed", "stopped") and not location.has_checkpoint():
        raise StateError(
            f'experiment "{folder.name}" {stands(status.state)} and left no checkpoint; start it anew with: '
            f"{folder.ways.restart} (what it left is kept beside)"
        )
    folder.advance(status.state, "start")


def _check_resumable(location: Location, spec: ExperimentSpec, status: Status) -> None:
    folder = location.folder
    if status.state == "created":
        raise StateError(
            f'experiment "{folder.name}" has not been started yet, so there is nothing to resume; '
            f"start it with: {folder.ways.start}"
        )
    if not location.has_checkpoint():
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


def _check_leaves_more(
    folder: RunFolder, before: ExperimentSpec, spec: ExperimentSpec, manifest: Mapping[str, Any], status: Status
) -> None:
    """Refuses new limits that the training has passed already."""
    trained_so_far = manifest.get("episode", status.episode), manifest.get("timestep", status.timestep)
    for field, trained, old, limit in zip(
        ("episodes", "total_timesteps"), trained_so_far, before.limits, spec.limits, strict=True
    ):
        if limit is not None and limit != old and 0 < limit <= trained:
            raise UserError(
                f'{field}={limit:,} leaves nothing to train: experiment "{folder.name}" has had {trained:,} already; '
                f"give it more: {folder.ways.resume_with(field, 2 * trained)}"
            )


def _reached(spec: ExperimentSpec, status: Status) -> tuple[str, str, Any] | None:
    """(the limit that was reached, its field, a larger value), or None if none was reached."""
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


def _random_seed() -> int:
    import secrets

    return secrets.randbelow(2**31)
