"""The Typer app of all commands."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from steppe.cli.input.parsing import SteppeApp

SETTINGS = {"help_option_names": ["-h", "--help"]}
COMMANDS = {
    "train": ("train", "train"),
    "init": ("project", "init"),
    "report": ("policy", "report"),
    "evaluate": ("evaluate", "evaluate"),
    "record": ("record", "record"),
    "play": ("play", "play"),
    "agents": ("catalogue", "agents"),
    "environments": ("catalogue", "environments"),
    "layers": ("catalogue", "layers"),
    "schema": ("catalogue", "schema"),
    "version": ("app", "version"),
}
"""Command -> its module and function, in the order of the help."""
GROUPS = {
    "experiment": "Make, start, watch and end the experiments of a project.",
    "image": "Build and push the images that experiments run in on a cluster.",
    "cluster": "Make, list, check and delete clusters.",
    "policy": "Use trained policies.",
    "serve": None,
    "env": "Check environments, and serve them to learners elsewhere.",
}
"""Group of commands (the `app` of the module of that name) -> its help; None if the app has its own."""


def app_for(words: list[str]) -> SteppeApp:
    """The app, with only the command or group that the first word names, if it names one.

    Importing all commands and building their options takes longer than reading a spec.
    """
    app = SteppeApp(
        name="steppe",
        help="Runs reinforcement-learning experiments: one file, from a laptop to a cluster.",
        epilog="Begin with: steppe train CartPole-v1",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help is as readable, and takes half the time
        context_settings=SETTINGS,
    )
    app.callback()(everywhere)
    named = set(words[:1]) & (COMMANDS.keys() | GROUPS.keys())
    for name, (module, function) in COMMANDS.items():
        if not named or name in named:
            app.command(name)(_part(module, function))
    for name, told in GROUPS.items():
        if not named or name in named:
            group = _part(name, "app")
            app.add_typer(group, name=name) if told is None else app.add_typer(group, name=name, help=told)
    return app


def _part(module: str, name: str) -> Any:
    return getattr(import_module(f"steppe.cli.{module}"), name)


def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    print(f"steppe {installed('steppe')}")


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def everywhere(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; works anywhere in a command.")
    ] = False,
) -> None:
    """Runs reinforcement-learning experiments: one file, from a laptop to a cluster."""
