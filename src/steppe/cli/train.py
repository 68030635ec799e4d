"""`steppe train`: an experiment without a project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli.input import completion
from steppe.cli.input.flags import QUIET, SEEDS, with_experiment_flags

DETACH = Annotated[bool, typer.Option("--detach", help="Train in a process of its own; its output goes to log.txt.")]


@with_experiment_flags
def train(
    fields: dict[str, Any],
    sets: list[str],
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="ENVIRONMENT",
            help="What to learn, such as CartPole-v1.",
            show_default=False,
            autocompletion=completion.environments,
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="An experiment file to begin with.",
            autocompletion=completion.experiment_files,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("-n", "--name", metavar="NAME", help="The name of the run; without it a new one is made."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start a run of that name anew; its old results are kept beside.")
    ] = False,
    seeds: SEEDS = None,
    detach: DETACH = False,
    quiet: QUIET = False,
) -> int:
    """Train an agent here and now.

    For example: steppe train CartPole-v1 --agent ppo --total-timesteps 500000

    The results go to experiments/ in a project and to ./steppe-runs/ elsewhere. Ctrl-C saves a checkpoint and pauses.
    """
    from steppe.cli.starting.new_experiments import changed_by, described, make, make_group
    from steppe.cli.starting.running import start_and_show
    from steppe.cli.starting.seeds import train_and_show
    from steppe.errors import UserError
    from steppe.experiments.project import store_for_new_runs

    if env is not None:
        if fields.get("environment") not in (None, env):
            raise UserError(f'two environments are given, "{env}" and "{fields["environment"]}"; leave one out')
        fields["environment"] = env
    example = "steppe train CartPole-v1"
    spec, name = described(file, name, fields, sets, takes_files_name=False, example=example)
    if seeds is not None:
        store, given = store_for_new_runs(Path.cwd()), changed_by(fields, sets)
        group = make_group(spec, store, seeds, name=name, force=force, quiet=quiet, detach=detach, fields=given)
        return train_and_show(group, quiet)
    folder = make(spec, store_for_new_runs(Path.cwd()), name=name, force=force, start=True, quiet=quiet)
    return start_and_show(folder, resume=False, detach=detach, quiet=quiet)
