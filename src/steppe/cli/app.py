"""All commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from steppe.cli import catalogue, cluster, env, experiment, image, policy, project, serve
from steppe.cli.evaluate import evaluate
from steppe.cli.parsing import App
from steppe.cli.play import play
from steppe.cli.record import record
from steppe.cli.train import train

SETTINGS = {"help_option_names": ["-h", "--help"]}

app = App(
    name="steppe",
    help="Runs reinforcement-learning experiments: one file, from a laptop to a cluster.",
    epilog="Begin with: steppe train CartPole-v1",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help is as readable, and takes half the time
    context_settings=SETTINGS,
)
app.command()(train)
app.command()(project.init)
app.add_typer(experiment.app, name="experiment", help="Make, start, watch and end the experiments of a project.")
app.add_typer(image.app, name="image", help="Build and push the images that experiments run in on a cluster.")
app.add_typer(cluster.app, name="cluster", help="Make, list, check and delete clusters.")
app.add_typer(policy.app, name="policy", help="Use trained policies.")
app.command()(policy.report)
app.command()(evaluate)
app.command()(record)
app.add_typer(serve.app, name="serve")
app.command()(play)
app.add_typer(env.app, name="env", help="Check environments, and serve them to learners elsewhere.")
app.command()(catalogue.agents)
app.command()(catalogue.environments)
app.command()(catalogue.layers)
app.command()(catalogue.schema)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    print(f"steppe {installed('steppe')}")


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def everywhere(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; works anywhere in a command.")
    ] = False,
) -> None:
    """Runs reinforcement-learning experiments: one file, from a laptop to a cluster."""
