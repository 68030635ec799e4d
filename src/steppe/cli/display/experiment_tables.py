"""The output of `experiment list`, `show` and `logs`, and of the end of `pause` and `stop`."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.display.text import age, count, duration, score, size, told_scores
from steppe.experiments.run_folder.states import stands

if TYPE_CHECKING:
    from steppe.experiments.locations import Location
    from steppe.experiments.run_folder.states import State
    from steppe.experiments.run_folder.store import RunFolder, Status

AT_ONCE = 16
"""How many statuses are read at the same time, since those on clusters take time."""
LARGEST = 1e15
"""A larger limit of timesteps is taken for damage."""


def print_list(start: Path, as_json: bool) -> None:
    """Prints every experiment known from `start`, as a table or as JSON."""
    from steppe.display.console import console, print_json, table
    from steppe.errors import ProjectError
    from steppe.experiments.project import known_stores

    stores = known_stores(start)
    if not stores:
        raise ProjectError(f'no project in {start} or above and no ./steppe-runs/ here; "steppe init" makes a project')
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(_row, [folder for store in stores for folder in store.entries()]))
    if as_json:
        print_json(rows)
        return
    if not rows:
        console().print("no experiments yet; make one: steppe experiment new -f cartpole_ppo -n first", markup=False)
        return
    # Only if some experiment has an evaluation.
    evaluated = ["EVALUATION"] if any(row.get("evaluation_return") is not None for row in rows) else []
    columns = ("NAME", "STATE", "RUN MODE", "ENVIRONMENT", "AGENT", "TIMESTEPS", "RETURN", *evaluated, "AGE")
    listing = table(
        *columns,
        right=("TIMESTEPS", "RETURN", "EVALUATION"),
        drop=("RUN MODE", "AGE", "AGENT", "ENVIRONMENT", "TIMESTEPS"),
    )
    for row in rows:
        if "error" in row:
            listing.add_row(_shown(row["name"]), "unreadable", *[""] * (len(columns) - 2))
            continue
        trained = count(row["timestep"]) if row["timestep"] else "-"
        is_over = row["state"] == "completed" or not row["total_timesteps"]
        limit = "" if is_over else f" of {count(row['total_timesteps'])}"
        listing.add_row(
            *(_shown(row[field]) for field in ("name", "state", "run_mode", "environment", "agent")),
            *(f"{trained}{limit}", score(row["mean_return"])),
            *(score(row["evaluation_return"]) for _ in evaluated),
            age(row["created"]).removesuffix(" ago"),
        )
    console().print(listing)
    for row in rows:
        if sentence := row.get("error") or row["note"]:
            console().print(f"note: {_shown(sentence)}", markup=False)


def print_experiment(folder: RunFolder, as_json: bool, everything: bool = False) -> None:
    """Prints an experiment's status, settings and files; with `everything` also settings that do not apply to it."""
    from steppe.cli.display.settings_table import setting_lines
    from steppe.display.console import console, print_json
    from steppe.experiments.locations import location_of

    location, spec = location_of(folder), folder.spec_data()
    status = location.status()
    sizes, elsewhere = location.files(status)
    if as_json:
        print_json(
            {
                "name": folder.name,
                "folder": str(folder.path),
                "status": dataclasses.asdict(status),
                "spec": spec,
                "files": [name for name, _ in sizes],
            }
        )
        return
    out = console()
    reason = f": {status.reason}" if status.reason else ""
    out.print(f'experiment "{folder.name}" {stands(status.state)}{reason}', markup=False, style="bold")
    for label, text in _facts(location, status):
        out.print(f"  {label:<12} {text}", markup=False)
    for line, is_heading in setting_lines(spec, _policy(folder), everything=everything):
        out.print(_shown(line), markup=False, style="bold" if is_heading else None)
    out.print("files", style="bold")
    for label, text in _summed(sizes):
        out.print(f"  {label:<24} {text}", markup=False)
    if elsewhere:
        out.print(f"  {elsewhere}", markup=False)


def print_log(folder: RunFolder, follow: bool) -> None:
    """Prints the log, and with `follow` also its new lines until the run ends."""
    from steppe.errors import ClusterError
    from steppe.experiments.locations import location_of

    location, offset = location_of(folder), 0
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with location.log() as (read_log, is_running):
        while True:
            # Asked before reading: lines written between the two would be lost otherwise.
            goes_on = follow and is_running()
            # A Pod that is being replaced cannot be asked.
            with contextlib.suppress(*([ClusterError] if goes_on else [])):
                data = read_log(offset, goes_on)
                offset += len(data)
                print(decoder.decode(data), end="", flush=True)
            if not goes_on:
                return
            time.sleep(location.poll_seconds)


def print_ended(folder: RunFolder, status: Status, wanted: State) -> int:
    """Prints how an experiment ended that was asked to pause or stop; returns the exit code."""
    from steppe.display.console import console

    if status.state == wanted:
        console().print(
            f'experiment "{folder.name}" is {wanted} at timestep {status.timestep:,}; train on with:', markup=False
        )
        console().print(f"  {folder.ways.resume}", markup=False)
        return 0
    reason = f": {status.reason}" if status.reason else ""
    console().print(f'experiment "{folder.name}" was not {wanted} but {stands(status.state)}{reason}', markup=False)
    return 0 if status.state == "completed" else 1


def _row(folder: RunFolder) -> dict[str, Any]:
    """The row of one experiment; an error in it must not keep the others from being listed."""
    from steppe.errors import SteppeError

    try:
        return _readable_row(folder)
    except SteppeError as error:
        return {"name": _shown(folder.name), "error": str(error)}
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return {"name": _shown(folder.name), "error": f"cannot read {folder.path}: {why}"}


def _readable_row(folder: RunFolder) -> dict[str, Any]:
    from steppe.errors import ClusterError
    from steppe.experiments.locations import location_of
    from steppe.experiments.on_cluster import ephemeral_cluster
    from steppe.records.evaluation_score import Score

    note = ""
    spec = folder.spec_data()
    try:
        status = location_of(folder).status()
    except ClusterError as error:
        # The last known status is better than none.
        status, note = folder.read_status(), str(error)
    if status.is_unreadable:
        note = note or f'experiment "{folder.name}": {status.reason}'
    note = note or _waits(folder, status) or ephemeral_cluster.note_of(folder, status)
    environment, agent = spec.get("environment"), spec.get("agent")
    row = {
        "name": folder.name,
        "state": status.state,
        "reason": status.reason,
        "phase": status.phase,
        "run_mode": spec.get("run_mode", "single"),
        "platform": spec.get("platform", "local"),
        "note": note,
        "environment": environment.get("id") if isinstance(environment, dict) else environment,
        "agent": agent.get("type") if isinstance(agent, dict) else agent,
        "total_timesteps": spec.get("total_timesteps"),
        "episodes": spec.get("episodes"),
        "timestep": status.timestep,
        "episode": status.episode,
        "mean_return": status.mean_return,
        "evaluation_return": None if (evaluation := Score.read(status.evaluation)) is None else evaluation.mean,
        "created": status.created,
        "started": status.started,
        "finished": status.finished,
        "folder": str(folder.path),
    }
    _check_row(folder, row)
    return row


def _check_row(folder: RunFolder, row: dict[str, Any]) -> None:
    """Refuses an experiment.json whose fields have wrong types."""
    from steppe.errors import SpecError
    from steppe.files.run_files import SPEC_FILE

    for name in ("run_mode", "platform", "environment", "agent"):
        if not isinstance(row[name], str):
            raise SpecError(f'{folder.path / SPEC_FILE} describes no experiment: its "{name}" is of a wrong type')
    for name in ("total_timesteps", "episodes"):
        if type(row[name]) not in (int, float, type(None)) or abs(row[name] or 0) > LARGEST:
            raise SpecError(f'{folder.path / SPEC_FILE} describes no experiment: its "{name}" is of a wrong type')


def _shown(text: str) -> str:
    """Escapes characters that would move the cursor or cannot be printed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _waits(folder: RunFolder, status: Status) -> str:
    """A sentence on why an experiment waits; a phase of one word means that all is well."""
    is_told = status.is_live and " " in status.phase
    return f'experiment "{folder.name}" is {status.state}: {status.phase}' if is_told else ""


def _facts(location: Location, status: Status) -> list[tuple[str, str]]:
    from steppe.experiments.on_cluster import ephemeral_cluster

    folder = location.folder
    facts = [("folder", str(folder.path)), ("created", age(status.created)), *location.describe()]
    if status.started is not None:
        facts += [
            ("started", age(status.started)),
            ("trained", f"{status.timestep:,} timesteps, {status.episode:,} episodes, {status.update:,} updates"),
            ("time", duration(status.seconds)),
            *told_scores(status),
        ]
    if status.is_live and status.phase:
        facts.append(("phase", status.phase))
    if status.is_live and status.heartbeat is not None:
        facts.append(("process", f"{status.pid} on {status.host}, heard {age(status.heartbeat)}"))
    elif status.finished is not None:
        facts.append(("ended", age(status.finished)))
    notes = [*status.notices, ephemeral_cluster.note_of(folder, status)]
    return [*facts, *(("note", note) for note in notes if note)]


def _policy(folder: RunFolder) -> dict[str, Any]:
    """policy.json, or {} if it cannot be read."""
    from steppe.errors import SteppeError
    from steppe.experiments.run_folder.status import read_object
    from steppe.files.run_files import POLICY_FOLDER

    with contextlib.suppress(SteppeError):
        return read_object(folder.path / POLICY_FOLDER / "policy.json")
    return {}


def _summed(files: list[tuple[str, int]]) -> list[tuple[str, str]]:
    """Each file with its size, each folder with its number of files."""
    sizes: dict[str, list[int]] = {}
    for name, amount in files:
        first, *rest = name.split("/")
        sizes.setdefault(f"{first}/" if rest else first, []).append(amount)
    return [(name, _amount(name, inside)) for name, inside in sorted(sizes.items())]


def _amount(name: str, sizes: list[int]) -> str:
    many = f"{len(sizes)} file{'' if len(sizes) == 1 else 's'}, " if name.endswith("/") else ""
    return many + size(sum(sizes))
