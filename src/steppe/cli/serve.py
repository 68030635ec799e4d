"""`steppe serve`: an endpoint for trained policies, and what an operator does with one that runs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.input import completion
from steppe.cli.input.flags import ALLOW_MODULES
from steppe.cli.input.parsing import EXPERIMENT_OPTION, CommandGroup, SteppeApp
from steppe.cli.play import AS_JSON, DEFAULT_URL, ENDPOINT_URL, TLS_CA, TOKEN, TOKEN_FILE

if TYPE_CHECKING:
    from steppe.errors import UserError
    from steppe.serve.clients.operator import Operator
    from steppe.serve.endpoint import Endpoint
    from steppe.serve.ledger import Ledger
    from steppe.serve.server import EndpointServer, ServerConfig

DATABASE_VARIABLE = "STEPPE_SERVE_DATABASE"
WATCH_SECONDS = 2.0
START = "start"
POLICY_NAME = Annotated[
    str | None, typer.Option("--policy", metavar="NAME", help="Which policy; needed if it serves several.")
]
DATABASE = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Where decisions and rewards are kept: postgresql://..., or a file; without it a file in serving/NAME/. "
        f"Also taken from {DATABASE_VARIABLE}.",
    ),
]


class ServeGroup(CommandGroup):
    """`steppe serve X` is short for `steppe serve start X`, and the help shows what both take."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts in the command that was left out."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [START, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The options of `start`, then the other commands."""
        start = self.commands[START]
        start.format_options(start.context_class(start, info_name=START, parent=ctx), formatter)
        self.format_commands(ctx, formatter)


app = SteppeApp(cls=ServeGroup, no_args_is_help=True, rich_markup_mode=None, subcommand_metavar="[POLICY | COMMAND]")


@app.callback()
def _serve() -> None:
    """Serve policies over HTTP and gRPC, with A/B tests and routers that learn from rewards.

    For example: steppe serve -e first
    """


@app.command(START)
def start(
    policy: Annotated[
        str | None,
        typer.Argument(
            metavar="POLICY",
            help="An experiment's name, a run folder or a policy folder.",
            show_default=False,
            autocompletion=completion.experiments,
        ),
    ] = None,
    experiment: EXPERIMENT_OPTION = None,
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="GRAPH",
            autocompletion=completion.graphs,
            help="A graph of policies, or a SeldonDeployment: a name in configs/graphs/ or a file.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("-n", "--name", metavar="NAME", help="The endpoint's name; without it that of what it serves."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The address to listen at; 0.0.0.0 is every one.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="P", min=0, max=65535, help="Where to listen; 0 takes any that is free.")
    ] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option("--grpc-port", metavar="P", min=0, max=65535, help="Where to listen for gRPC; 0 takes any."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Take a newer policy into service as soon as its training saves one.")
    ] = False,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Encrypt with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key (PEM).")
    ] = None,
    database: DATABASE = None,
    max_episodes: Annotated[
        int, typer.Option("--max-episodes", metavar="N", min=1, help="How many episodes may be open at once.")
    ] = 10_000,
    episode_timeout: Annotated[
        float,
        typer.Option("--episode-timeout", metavar="SECONDS", min=0.001, help="How long an episode may be silent."),
    ] = 3600.0,
    episode_memory: Annotated[
        float,
        typer.Option(
            "--episode-memory", metavar="MB", min=0.001, help="How much open episodes may remember all together."
        ),
    ] = 256.0,
    keep_days: Annotated[
        float | None,
        typer.Option("--keep-days", metavar="D", min=0.01, help="Forget decisions D days after they are over."),
    ] = None,
    max_concurrent: Annotated[
        int, typer.Option("--max-concurrent", metavar="N", min=1, help="How many requests may be under way at once.")
    ] = 1024,
    max_body: Annotated[
        float, typer.Option("--max-body", metavar="MB", min=0.001, help="How long one request may be.")
    ] = 16.0,
    max_rows: Annotated[
        int, typer.Option("--max-rows", metavar="N", min=1, help="How many observations one request may have.")
    ] = 10_000,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="R", min=0.001, help="How many requests a second one client may send."),
    ] = None,
    access_log: Annotated[
        str | None,
        typer.Option("--access-log", metavar="FILE", help="One line of JSON for each request; - is standard output."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", min=0, help="What routes and drawn actions follow from.")
    ] = None,
    allow_modules: ALLOW_MODULES = None,
) -> int:
    """Serve a policy, or a graph of them, until Ctrl-C or SIGTERM.

    For example: steppe serve -e first --watch

    Without a token it only listens on this machine, and makes one of its own if
    other users are there. Requests under way are answered before it ends.
    """
    from steppe.serve.limits import EndpointLimits

    watch_seconds = WATCH_SECONDS if watch else None
    limits = EndpointLimits(
        max_episodes,
        episode_timeout,
        watch_seconds=watch_seconds,
        rows=max_rows,
        episode_bytes=int(episode_memory * 1_000_000),
        keep_days=keep_days,
    )
    listening = _listening(host, port, grpc_port, _server_token(token, token_file), tls_cert, tls_key)
    listening = _limited(listening, access_log, max_concurrent, max_body, rate)
    given = (policy, experiment, file)
    endpoint = _endpoint(given, name, _database(database), limits, seed, allow_modules or [])
    return _run(endpoint, listening, token_file, tls_cert)


@app.command()
def report(
    endpoint: Annotated[
        str | None, typer.Argument(metavar="ENDPOINT", help="Its name; not needed if there is only one in serving/.")
    ] = None,
    database: DATABASE = None,
    confidence: Annotated[
        float,
        typer.Option("--confidence", metavar="C", min=0.01, max=0.9999, help="How sure the intervals are."),
    ] = 0.95,
    as_json: AS_JSON = False,
) -> None:
    """Compare the policies of an endpoint by their rewards.

    Each is judged as if it had got all of the traffic. Works while it runs, and after.

    For example: steppe serve report router
    """
    import dataclasses

    from steppe.cli.display.serve_tables import print_comparison
    from steppe.display.console import print_json
    from steppe.serve.report import compare

    ledger = _ledger(endpoint, _database(database))
    ledger.open()
    try:
        comparison = compare(ledger, confidence)
    finally:
        ledger.close()
    print_json(dataclasses.asdict(comparison)) if as_json else print_comparison(comparison, confidence)


@app.command()
def status(
    url: ENDPOINT_URL = DEFAULT_URL,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_ca: TLS_CA = None,
    as_json: AS_JSON = False,
) -> None:
    """Show routes, traffic and rewards of a running endpoint."""
    from steppe.cli.display.serve_tables import print_standing
    from steppe.display.console import print_json

    with _operator(url, token, token_file, tls_ca) as operator:
        standing = operator.standing()
    print_json(standing) if as_json else print_standing(standing)


@app.command()
def versions(
    url: ENDPOINT_URL = DEFAULT_URL,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_ca: TLS_CA = None,
    as_json: AS_JSON = False,
) -> None:
    """List the versions of its policies, and which are in service."""
    from steppe.cli.display.serve_tables import print_versions
    from steppe.display.console import print_json

    with _operator(url, token, token_file, tls_ca) as operator:
        policies = operator.standing()["endpoint"]["policies"]
    print_json(policies) if as_json else print_versions(policies)


@app.command()
def pin(
    version: Annotated[str, typer.Argument(metavar="VERSION", help='One of "steppe serve versions".')],
    url: ENDPOINT_URL = DEFAULT_URL,
    policy: POLICY_NAME = None,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_ca: TLS_CA = None,
) -> None:
    """Serve one version of a policy, whatever comes after it."""
    with _operator(url, token, token_file, tls_ca) as operator:
        _pin(operator, operator.policy(policy), version)


@app.command()
def rollback(
    url: ENDPOINT_URL = DEFAULT_URL,
    policy: POLICY_NAME = None,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_ca: TLS_CA = None,
) -> None:
    """Pin the version before the one that is in service."""
    from steppe.serve.clients.operator import version_before

    with _operator(url, token, token_file, tls_ca) as operator:
        chosen = operator.policy(policy)
        _pin(operator, chosen, version_before(chosen))


@app.command()
def unpin(
    url: ENDPOINT_URL = DEFAULT_URL,
    policy: POLICY_NAME = None,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_ca: TLS_CA = None,
) -> None:
    """Go back to the newest version, and on with newer ones."""
    with _operator(url, token, token_file, tls_ca) as operator:
        _pin(operator, operator.policy(policy), None)


@app.command()
def reload(
    url: ENDPOINT_URL = DEFAULT_URL,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_ca: TLS_CA = None,
) -> None:
    """Look for newer policies now, also without --watch."""
    with _operator(url, token, token_file, tls_ca) as operator:
        news = operator.reload()
    print("\n".join(news) if news else "nothing is new")


def _endpoint(
    given: tuple[str | None, str | None, str | None],
    name: str | None,
    database: str | None,
    limits: Any,
    seed: int | None,
    allow_modules: list[str],
) -> Endpoint:
    """The endpoint of one of: a policy's folder, an experiment, a graph's file."""
    from steppe.errors import ProjectError, StateError, UserError
    from steppe.serve.loading import load_endpoint
    from steppe.specs.serving import load_graph

    policy, experiment, file = given
    if sum(each is not None for each in given) != 1:
        raise UserError("give one thing to serve: a policy's folder, -e EXPERIMENT or -f GRAPH")
    graph: str | Path = policy or experiment or ""
    if file is not None:
        spec, graph = load_graph(file, Path.cwd())
        for notice in spec.notices:
            print(f"note: {notice}", flush=True)
    try:
        return load_endpoint(graph, name=name, ledger=database, limits=limits, seed=seed, allow_modules=allow_modules)
    except (StateError, ProjectError):
        if policy is None or "/" in policy:
            raise
        raise _nothing_to_serve(policy) from None


def _nothing_to_serve(word: str) -> UserError:
    """What is said of a word that may have been meant as a policy, an experiment or a command."""
    from steppe.errors import UserError
    from steppe.experiments.project import known_stores
    from steppe.specs.loading.suggestions import did_you_mean

    commands = sorted(each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands)
    experiments = [folder.name for store in known_stores(Path.cwd()) for folder in store.folders()]
    hint = did_you_mean(word, [*experiments, *commands])
    return UserError(f'no policy, experiment or command "{word}" (commands: {", ".join(commands)}){hint}')


def _listening(
    host: str, port: int, grpc_port: int | None, token: str | None, tls_cert: Path | None, tls_key: Path | None
) -> ServerConfig:
    from steppe.serve.server import ServerConfig

    return ServerConfig(host, port, grpc_port, token, tls_cert, tls_key)


def _limited(
    listening: ServerConfig, access_log: str | None, max_concurrent: int, max_body: float, rate: float | None
) -> ServerConfig:
    import dataclasses

    from steppe.serve.limits import TrafficLimits

    limits = TrafficLimits(body_bytes=int(max_body * 1_000_000), concurrent=max_concurrent, rate=rate)
    return dataclasses.replace(listening, access_log=access_log, limits=limits)


def _run(endpoint: Endpoint, listening: ServerConfig, token_file: Path | None, tls_cert: Path | None) -> int:
    import logging
    import time
    from importlib.metadata import version

    from steppe.display.text import duration
    from steppe.net.local_tokens import token_sentence
    from steppe.net.sockets import is_loopback
    from steppe.serve.server import EndpointServer

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)

    def say(server: EndpointServer) -> None:
        environment = endpoint.metadata().properties.get("environment") or "ENVIRONMENT"
        words = ["steppe", "play", "--url", server.url, "--environment", environment]
        words += ["--token-file", str(token_file)] if token_file is not None else []
        words += ["--tls-ca", str(tls_cert)] if tls_cert is not None else []
        grpc = "" if server.grpc_port is None else f" (gRPC at port {server.grpc_port})"
        print(f"serving {endpoint.name} at {server.url}{grpc}; play with: {shlex.join(words)}", flush=True)
        if server.token_file is not None:
            curl = f'curl -H "Authorization: Bearer $(cat {shlex.quote(str(server.token_file))})" {server.url}/v2'
            print(f"note: {token_sentence(server.token_file)}; your own steppe commands find it; {curl}", flush=True)
        if tls_cert is None and not is_loopback(listening.host):
            print("note: nothing is encrypted, the token neither; use --tls-cert and --tls-key", flush=True)
        print(f"watch it at {server.url}/ or by Prometheus at {server.url}/metrics; Ctrl-C ends it", flush=True)

    server = EndpointServer(endpoint, listening, version("steppe"))
    started = time.monotonic()
    server.run(say)
    answers = f"{server.answers:,} answer{'' if server.answers == 1 else 's'}"
    print(f"ended after {answers} in {duration(time.monotonic() - started)}; what was decided and rewarded is kept")
    return 0


def _server_token(token: str | None, file: Path | None) -> str | None:
    """The token of the command; too short ones, which could be guessed, are refused."""
    from steppe.cli.play import given_token
    from steppe.errors import UserError
    from steppe.net.credentials import SHORTEST_TOKEN

    found = given_token(token, file)
    if found is not None and len(found) < SHORTEST_TOKEN:
        raise UserError(
            f"the token has only {len(found)} characters; use at least {SHORTEST_TOKEN}, such as from: openssl rand "
            "-hex 32"
        )
    return found


def _ledger(endpoint: str | None, database: str | None) -> Ledger:
    """Where an endpoint has written down what it decided; nothing is made that is not there."""
    from steppe.errors import UserError
    from steppe.serve.ledger import make_ledger
    from steppe.serve.loading import LEDGER_FILE, serving_folder
    from steppe.specs.loading.files import shown_path
    from steppe.specs.loading.suggestions import did_you_mean

    shelf = serving_folder("any", Path.cwd()).parent
    names = sorted(file.parent.name for file in shelf.glob(f"*/{LEDGER_FILE}"))
    if endpoint is None:
        if database is not None or len(names) > 1:
            raise UserError(f"give the endpoint's name{': ' if names else ''}{' or '.join(names)}")
        if not names:
            raise UserError(f"no endpoint has written anything into {shown_path(shelf)} yet; start one: steppe serve")
        (endpoint,) = names
    place = database or str(serving_folder(endpoint, Path.cwd()) / LEDGER_FILE)
    if "://" not in place and not Path(place).is_file():
        way_out = did_you_mean(endpoint, names) or "; give its name, or its --database"
        raise UserError(f'no decisions of an endpoint "{endpoint}" in {shown_path(place)}{way_out}')
    return make_ledger(place, endpoint)


def _database(given: str | None) -> str | None:
    return given or os.environ.get(DATABASE_VARIABLE) or None


def _operator(url: str, token: str | None, token_file: Path | None, tls_ca: Path | None) -> Operator:
    from steppe.cli.play import access_to
    from steppe.serve.clients.operator import Operator

    return Operator(access_to(url, token, token_file, tls_ca))


def _pin(operator: Operator, policy: dict[str, Any], version: str | None) -> None:
    now = operator.pin(policy, version)
    after = f", after {policy['version']}" if now["version"] != policy["version"] else ""
    how = "pinned" if now["pinned"] else "not pinned"
    print(f"policy {now['name']} is served at version {now['version']} ({how}{after})")
