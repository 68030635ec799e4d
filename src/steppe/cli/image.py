"""`steppe image`: container images to run experiments in."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from steppe.cli.input.parsing import SteppeApp

app = SteppeApp(no_args_is_help=True, rich_markup_mode=None)

PROGRAM = Annotated[
    str | None,
    typer.Option("--program", metavar="PROGRAM", help="docker, podman or buildah; without it the first that works."),
]
DRY_RUN = Annotated[bool, typer.Option("--dry-run", help="Only print the command that would be run.")]


@app.callback()
def _image() -> None:
    """Build and push the images that experiments run in on a cluster."""


@app.command()
def build(
    tag: Annotated[
        str | None,
        typer.Option("-t", "--tag", metavar="NAME", help="What it is called: [registry/]name[:tag]."),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="For NVIDIA GPUs: with CUDA, some gigabytes larger.")] = False,
    extras: Annotated[
        list[str] | None,
        typer.Option("--extras", metavar="A,B", help="Extras of Steppe to install, such as atari,mujoco."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option("--package", metavar="PACKAGE", help="Another package, as for pip; may be repeated."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="IMAGE", help="Build on this instead of python:3.11.14-slim-bookworm."),
    ] = None,
    program: PROGRAM = None,
    dry_run: DRY_RUN = False,
) -> None:
    """Build an image of this Steppe.

    For example: steppe image build -t example.com/team/steppe:1 --extras atari
    """
    from steppe.display.text import duration
    from steppe.images import Recipe, program_for, standard_name
    from steppe.images import build as build_image

    names = tuple(name.strip() for given in extras or () for name in given.split(",") if name.strip())
    recipe = Recipe(tag or standard_name(gpu), gpu, names, tuple(package or ()), base)
    used = program_for(program, dry_run)
    began = time.monotonic()
    command = build_image(recipe, used, dry_run)
    if dry_run:
        print(command)
        return
    print(f"built {recipe.name} with {used} in {duration(time.monotonic() - began)}")
    print(f'name it in the experiment or its cluster: "kubernetes": {{"image": "{recipe.name}"}}')
    if "/" in recipe.name:
        print(f"try next: steppe image push {recipe.name}")


@app.command()
def push(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The image, with its registry: registry/name[:tag].")],
    program: PROGRAM = None,
    dry_run: DRY_RUN = False,
) -> None:
    """Send an image to its registry, where the nodes of a cluster fetch it.

    For example: steppe image push registry.example.com/team/steppe:1
    """
    from steppe.images import program_for
    from steppe.images import push as push_image

    used = program_for(program, dry_run)
    command = push_image(name, used, dry_run)
    print(command if dry_run else f"pushed {name} with {used}")
