"""`steppe serve status`, `pin`, `report` ...: commands for the operator of an endpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.input.flags import with_options
from steppe.cli.play import AS_JSON, DEFAULT_URL, ENDPOINT_URL, TLS_CA, TOKEN, TOKEN_FILE, access_to

if TYPE_CHECKING:
    from steppe.serve.clients.operator import Operator
    from steppe.serve.ledger import Ledger

DATABASE_VARIABLE = "STEPPE_SERVE_DATABASE"
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


def with_operator(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of a connection to an endpoint, which it receives as `operator`."""
    options = {"url": ENDPOINT_URL, "token": TOKEN, "token_file": TOKEN_FILE, "tls_ca": TLS_CA}

    def receive(values: dict[str, Any]) -> dict[str, Any]:
        from steppe.serve.clients.operator import Operator

        return {"operator": Operator(access_to(**values))}

    return with_options(command, options, {"url": DEFAULT_URL}, receive, ("operator",))


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

    Each is judged as if it had got all of the traffic. The endpoint need not be running.

    For example: steppe serve report router
    """
    import dataclasses

    from steppe.cli.display.serve_tables import print_comparison
    from steppe.display.console import print_json
    from steppe.serve.report import compare

    ledger = _ledger(endpoint, given_database(database))
    ledger.open()
    try:
        comparison = compare(ledger, confidence)
    finally:
        ledger.close()
    print_json(dataclasses.asdict(comparison)) if as_json else print_comparison(comparison, confidence)


@with_operator
def status(
    operator: Any,
    as_json: AS_JSON = False,
) -> None:
    """Show routes, traffic and rewards of a running endpoint."""
    from steppe.cli.display.serve_tables import print_standing
    from steppe.display.console import print_json

    with operator:
        standing = operator.standing()
    print_json(standing) if as_json else print_standing(standing)


@with_operator
def versions(
    operator: Any,
    as_json: AS_JSON = False,
) -> None:
    """List the versions of each policy, and which is in service."""
    from steppe.cli.display.serve_tables import print_versions
    from steppe.display.console import print_json

    with operator:
        policies = operator.standing()["endpoint"]["policies"]
    print_json(policies) if as_json else print_versions(policies)


@with_operator
def pin(
    operator: Any,
    version: Annotated[str, typer.Argument(metavar="VERSION", help='One of "steppe serve versions".')],
    policy: POLICY_NAME = None,
) -> None:
    """Serve one version of a policy until it is unpinned."""
    with operator:
        _pin(operator, operator.policy(policy), version)


@with_operator
def rollback(
    operator: Any,
    policy: POLICY_NAME = None,
) -> None:
    """Pin the version before the one that is in service."""
    from steppe.serve.clients.operator import version_before

    with operator:
        chosen = operator.policy(policy)
        _pin(operator, chosen, version_before(chosen))


@with_operator
def unpin(
    operator: Any,
    policy: POLICY_NAME = None,
) -> None:
    """Serve the newest version again, and newer ones as they come."""
    with operator:
        _pin(operator, operator.policy(policy), None)


@with_operator
def reload(operator: Any) -> None:
    """Look for newer policies now, even without --watch."""
    with operator:
        news = operator.reload()
    print("\n".join(news) if news else "nothing is new")


def _ledger(endpoint: str | None, database: str | None) -> Ledger:
    """The ledger of an endpoint, which must exist."""
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


def given_database(given: str | None) -> str | None:
    """The database of a command: from its option, or STEPPE_SERVE_DATABASE."""
    return given or os.environ.get(DATABASE_VARIABLE) or None


def _pin(operator: Operator, policy: dict[str, Any], version: str | None) -> None:
    now = operator.pin(policy, version)
    after = f", after {policy['version']}" if now["version"] != policy["version"] else ""
    how = "pinned" if now["pinned"] else "not pinned"
    print(f"policy {now['name']} is served at version {now['version']} ({how}{after})")
