"""`steppe serve`: starts an endpoint for trained policies."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.input import completion
from steppe.cli.input.flags import ALLOW_MODULES, HOST, PORT, TLS_CERT, TLS_KEY
from steppe.cli.input.parsing import EXPERIMENT_OPTION, CommandGroup, SteppeApp
from steppe.cli.play import TOKEN, TOKEN_FILE
from steppe.cli.serve_operations import DATABASE, given_database, pin, reload, report, rollback, status, unpin, versions

if TYPE_CHECKING:
    from steppe.errors import UserError
    from steppe.serve.endpoint import Endpoint
    from steppe.serve.server import EndpointServer, ServerConfig

WATCH_SECONDS = 2.0
START = "start"


class ServeGroup(CommandGroup):
    """Makes `steppe serve X` short for `steppe serve start X`; the help shows the options of both."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Inserts `start` if no command is given."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [START, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the options of `start`, then the other commands."""
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
    host: HOST = "127.0.0.1",
    port: PORT = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option("--grpc-port", metavar="P", min=0, max=65535, help="Where to listen for gRPC; 0 takes any."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Take a newer policy into service as soon as its training saves one.")
    ] = False,
    token: TOKEN = None,
    token_file: TOKEN_FILE = None,
    tls_cert: TLS_CERT = None,
    tls_key: TLS_KEY = None,
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
    from steppe.serve.limits import EndpointLimits, TrafficLimits
    from steppe.serve.server import ServerConfig

    watch_seconds = WATCH_SECONDS if watch else None
    limits = EndpointLimits(
        max_episodes,
        episode_timeout,
        watch_seconds=watch_seconds,
        rows=max_rows,
        episode_bytes=int(episode_memory * 1_000_000),
        keep_days=keep_days,
    )
    traffic = TrafficLimits(body_bytes=int(max_body * 1_000_000), concurrent=max_concurrent, rate=rate)
    config = ServerConfig(
        *(host, port, grpc_port, _server_token(token, token_file), tls_cert, tls_key),
        access_log=access_log,
        limits=traffic,
    )
    given = (policy, experiment, file)
    endpoint = _endpoint(given, name, given_database(database), limits, seed, allow_modules or [])
    return _run(endpoint, config, token_file, tls_cert)


for _command in (report, status, versions, pin, rollback, unpin, reload):
    app.command()(_command)


def _endpoint(
    given: tuple[str | None, str | None, str | None],
    name: str | None,
    database: str | None,
    limits: Any,
    seed: int | None,
    allow_modules: list[str],
) -> Endpoint:
    """The endpoint for a policy folder, an experiment or a graph file."""
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
    """The error for a word that is neither a policy, nor an experiment, nor a command."""
    from steppe.errors import UserError
    from steppe.experiments.project import known_stores
    from steppe.specs.loading.suggestions import did_you_mean

    commands = sorted(each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands)
    experiments = [folder.name for store in known_stores(Path.cwd()) for folder in store.folders()]
    hint = did_you_mean(word, [*experiments, *commands])
    return UserError(f'no policy, experiment or command "{word}" (commands: {", ".join(commands)}){hint}')


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
    """The token of the command; one that is short enough to be guessed is refused."""
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
