"""Starting an experiment from the terminal, with its progress and what it leaves."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from steppe.cli.console import console, shown
from steppe.cli.text import duration, score

if TYPE_CHECKING:
    from steppe.experiments.store import RunFolder, Status


def say(sentence: str, quiet: bool = False) -> None:
    """Something worth knowing that is no error."""
    if not quiet:
        console().print(f"note: {sentence}", markup=False)


def start_and_show(folder: RunFolder, *, resume: bool, detach: bool, quiet: bool) -> int:
    """Trains the prepared experiment; the exit code."""
    from steppe.experiments import lifecycle

    reference = reference_of(folder)
    if detach:
        pid = lifecycle.start_detached(folder, resume=resume)
        if not quiet:
            console().print(f'experiment "{folder.name}" is training in process {pid}; watch it with:', markup=False)
            _print_commands(
                [f"steppe experiment logs -e {reference} --follow", f"steppe experiment stop -e {reference}"]
            )
        return 0

    from steppe.cli.progress import display
    from steppe.experiments.run import run

    with display(folder.spec(), quiet) as shows:
        ended = run(folder, resume=resume, on_progress=shows.update, announce=shows.announce)
    if not quiet:
        print_end(folder, folder.status())
    return ended.exit_code


def print_end(folder: RunFolder, status: Status) -> None:
    """How it ended, where everything is, and what to do next."""
    out = console()
    reason = f": {status.reason}" if status.reason else ""
    out.print(f'experiment "{folder.name}" is {status.state}{reason}', markup=False, style="bold")
    if status.mean_return is not None:
        out.print(f"  score        {score(status.mean_return)} (mean return of the last 100 episodes)", markup=False)
    speed = f", {status.timestep / status.seconds:,.0f} timesteps/s" if status.seconds else ""
    out.print(
        f"  trained      {status.timestep:,} timesteps, {status.episode:,} episodes, {status.update:,} updates "
        f"in {duration(status.seconds)}{speed}",
        markup=False,
    )
    for label, name in (
        ("policy", "policy"),
        ("checkpoints", "checkpoints"),
        ("TensorBoard", "tensorboard"),
        ("report", "report.html"),
        ("video", "videos"),
    ):
        path = folder.path / name
        if path.exists():
            out.print(f"  {label:<12} {shown(path)}{'/' if path.is_dir() else ''}", markup=False)
    for notice in status.notices:
        out.print(f"note: {notice}", markup=False)
    out.print("try next:")
    _print_commands(next_commands(folder, status))


def next_commands(folder: RunFolder, status: Status) -> list[str]:
    """Commands that work now."""
    reference = reference_of(folder)
    commands = [f"steppe experiment show -e {reference}"]
    if status.state in ("paused", "stopped", "failed") and (folder.path / "checkpoints").is_dir():
        commands.insert(0, f"steppe experiment resume -e {reference}")
    data = folder.spec_data()
    learns = data["agent"]["type"] not in ("random", "constant")
    if learns and (folder.path / "policy").is_dir() and find_spec("onnx") is not None:
        commands.append(f"steppe policy export {shlex.quote(shown(folder.path / 'policy'))} --to policy.onnx")
    if (folder.path / "tensorboard").is_dir() and find_spec("tensorboard") is not None:
        commands.append(f"tensorboard --logdir {shlex.quote(shown(folder.path / 'tensorboard'))}")
    if status.state == "completed":
        # Both take every kind of action, so the command works whatever the environment.
        other = "vpg" if data["agent"]["type"] == "ppo" else "ppo"
        environment = shlex.quote(data["environment"]["id"])
        commands.append(f"steppe train {environment} --agent {other}")
    return commands


def reference_of(folder: RunFolder) -> str:
    """What -e takes from here to mean this experiment."""
    from steppe.errors import SteppeError
    from steppe.experiments.project import find_experiment

    try:
        if find_experiment(folder.name, Path.cwd()).path == folder.path:
            return shlex.quote(folder.name)
    except SteppeError:
        pass
    return shlex.quote(shown(folder.path))


def _print_commands(commands: list[str]) -> None:
    for command in commands:
        console().print(f"  {command}", markup=False)
