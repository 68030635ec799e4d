"""`steppe experiment`: the life of the experiments of a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.display import experiment_tables
from steppe.cli.input import completion
from steppe.cli.input.flags import AS_JSON, QUIET, RESUME_SETS, SEEDS, SETS, with_experiment_flags
from steppe.cli.input.parsing import EXPERIMENT_ARGUMENT, EXPERIMENT_OPTION, SteppeApp, experiment_name
from steppe.cli.train import DETACH

if TYPE_CHECKING:
    from steppe.experiments.run_folder.store import RunFolder

TIMEOUT = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait for it.")]
RESTART = Annotated[bool, typer.Option("--force", help="Start anew; the old results are kept beside.")]

CLUSTER = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--cluster",
        metavar="CLUSTER",
        autocompletion=completion.clusters,
        help="Train on this cluster: one of `steppe cluster list`, or of configs/clusters/, which is made first.",
    ),
]

app = SteppeApp(no_args_is_help=True, rich_markup_mode=None)


@app.command()
@with_experiment_flags
def new(
    fields: dict[str, Any],
    sets: list[str],
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="A name in configs/experiments/, or a file.",
            autocompletion=completion.experiment_files,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "-n", "--name", metavar="NAME", help="The experiment's name; without it the file's, or a new one."
        ),
    ] = None,
    start: Annotated[bool, typer.Option("-s", "--start", help="Start it at once.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an experiment of that name; its old results are kept beside.")
    ] = False,
    seeds: SEEDS = None,
    detach: DETACH = False,
    quiet: QUIET = False,
) -> int:
    """Make an experiment from a file and flags."""
    from steppe.cli.starting.new_experiments import changed_by, described, make, make_group
    from steppe.cli.starting.running import start_and_show
    from steppe.cli.starting.seeds import train_and_show
    from steppe.errors import UserError
    from steppe.experiments.project import open_project
    from steppe.specs.loading.files import shown_path

    store = open_project(Path.cwd()).store
    example = "steppe experiment new -f cartpole_ppo -n first"
    spec, name = described(file, name, fields, sets, takes_files_name=True, example=example)
    if seeds is not None:
        if not start:
            raise UserError(
                "--seeds trains at once, so give --start too, or make one experiment and give --seeds to its start"
            )
        given = changed_by(fields, sets)
        group = make_group(spec, store, seeds, name=name, force=force, quiet=quiet, detach=detach, fields=given)
        return train_and_show(group, quiet)
    folder = make(spec, store, name=name, force=force, start=start, quiet=quiet)
    if start:
        return start_and_show(folder, resume=False, detach=detach, quiet=quiet)
    if not quiet:
        print(f'made experiment "{folder.name}" in {shown_path(folder.path)}; start it with:')
        print(f"  {folder.ways.start}")
    return 0


@app.command("list")
def list_experiments(
    as_json: AS_JSON = False,
) -> None:
    """List the experiments with their states."""
    experiment_tables.print_list(Path.cwd(), as_json)


@app.command()
def show(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    as_json: AS_JSON = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the settings that are not set or do not apply to it.")
    ] = False,
) -> None:
    """Show one experiment: its state, its settings and its files."""
    experiment_tables.print_experiment(_find(name, experiment, "show"), as_json, everything)


@app.command()
def start(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    cluster: CLUSTER = None,
    resume: Annotated[bool, typer.Option("-R", "--resume", help="Train on from the last checkpoint.")] = False,
    force: RESTART = False,
    seeds: SEEDS = None,
    detach: DETACH = False,
    sets: SETS = None,
    quiet: QUIET = False,
) -> int:
    """Start an experiment, or resume it.

    Ctrl-C saves a checkpoint and pauses; on a cluster it only ends the watching.
    """
    folder = _find(name, experiment, "start")
    if seeds is not None:
        return _start_seeds(folder, seeds, cluster, resume, force, detach, sets or [], quiet)
    return _start(folder, cluster, resume=resume, force=force, detach=detach, sets=sets, quiet=quiet)


@app.command()
def resume(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    detach: DETACH = False,
    sets: RESUME_SETS = None,
    quiet: QUIET = False,
) -> int:
    """Continue training from the last checkpoint.

    The same as start --resume.
    """
    return _start(
        _find(name, experiment, "resume"), None, resume=True, force=False, detach=detach, sets=sets, quiet=quiet
    )


@app.command()
def pause(name: EXPERIMENT_ARGUMENT = None, experiment: EXPERIMENT_OPTION = None, timeout: TIMEOUT = 120.0) -> int:
    """Save a checkpoint and pause a running experiment.

    Waits until it is paused.
    """
    from steppe.experiments.locations import location_of

    folder = _find(name, experiment, "pause")
    return experiment_tables.print_ended(folder, location_of(folder).pause(timeout), "paused")


@app.command()
def stop(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    timeout: TIMEOUT = 120.0,
    no_download: Annotated[
        bool, typer.Option("--no-download", help="As in the old tfcli; here stop never fetches results by itself.")
    ] = False,
) -> int:
    """Save a checkpoint and stop a running experiment.

    Waits until it is stopped; a paused experiment is marked as stopped.
    """
    from steppe.experiments.locations import location_of

    folder = _find(name, experiment, "stop")
    return experiment_tables.print_ended(folder, location_of(folder).stop(timeout), "stopped")


@app.command()
def download(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Where to; without it ./NAME-results.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
) -> None:
    """Copy an experiment's results to a folder of your own."""
    from steppe.cli.starting.running import say
    from steppe.experiments import lifecycle
    from steppe.specs.loading.files import shown_path

    folder = _find(name, experiment, "download")
    target = to or Path.cwd() / f"{folder.name}-results"
    files = lifecycle.download(folder, target, force=force, tell=lambda line: say([line]))
    print(f"copied {len(files)} file{'' if len(files) == 1 else 's'} to {shown_path(target)}")


@app.command()
def logs(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing until the experiment ends.")] = False,
) -> None:
    """Print the log of an experiment."""
    experiment_tables.print_log(_find(name, experiment, "logs"), follow)


@app.command()
def manifest(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "-c",
            "--cluster",
            metavar="CLUSTER",
            help="The cluster that it is for; else the experiment's own.",
            autocompletion=completion.clusters,
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAMESPACE", help="Where it would run; else the cluster's.")
    ] = None,
) -> None:
    """Print an experiment as Kubernetes manifests (YAML).

    To apply them yourself, or keep them in git. The Secret is not included; a comment says how to make it.
    """
    from steppe.experiments.on_cluster import placement

    print(placement.manifest(_find(name, experiment, "manifest"), cluster, namespace), end="")


@app.command()
def delete(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    stored: Annotated[
        bool, typer.Option("--stored", help="Also what it keeps in object storage (kubernetes.results).")
    ] = False,
) -> int:
    """Delete an experiment and all its results.

    Results in object storage (kubernetes.results) stay unless --stored is given; the command says where.
    """
    from steppe.experiments import lifecycle
    from steppe.experiments.locations import location_of
    from steppe.specs.loading.files import shown_path

    folder = _find(name, experiment, "delete")
    lifecycle.check_deletable(folder, Path.cwd())
    too = location_of(folder).deleted_too()
    if not force and not typer.confirm(f"Delete {shown_path(folder.path)} and everything in it{too}?"):
        print("nothing was deleted")
        return 1
    left = lifecycle.delete(folder, Path.cwd(), stored=stored)
    print(f'deleted experiment "{folder.name}"{f"; its results stay in {left}" if left is not None else ""}')
    return 0


def _start_seeds(
    folder: RunFolder,
    seeds: str,
    cluster: str | None,
    resume: bool,
    force: bool,
    detach: bool,
    sets: list[str],
    quiet: bool,
) -> int:
    """Trains several seeds of an existing experiment, in new run folders beside it."""
    from steppe.cli.starting.new_experiments import changed_by, make_group
    from steppe.cli.starting.seeds import train_and_show
    from steppe.errors import UserError
    from steppe.experiments.resume_rules import changed
    from steppe.experiments.run_folder.store import Store

    for what, is_given in (("--cluster", cluster is not None), ("--resume", resume)):
        if is_given:
            raise UserError(f"--seeds makes new experiments, which train on this machine; leave out {what}")
    spec = changed(folder, folder.spec(), {}, sets, resume=False) if sets else folder.spec()
    store, given = Store(folder.path.parent), changed_by((), sets)
    group = make_group(spec, store, seeds, name=folder.name, force=force, quiet=quiet, detach=detach, fields=given)
    return train_and_show(group, quiet)


def _start(
    folder: RunFolder,
    cluster: str | None,
    *,
    resume: bool,
    force: bool,
    detach: bool,
    sets: list[str] | None,
    quiet: bool,
) -> int:
    from steppe.cli.starting.running import say, start_and_show
    from steppe.experiments import lifecycle

    say(lifecycle.prepare(folder, resume=resume, force=force, sets=sets), quiet)
    return start_and_show(folder, resume=resume, detach=detach, quiet=quiet, force=force, cluster=cluster)


def _find(name: str | None, option: str | None, command: str) -> RunFolder:
    from steppe.experiments.project import find_experiment

    return find_experiment(experiment_name(name, option, f"steppe experiment {command} first"), Path.cwd())
