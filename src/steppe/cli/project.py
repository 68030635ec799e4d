"""`steppe init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    name: Annotated[
        str | None, typer.Option("-n", "--name", metavar="NAME", help="The project's name; without it the folder's.")
    ] = None,
    remote_id: Annotated[
        str | None, typer.Option("-r", "--remote-id", metavar="REMOTE_ID", help="The cloud project it belongs to.")
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="Write over existing files.")] = False,
) -> None:
    """Make a project in this folder.

    Writes steppe.json, and configs/ with agents, networks, environments, experiments, clusters and graphs to copy from.
    """
    from steppe.cli.console import console
    from steppe.experiments.project import init_project

    files = init_project(Path.cwd(), name, remote_id, force)
    out = console()
    out.print(f"made a project in {Path.cwd()}: steppe.json and {len(files) - 1} files in configs/", markup=False)
    out.print("try next:")
    out.print("  steppe experiment new -f cartpole_ppo -n first --start")
    out.print("  steppe experiment list")
