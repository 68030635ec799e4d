"""What people ask of an experiment: make it, start, pause, resume, stop, copy its results."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from steppe.errors import StateError, SteppeError, UserError
from steppe.experiments.project import let_user_modules_import
from steppe.experiments.states import State, advance
from steppe.experiments.store import REQUEST_FILE, RunFolder, Status, Store, is_own
from steppe.records.durable import storing

if TYPE_CHECKING:
    from steppe.specs.experiment import ExperimentSpec

WAIT_SECONDS = 120.0
GROWS = {
    "episodes",
    "total_timesteps",
    "stop_at_return",
    "saver_frequency",
    "summary_frequency",
    "evaluation",
    "debug_logging",
}
"""The fields that may change between a run and its resumption: how long and what is written, never what is learned."""


def check(spec: ExperimentSpec, start: Path) -> list[str]:
    """All that can be known before training: notices, or the error that names the mistake."""
    from steppe import runners

    let_user_modules_import(start)
    return runners.check(spec)


def create(
    spec: ExperimentSpec, store: Store, *, name: str | None = None, path: Path | None = None, force: bool = False
) -> RunFolder:
    """The spec's run folder: at `path`, or called `name` in the store, or a new number after what it trains."""
    from steppe.specs.experiment import valid_name

    if path is not None:
        folder = RunFolder(path)
        name = folder.name
    elif name is not None:
        folder = store.folder(name)
    else:
        folder = store.new_folder(stem(spec))
        name = folder.name
    seed = spec.seed if spec.seed is not None else _random_seed()
    folder.create(spec.model_copy(update={"name": valid_name(name), "seed": seed}), force=force)
    return folder


def stem(spec: ExperimentSpec) -> str:
    """What a run without a name is called, before its number: `CartPole-v1-ppo`."""
    words = re.sub(
        r"[^A-Za-z0-9_]*[^A-Za-z0-9._-][^A-Za-z0-9_]*|\.{2,}", "-", f"{spec.environment.id}-{spec.agent.type}"
    )
    return words.strip("-.")[-60:].strip("-.") or "run"


def prepare(folder: RunFolder, *, resume: bool = False, force: bool = False, sets: list[str] | None = None) -> None:
    """Everything that must hold before the experiment is started, and what `force` and `sets` change in it."""
    status = folder.status()
    if status.is_live:
        with folder.lock("resume" if resume else "start") as status:
            pass  # refused here with the owner's process, unless it ended just now
    if force and resume:
        raise UserError("--resume trains on and --force starts anew; give one of the two")
    spec = _changed(folder, sets or [], resume)
    check_supported(spec)
    if resume:
        _check_resumable(folder, spec, status)
    elif not force:
        _check_startable(folder, status)
    with folder.lock("resume" if resume else "start") as status:
        if force:
            advance(status.state, "renew", folder.name)
            folder.set_aside(status)
            folder.write_status(Status(created=time.time()))
        if sets:
            folder.write_spec(spec)


def check_supported(spec: ExperimentSpec) -> None:
    """Refuses what a spec may say and this version cannot start yet."""
    for field, value, supported in (("run_mode", spec.run_mode, "single"), ("platform", spec.platform, "local")):
        if value != supported:
            raise UserError(
                f'{field} "{value}" cannot be started by this version of Steppe, which has only "{supported}"; '
                f"use --set {field}={supported}, or keep the experiment for a later version"
            )


def start_detached(folder: RunFolder, *, resume: bool = False) -> int:
    """Starts a process of its own that trains the prepared experiment; its id, once it owns the folder."""
    from steppe.platforms import LocalPlatform

    command = [
        sys.executable,
        "-P",
        "-m",
        "steppe.experiments.run",
        str(folder.path),
        *(["--resume"] if resume else []),
    ]
    process = LocalPlatform().launch(command, log=folder.log)
    while True:
        exit_code = process.exit_code()
        if folder.read_status().pid == process.pid:
            return process.pid
        if exit_code is not None:
            break
        time.sleep(0.02)
    raise SteppeError(f'experiment "{folder.name}" could not be started: {_last_words(folder)}')


def pause(folder: RunFolder, timeout: float = WAIT_SECONDS) -> Status:
    """Asks the owner to save a checkpoint and pause; the status when it has."""
    advance(folder.status().state, "ask_pause", folder.name)
    folder.ask("pause")
    return wait_until_ended(folder, "paused", timeout)


def stop(folder: RunFolder, timeout: float = WAIT_SECONDS) -> Status:
    """Asks the owner to save a checkpoint and stop; a paused experiment is marked stopped."""
    status = folder.status()
    advance(status.state, "stop", folder.name)
    if status.is_live:
        folder.ask("stop")
        return wait_until_ended(folder, "stopped", timeout)
    with folder.lock("stop") as status:
        state = advance(status.state, "stop", folder.name)
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
                f"look again with: steppe experiment show -e {folder.name}"
            )
        time.sleep(0.05)
    return status


def download(folder: RunFolder, to: Path, *, force: bool = False) -> list[Path]:
    """Copies what the run left to the folder `to`; files that are there already are refused, or replaced by `force`."""
    to = to.absolute()
    if to.resolve().is_relative_to(folder.path.resolve()):
        raise UserError(f"{to} lies inside the run folder itself; choose another --to")
    if to.exists() and not to.is_dir():
        raise UserError(f"{to} is a file; choose another --to")
    sources = [path for path in sorted(folder.path.rglob("*")) if path.is_file() and _is_result(path, folder)]
    copies = {source: to / source.relative_to(folder.path) for source in sources}
    existing = [copy for copy in copies.values() if copy.exists()]
    if existing and not force:
        raise UserError(f"{existing[0]} exists already; choose another --to, or use --force to replace it")
    copied = []
    for source, copy in copies.items():
        with storing(copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not source.exists():
                continue  # a running experiment removes its oldest checkpoint
            shutil.copy2(source, copy)
            copied.append(copy)
    return copied


def has_checkpoint(folder: RunFolder) -> bool:
    """Whether there is anything to resume from."""
    from steppe.records.checkpoints import list_checkpoints

    return bool(list_checkpoints(folder.path))


def _changed(folder: RunFolder, sets: list[str], resume: bool) -> ExperimentSpec:
    spec = folder.spec()
    if not sets:
        return spec
    from steppe.specs.experiment import ExperimentSpec, dump
    from steppe.specs.overrides import apply_overrides, parse_override
    from steppe.specs.validation import Origins, validate

    origins = Origins("--set")
    for text in sets:
        field = str(parse_override(text)[0][0])
        if field == "name" or (resume and field not in GROWS):
            raise UserError(
                f"{field} cannot change {'when an experiment is resumed' if resume else 'here'}; "
                f"{', '.join(sorted(GROWS))} can, or make another experiment: steppe experiment new"
            )
    spec = validate(ExperimentSpec, apply_overrides(dump(spec), sets), source=origins)
    spec.agent.written_in(origins.below("agent"))
    check(spec, folder.path)
    return spec


def _check_startable(folder: RunFolder, status: Status) -> None:
    if status.state in ("failed", "stopped") and not has_checkpoint(folder):
        raise StateError(
            f'experiment "{folder.name}" is {status.state} and left no checkpoint; start it anew with: '
            f"steppe experiment start -e {folder.name} --force (what it left is kept beside)"
        )
    advance(status.state, "start", folder.name)


def _check_resumable(folder: RunFolder, spec: ExperimentSpec, status: Status) -> None:
    if status.state == "created":
        raise StateError(
            f'experiment "{folder.name}" has not been started yet, so there is nothing to resume; '
            f"start it with: steppe experiment start -e {folder.name}"
        )
    if not has_checkpoint(folder):
        raise StateError(
            f'experiment "{folder.name}" has no checkpoint to resume from; '
            f"start it anew with: steppe experiment start -e {folder.name} --force"
        )
    reached = _reached(spec, status)
    if status.state == "completed" and reached:
        raise StateError(
            f'experiment "{folder.name}" is completed ({reached[0]}); to train on, give it more: '
            f"steppe experiment resume -e {folder.name} {reached[1]}"
        )


def _reached(spec: ExperimentSpec, status: Status) -> tuple[str, str] | None:
    """(the limit that was reached, the option that moves it), or None when there is something left to do."""
    episodes, timesteps = spec.limits
    if timesteps is not None and status.timestep >= timesteps:
        return f"{timesteps:,} timesteps", f"--set total_timesteps={2 * timesteps}"
    if episodes is not None and status.episode >= episodes:
        return f"{episodes:,} episodes", f"--set episodes={2 * episodes}"
    goal = spec.stop_at_return
    if goal is not None and status.mean_return is not None and status.mean_return >= goal:
        return f"mean return {status.mean_return:.1f} of {goal:g}", "--set stop_at_return=null"
    return None


def _is_result(path: Path, folder: RunFolder) -> bool:
    below = path.relative_to(folder.path)
    return not any(is_own(part) for part in below.parts) and below.name != REQUEST_FILE


def _last_words(folder: RunFolder) -> str:
    lines = folder.log.read_text(errors="replace").strip().splitlines() if folder.log.exists() else []
    return lines[-1].removeprefix("error: ") if lines else "its process ended at once"


def _random_seed() -> int:
    import secrets

    return secrets.randbelow(2**31)
