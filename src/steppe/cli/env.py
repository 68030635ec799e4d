"""`steppe env`: checks an environment, or serves it to learners in other processes and on other machines."""

from __future__ import annotations

import signal
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.input.flags import ENVIRONMENT_SETS, HOST, PORT, TLS_CERT, TLS_KEY
from steppe.cli.input.parsing import SteppeApp
from steppe.signals import handling

if TYPE_CHECKING:
    from steppe.envs.remote.environment_server import EnvironmentServer
    from steppe.specs.environment import EnvironmentSpec

app = SteppeApp(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _env() -> None:
    """Check environments, and serve them to learners elsewhere."""


@app.command()
def serve(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT",
            help="A gymnasium id, module:callable, a name in configs/environments/ or a file.",
        ),
    ],
    port: PORT = 5555,
    host: HOST = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="What learners must show; also taken from STEPPE_ENV_TOKEN."),
    ] = None,
    tls_cert: TLS_CERT = None,
    tls_key: TLS_KEY = None,
    max_envs: Annotated[
        int, typer.Option("--max-envs", metavar="N", min=1, help="How many environments may live at once.")
    ] = 256,
    vectorization: Annotated[
        str | None,
        typer.Option("--vectorization", metavar="HOW", help="How a learner's are stepped: sync, processes or native."),
    ] = None,
    sets: ENVIRONMENT_SETS = None,
) -> int:
    """Serve an environment to learners in other processes and on other machines.

    For example: steppe env serve CartPole-v1 --port 5555

    Ctrl-C or SIGTERM end it. Without a token it only listens on this machine,
    and makes a token of its own if other users are there.
    """
    from steppe.envs.remote.environment_server import EnvironmentServer
    from steppe.experiments.project import let_user_modules_import
    from steppe.net.credentials import server_tls, server_token
    from steppe.net.local_tokens import token_sentence
    from steppe.net.sockets import is_loopback

    let_user_modules_import(Path.cwd())
    spec = _spec(environment, vectorization, sets or [])
    token, tls = server_token(token_file), server_tls(tls_cert, tls_key)
    server = EnvironmentServer(spec, host, port, token=token, tls=tls, max_envs=max_envs)
    with _ending_at_signals(server):
        words = ["steppe train remote", f"--set environment.address={_reachable(server)}"]
        if token_file is not None:
            words.append(f"--set environment.token_file={token_file}")
        if tls_cert is not None:
            words.append(f"--set environment.tls_ca={tls_cert}")
        where = ":".join(map(str, server.address))
        print(f"serving {spec.id} at {where}; train with: {' '.join(words)}", flush=True)
        if server.token_file is not None:
            print(f"note: {token_sentence(server.token_file)}; learners of yours on this machine find it", flush=True)
        if tls is None and not is_loopback(host):
            print("note: nothing is encrypted, the token neither; use --tls-cert and --tls-key", flush=True)
        server.serve()
    return 0


@app.command()
def check(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENVIRONMENT",
            help="module:callable, a gymnasium id, a name in configs/environments/ or a file.",
        ),
    ],
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, help="How many random actions to take at most.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="What the random actions follow from.")] = 0,
    sets: ENVIRONMENT_SETS = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Check an environment before training, and say how to fix its problems.

    For example: steppe env check my_env:Target

    It is made, reset and stepped with random actions. The exit code is 0 if an
    agent can learn in it, 1 if there are problems, and 2 if it was not found.
    """
    from dataclasses import asdict

    from steppe.display.console import console, print_json
    from steppe.envs.checks.environment import check_environment
    from steppe.experiments.project import let_user_modules_import

    let_user_modules_import(Path.cwd())
    report = check_environment(_spec(environment, None, sets or []), steps, seed)
    if as_json:
        findings = [asdict(finding) for finding in report.findings]
        print_json({"environment": report.environment, "is_fine": report.is_fine, "findings": findings})
    else:
        console().print(str(report), markup=False)
    return 0 if report.is_fine else 1


def _spec(name: str, vectorization: str | None, sets: list[str]) -> EnvironmentSpec:
    from steppe.cli.starting.running import say
    from steppe.spec_files import read_environment
    from steppe.specs.loading.files import folders_for, locate_config, read_spec_file, shown_path
    from steppe.specs.loading.overrides import apply_overrides

    path = locate_config(name, folders_for("environment", Path.cwd()))
    data: Any = {"id": name} if path is None else read_spec_file(path)
    source = "" if path is None else shown_path(path)
    if isinstance(data, dict):
        if sets:
            data["settings"] = apply_overrides(data.get("settings", {}), sets)
        if vectorization is not None:
            data["vectorization"] = vectorization
    spec = read_environment(data, source)
    for notice in spec.notices:
        say([notice])
    return spec


def _ending_at_signals(server: EnvironmentServer) -> AbstractContextManager[None]:
    """The first Ctrl-C or SIGTERM ends the server once the steps under way are done, the second at once."""

    def end(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        server.stop()

    return handling(end, signal.SIGINT, signal.SIGTERM)


def _reachable(server: EnvironmentServer) -> str:
    """The address as a learner writes it."""
    host, port = server.address
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
