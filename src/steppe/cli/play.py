"""`steppe play`: plays an environment through an endpoint and reports the rewards."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.input.flags import ALLOW_MODULES, QUIET, WHAT_IS_PLAYED

if TYPE_CHECKING:
    from steppe.serve.clients import EndpointAccess
    from steppe.serve.play.remote_play import PlayResult
    from steppe.specs.allowed_modules import AllowedModules
    from steppe.specs.environment import EnvironmentSpec

PLAYS = "steppe-plays"
SUMMARY = "play.json"
INTERRUPTED = 130

DEFAULT_URL = "http://127.0.0.1:8000"
ENDPOINT_URL = Annotated[str, typer.Option("--url", metavar="URL", help=f"The endpoint; {DEFAULT_URL} without it.")]
TOKEN = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="The endpoint's token; better in a file, or in STEPPE_SERVE_TOKEN."),
]
TOKEN_FILE = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file with the token; also taken from STEPPE_SERVE_TOKEN."),
]
TLS_CA = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Certificates to trust in place of the system's (PEM)."),
]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def play(
    url: ENDPOINT_URL = DEFAULT_URL,
    environment: WHAT_IS_PLAYED = None,
    runners: Annotated[int, typer.Option("--runners", metavar="N", min=1, help="How many play at once.")] = 1,
    episodes: Annotated[
        int, typer.Option("--episodes", metavar="N", min=1, help="How many episodes are played in all.")
    ] = 100,
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="PROTOCOL", help="How to talk to it: v2, v2-grpc or seldon.")
    ] = "v2",
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Which model of the server; needed if it has several.")
    ] = None,
    feedback: Annotated[
        str,
        typer.Option(
            "--feedback", metavar="WHEN", help="Tell the return of each episode, the reward of each step, or none."
        ),
    ] = "episode",
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Ask for drawn actions instead of the best.")
    ] = False,
    max_timesteps: Annotated[
        int | None,
        typer.Option("--max-timesteps-per-episode", metavar="N", min=1, help="Cut episodes off after N timesteps."),
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Show the first runner's environment in a window.")] = False,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", min=0, help="What the environments' randomness follows from.")
    ] = 0,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_ca: TLS_CA = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long one answer may take.")
    ] = 30.0,
    patience: Annotated[
        float,
        typer.Option(
            "--patience", metavar="SECONDS", min=0.0, help="For how long an endpoint that is away is tried again."
        ),
    ] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help=f"Where metrics.jsonl goes; without it a new folder in ./{PLAYS}/."),
    ] = None,
    as_json: AS_JSON = False,
    allow_modules: ALLOW_MODULES = None,
    quiet: QUIET = False,
) -> int:
    """Play an environment through an endpoint, report the rewards, and show the scores of each route.

    For example: steppe play --runners 5 --episodes 200

    Ctrl-C ends it with a summary of what was played.
    """
    from steppe.display.play_progress import display
    from steppe.experiments.project import let_allowed_modules_import
    from steppe.serve.clients import check_protocol
    from steppe.serve.play.remote_play import PlayPlan
    from steppe.serve.play.remote_play import play as play_remotely
    from steppe.specs.allowed_modules import AllowedModules, named_in

    # Naming a module in -E allows it.
    allowed = AllowedModules.of(allow_modules or ()) | named_in(environment)
    let_allowed_modules_import(Path.cwd(), allowed)
    check_protocol(protocol)
    access = access_to(url, token, token_file, tls_ca, timeout=timeout, model=model)
    when = _feedback(feedback)
    try:
        spec = _environment(environment, allowed) if environment is not None else _its_own(protocol, access, patience)
    except KeyboardInterrupt:
        return _interrupted()
    plan = PlayPlan(
        spec,
        episodes,
        runners,
        when,
        deterministic=False if stochastic else None,
        seed=seed,
        max_timesteps=max_timesteps,
        patience=patience,
        render=render,
    )
    folder = _folder(out, plan.environment.id)
    shows = display(f"{plan.environment.id} through {access.url}", quiet=quiet or as_json)
    try:
        with shows:
            played = play_remotely(plan, protocol, access, folder, shows.update, shows.announce)
    except BaseException as error:
        # An empty folder is removed.
        with contextlib.suppress(OSError):
            folder.rmdir()
        if not isinstance(error, KeyboardInterrupt):
            raise
        return _interrupted()
    summary = _write_summary(folder, played, plan.environment.id, access)
    if as_json:
        from steppe.display.console import print_json

        print_json(summary)
    elif not quiet:
        _print_end(played, folder, plan.feedback)
    return INTERRUPTED if played.was_stopped else 0


def access_to(url: str, token: str | None, token_file: Path | None, tls_ca: Path | None, **more: Any) -> EndpointAccess:
    """The address of an endpoint and the credentials for it; the address is checked at once."""
    from steppe.serve.clients import EndpointAccess

    access = EndpointAccess(url, given_token(token, token_file), None if tls_ca is None else str(tls_ca), **more)
    access.tls()
    access.check_host()
    return access


def given_token(token: str | None, file: Path | None) -> str | None:
    """The token of a command: from its option, a file, or STEPPE_SERVE_TOKEN."""
    from steppe.errors import UserError
    from steppe.net.credentials import read_token

    if token is not None and file is not None:
        raise UserError("two tokens are given; leave out --token or --token-file")
    return token if token is not None else read_token(file, "STEPPE_SERVE_TOKEN")


def _environment(name: str, allowed: AllowedModules) -> EnvironmentSpec:
    from steppe.cli.starting.running import say
    from steppe.spec_files import read_environment
    from steppe.specs.loading.files import folders_for, locate_config, read_spec_file, shown_path

    path = locate_config(name, folders_for("environment", Path.cwd()))
    data = {"id": name} if path is None else read_spec_file(path)
    spec = read_environment(data, "" if path is None else shown_path(path))
    allowed.check_environment(spec, f'"{name}"')
    say(list(spec.notices))
    return spec


def _its_own(protocol: str, access: EndpointAccess, patience: float) -> EnvironmentSpec:
    """The environment in which the endpoint says that its policy was trained."""
    from steppe.display.play_progress import PlayDisplay
    from steppe.errors import UserError
    from steppe.serve.play.remote_play import describe
    from steppe.spec_files import read_environment

    described = describe(protocol, access, patience, PlayDisplay("").announce)
    name = described.environment
    if name is None:
        raise UserError(f"{access.url} does not say in which environment it was trained; give one by --environment")
    if ":" in name or name == "remote":
        # An endpoint must not make this machine run code or open connections.
        raise UserError(
            f'{access.url} was trained in "{name[:100]}", which is not started just because an endpoint says so; give '
            "it by --environment"
        )
    return read_environment({"id": name}, f"the metadata of {access.url}")


def _interrupted() -> int:
    print("error: ended by Ctrl-C before anything was played", file=sys.stderr)
    return INTERRUPTED


def _feedback(word: str) -> Any:
    from steppe.errors import UserError
    from steppe.specs.loading.suggestions import did_you_mean

    words = ("episode", "step", "none")
    if word not in words:
        raise UserError(f'unknown --feedback "{word}"{did_you_mean(word, words)}; it is episode, step or none')
    return word


def _folder(out: Path | None, environment: str) -> Path:
    """The folder for the metrics, which must not hold any yet."""
    from steppe.errors import UserError
    from steppe.experiments.run_folder.store import Store
    from steppe.tracking.metrics import FILE

    if out is None:
        stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in environment).strip("-.")
        return Store(Path.cwd() / PLAYS).new_folder(stem or "play").path
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a folder")
    if (out / FILE).exists():
        raise UserError(f"{out} holds the metrics of something else already; give --out another folder")
    return out


def _write_summary(folder: Path, played: PlayResult, environment: str, access: EndpointAccess) -> dict[str, Any]:
    import json

    from steppe.files.durable import write_atomically

    summary = {
        "url": access.url,
        "model": played.described.model,
        "environment": environment,
        "stopped": played.was_stopped,
        "folder": str(folder),
        "sent_again": played.tries,
        "uncounted_rewards": played.uncounted,
        **played.scores.to_json(),
    }
    write_atomically(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def _print_end(played: PlayResult, folder: Path, feedback: str) -> None:
    from steppe.cli.starting.running import say
    from steppe.display.console import console
    from steppe.display.play_progress import route_table
    from steppe.display.text import duration, score
    from steppe.specs.loading.files import shown_path

    out, scores = console(), played.scores
    how = "ended by Ctrl-C after" if played.was_stopped else "played"
    mean = scores.total / scores.episodes if scores.episodes else None
    plural = "" if scores.episodes == 1 else "s"
    out.print(
        f"{how} {scores.episodes:,} episode{plural} ({scores.timesteps:,} timesteps) with mean return {score(mean)} in "
        f"{duration(scores.seconds)}",
        markup=False,
        style="bold",
    )
    if scores.episodes:
        out.print(route_table(scores))
    notes = []
    if feedback != "none" and not played.described.takes_feedback:
        notes.append("this server takes no feedback, so none was sent")
    if played.uncounted:
        notes.append(
            f"{played.uncounted} rewards may not have been counted: the endpoint was away or had forgotten them"
        )
    if scores.abandoned:
        notes.append(f"{scores.abandoned} episodes were cut off and played anew")
    say(notes)
    out.print(f"metrics are in {shown_path(folder)}/", markup=False)
