"""Starting an experiment from the terminal: its progress, and a summary at its end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from steppe.display.console import console
from steppe.display.text import duration, told_scores
from steppe.experiments.run_folder.states import stands
from steppe.files.run_files import (
    CHECKPOINTS_FOLDER,
    LOG_FILE,
    POLICY_FOLDER,
    REPORT_FILE,
    TENSORBOARD_FOLDER,
    VIDEOS_FOLDER,
)
from steppe.specs.loading.files import shown_path

if TYPE_CHECKING:
    from steppe.experiments.run_folder.store import RunFolder, Status


LONGEST_COMMAND = 200
"""A longer command is not suggested."""
LARGE = 100_000_000
"""The size of checkpoints in bytes from which it is shown."""


def say(notices: list[str], quiet: bool = False) -> None:
    """Prints notices, unless `quiet`."""
    for notice in [] if quiet else notices:
        console().print(f"note: {notice}", markup=False)


def start_and_show(
    folder: RunFolder, *, resume: bool, detach: bool, quiet: bool, force: bool = False, cluster: str | None = None
) -> int:
    """Starts the prepared experiment, here or on a cluster, and shows its progress; returns the exit code."""
    from steppe.experiments.locations import location_to_start

    location = location_to_start(folder, cluster)
    if location.is_here and not detach:
        return _train_here(folder, resume, quiet)

    def tell(line: str) -> None:
        say([line], quiet)

    started = location.start(resume=resume, force=force, tell=tell)
    if not detach:
        from steppe.cli.starting.following import follow_and_show

        return follow_and_show(location, quiet)
    if not quiet:
        console().print(f'experiment "{folder.name}" {started.sentence}; watch it with:', markup=False)
        print_commands([f"{folder.ways.logs} --follow", folder.ways.show, folder.ways.stop])
    location.leave(tell)
    return 0


def _train_here(folder: RunFolder, resume: bool, quiet: bool) -> int:
    from steppe.display.progress import display
    from steppe.experiments.process.run import run

    shows = display(folder.spec(), quiet)
    try:
        with shows:
            ended = run(folder, resume=resume, on_progress=shows.update, announce=shows.announce)
    except Exception:
        if not quiet:
            _print_failure(folder, shows.lasting)
        raise
    if not quiet:
        print_end(folder, folder.local_status(), told=shows.lasting)
    return ended.exit_code


def print_end(folder: RunFolder, status: Status, told: Collection[str] = (), reason: bool = True) -> None:
    """Prints the end of the run, its results and the next commands, without notices that were `told` already."""
    out = console()
    why = f": {status.reason}" if reason and status.reason else ""
    out.print(f'experiment "{folder.name}" {stands(status.state)}{why}', markup=False, style="bold")
    for label, text in told_scores(status):
        out.print(f"  {label:<12} {text}", markup=False)
    speed = f", {status.timestep / status.seconds:,.0f} timesteps/s" if status.seconds else ""
    out.print(
        f"  trained      {status.timestep:,} timesteps, {status.episode:,} episodes, {status.update:,} updates "
        f"in {duration(status.seconds)}{speed}",
        markup=False,
    )
    for label, name in (
        ("policy", POLICY_FOLDER),
        ("checkpoints", CHECKPOINTS_FOLDER),
        ("TensorBoard", TENSORBOARD_FOLDER),
        ("report", REPORT_FILE),
        ("video", VIDEOS_FOLDER),
        *([("log", LOG_FILE)] if status.state == "failed" else []),
    ):
        path = folder.path / name
        if path.exists():
            size = _large_size(folder) if name == CHECKPOINTS_FOLDER else ""
            out.print(f"  {label:<12} {shown_path(path)}{'/' if path.is_dir() else ''}{size}", markup=False)
    say([notice for notice in status.notices if notice not in told])
    out.print("try next:")
    print_commands(next_commands(folder, status))


def _large_size(folder: RunFolder) -> str:
    """The size of all checkpoints of a run, if they are large."""
    from steppe.records.checkpoints import total_size

    size = total_size(folder.path)
    return f" ({size / 1e9:,.1f} GB)" if size >= LARGE else ""


def next_commands(folder: RunFolder, status: Status) -> list[str]:
    """Commands that a user may want next, all of which work now."""
    from steppe.experiments.locations import location_of

    ways, location = folder.ways, location_of(folder)
    commands = [ways.show]
    if status.state in ("paused", "stopped", "failed"):
        can_resume = location.has_checkpoint() if location.is_here else status.timestep
        commands.insert(0, ways.resume if can_resume else ways.restart)
    if not location.is_here:
        return [*commands, ways.download] if status.timestep else commands
    data = folder.spec_data()
    learns = data["agent"]["type"] not in ("random", "constant")
    # The policy of timestep 0 has learned nothing.
    has_policy = status.timestep > 0 and (folder.path / POLICY_FOLDER).is_dir()
    if learns and has_policy and find_spec("uvicorn") is not None:
        commands.append(ways.serve)
    if learns and has_policy and find_spec("onnx") is not None:
        commands.append(f"steppe policy export {shlex.quote(shown_path(folder.path / POLICY_FOLDER))} --to policy.onnx")
    if (folder.path / TENSORBOARD_FOLDER).is_dir() and find_spec("tensorboard") is not None:
        commands.append(f"tensorboard --logdir {shlex.quote(shown_path(folder.path / TENSORBOARD_FOLDER))}")
    if status.state == "completed":
        # Both take every kind of action, so the command works in any environment.
        other = "vpg" if data["agent"]["type"] == "ppo" else "ppo"
        command = f"steppe train {_as_words(data['environment'])} --agent {other}"
        if len(command) <= LONGEST_COMMAND:
            commands.append(command)
    return commands


def _as_words(environment: dict[str, Any]) -> str:
    """The same environment on a command line: its id, and --set for all other fields."""
    from steppe.specs.environment import EnvironmentSpec
    from steppe.specs.loading.overrides import parse_override

    usual = EnvironmentSpec.model_fields
    given = {
        name: value
        for name, value in environment.items()
        if name not in ("id", "settings") and value != usual[name].get_default(call_default_factory=True)
    }
    given |= {f"settings.{name}": value for name, value in environment["settings"].items()}
    words = [environment["id"]]
    for name, value in given.items():
        # Only text that would be parsed as something else needs quotes.
        is_plain = isinstance(value, str) and parse_override(f"{name}={value}")[1] == value
        words += ["--set", f"environment.{name}={value if is_plain else json.dumps(value)}"]
    return shlex.join(words)


def _print_failure(folder: RunFolder, told: Collection[str]) -> None:
    """Prints the end of a run that failed here, without its reason, which is the error that follows."""
    from steppe.errors import SteppeError

    with contextlib.suppress(SteppeError):
        status = folder.local_status()
        # Not for a run of another process, or one that never began.
        if status.state == "failed" and status.pid == os.getpid():
            print_end(folder, status, told, reason=False)


def print_commands(commands: list[str]) -> None:
    """Prints each command on a line of its own, to be copied."""
    for command in commands:
        console().print(f"  {command}", markup=False)
