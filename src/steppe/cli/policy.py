"""`steppe policy` and `steppe report`: commands for the results of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steppe.cli.input import completion
from steppe.cli.input.flags import ALLOW_MODULES
from steppe.cli.input.parsing import EXPERIMENT_ARGUMENT, EXPERIMENT_OPTION, SteppeApp, experiment_name

app = SteppeApp(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _policy() -> None:
    """Use trained policies."""


@app.command()
def export(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="A policy folder, or the run folder or name it is in.",
            autocompletion=completion.experiments,
        ),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The ONNX file to write.")] = Path("policy.onnx"),
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    allow_modules: ALLOW_MODULES = None,
) -> None:
    """Write a policy as an ONNX file, with its pre- and post-processing inside."""
    from steppe.errors import UserError
    from steppe.policies.policy import load_policy
    from steppe.specs.loading.files import shown_path

    if to.exists() and not force:
        raise UserError(f"{to} exists already; choose another --to, or use --force to write over it")
    path = load_policy(_policy_folder(folder), allow_modules=allow_modules or ()).export_onnx(to)
    print(f"wrote {shown_path(path)}")


def report(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
) -> None:
    """Write report.html of an experiment again."""
    from steppe.experiments.project import find_experiment
    from steppe.records.report import write_report
    from steppe.specs.loading.files import shown_path

    folder = find_experiment(experiment_name(name, experiment, "steppe report first"), Path.cwd())
    print(f"wrote {shown_path(write_report(folder.path))}")


def _policy_folder(name: str) -> Path:
    path = Path(name)
    if (path / "policy.json").is_file():
        return path
    from steppe.experiments.project import find_experiment

    return find_experiment(name, Path.cwd()).path / "policy"
