"""`steppe init`: makes a project."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    name: Annotated[
        str | None, typer.Option("-n", "--name", metavar="NAME", help="The project's name; without it the folder's.")
    ] = None,
    remote_id: Annotated[
        str | None,
        typer.Option(
            *("-r", "--remote-id", "--remote-project-id"),
            metavar="REMOTE_ID",
            help="The cloud project that its clusters belong to.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", help="The service account's key for it; asked for on a terminal."),
    ] = None,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Write over existing files; in other commands -f names a file.")
    ] = False,
) -> None:
    """Make a project in this folder.

    Writes steppe.json, and configs/ with agents, networks, environments, experiments, clusters and graphs to copy from.
    In a project that exists, -r only links it to a cloud project. A project of the old tfcli (.tensorforce.json) is
    taken over: none of its files is changed.
    """
    from steppe.display.console import console
    from steppe.experiments.old_client import is_old_project, take_over
    from steppe.experiments.project import init_project, link_project
    from steppe.specs.loading.files import PROJECT_FILE

    out, here = console(), Path.cwd()
    path = _key(remote_id, key)
    if remote_id is not None and name is None and not force and (here / PROJECT_FILE).exists():
        link_project(here, remote_id, path)
        out.print(f"linked the project in {here} to {remote_id}", markup=False)
    elif is_old_project(here) and not force:
        found = take_over(here, name, remote_id, path)
        out.print(f"took over the project of the old tfcli in {here}; steppe.json was written, and no file changed:")
        for what in found:
            out.print(f"  {what}", markup=False)
        out.print("what its files say is understood as it stands; try next:")
        out.print("  steppe experiment list")
        out.print("  steppe experiment start -e NAME")
        return
    else:
        files = init_project(here, name, remote_id, force, service_account_key=path)
        out.print(f"made a project in {here}: steppe.json and {len(files) - 1} files in configs/", markup=False)
    if path is not None and Path(path).is_relative_to(here):
        out.print("note: the key lies inside the project; keep it out of version control", markup=False)
    out.print("try next:")
    if remote_id is not None:
        out.print("  steppe cluster create -f small_cluster -n first --dry-run")
    out.print("  steppe experiment new -f cartpole_ppo -n first --start")
    out.print("  steppe experiment list")


def _key(remote_id: str | None, given: str | None) -> str | None:
    """The path of the key file; None for the credentials that are set up on this machine."""
    from steppe.clusters.settings import checked_key
    from steppe.errors import UserError

    if given is not None and remote_id is None:
        raise UserError("--key opens a cloud project; name that with -r")
    if given is None and remote_id is not None and sys.stdin.isatty():
        given = typer.prompt(
            "The path of the service account's key (empty: the credentials that are set up on this machine)",
            default="",
            show_default=False,
        )
    return str(checked_key(given)) if given else None
