"""The flags of an experiment, written once for `train` and `experiment new`."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli.input import completion
from steppe.errors import UserError

FLAGS: dict[str, Any] = {
    "agent": Annotated[
        str | None,
        typer.Option(
            "-A",
            "--agent",
            metavar="AGENT",
            autocompletion=completion.agents,
            help="The agent: one of `steppe agents`, a name in configs/agents/ or a file; ppo where none is named.",
        ),
    ],
    "network": Annotated[
        str | None,
        typer.Option(
            "-M",
            "--network",
            metavar="NETWORK",
            autocompletion=completion.networks,
            help="The network: a name in configs/networks/ or a file.",
        ),
    ],
    "environment": Annotated[
        str | None,
        typer.Option(
            "-E",
            "--environment",
            metavar="ENV",
            autocompletion=completion.environments,
            help="The environment: a gymnasium id, module:callable, a name in configs/environments/ or a file.",
        ),
    ],
    "cluster": Annotated[
        str | None,
        typer.Option(
            "-C",
            "--cluster",
            metavar="CLUSTER",
            autocompletion=completion.cluster_files,
            help="The cluster: a name in configs/clusters/ or a file.",
        ),
    ],
    "episodes": Annotated[
        str | None,
        typer.Option(
            "-e", "--episodes", metavar="N", help="End after N episodes; in other commands -e names an experiment."
        ),
    ],
    "total_timesteps": Annotated[
        str | None,
        typer.Option("-t", "--total-timesteps", metavar="N", help="End after N timesteps; 1e6 is understood."),
    ],
    "max_timesteps_per_episode": Annotated[
        str | None, typer.Option("--max-timesteps-per-episode", metavar="N", help="Cut episodes off after N timesteps.")
    ],
    "stop_at_return": Annotated[
        str | None,
        typer.Option(
            "--stop-at-return", metavar="X", help="End when the mean return of the last 100 episodes reaches X."
        ),
    ],
    "deterministic": Annotated[bool | None, typer.Option("-d", "--deterministic", help="Act without exploring.")],
    "repeat_actions": Annotated[
        str | None, typer.Option("--repeat-actions", metavar="N", help="Step the environment N times with each action.")
    ],
    "num_envs": Annotated[
        str | None, typer.Option("--num-envs", metavar="N", help="How many environments are stepped together.")
    ],
    "run_mode": Annotated[
        str | None,
        typer.Option(
            "-m",
            "--run-mode",
            metavar="MODE",
            autocompletion=completion.run_modes,
            help="single, multi-threaded, distributed or async: how the work is spread.",
        ),
    ],
    "num_workers": Annotated[
        str | None,
        typer.Option("-w", "--num-workers", metavar="N", help="How many workers act, in every mode but single."),
    ],
    "num_parameter_servers": Annotated[
        str | None,
        typer.Option(
            "-p", "--num-parameter-servers", metavar="N", help="How many parameter servers, in mode distributed."
        ),
    ],
    "platform": Annotated[
        str | None,
        typer.Option(
            "--platform",
            metavar="PLATFORM",
            autocompletion=completion.platforms,
            help="Where processes run: local, ray or kubernetes.",
        ),
    ],
    "address": Annotated[
        str | None,
        typer.Option(
            "--address", metavar="HOST:PORT", help="The Ray cluster to run on, with --platform ray; sets ray.address."
        ),
    ],
    "saver_frequency": Annotated[
        str | None,
        typer.Option(
            "--saver-frequency",
            metavar="HOW-OFTEN",
            help="How often a checkpoint is written: 600s, 100e or 5000t (seconds, episodes, timesteps).",
        ),
    ],
    "summary_frequency": Annotated[
        str | None,
        typer.Option("--summary-frequency", metavar="HOW-OFTEN", help="How often metrics are written: 120s or 5000t."),
    ],
    "seed": Annotated[
        str | None,
        typer.Option(
            "--seed",
            metavar="N",
            help="What all randomness follows from; without it a random one is chosen and written down.",
        ),
    ],
    "debug_logging": Annotated[bool | None, typer.Option("--debug-logging", help="Write details to log.txt.")],
}

ALLOW_MODULES = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-modules",
        metavar="NAME",
        help="Let what is loaded import these Python modules of yours; several with commas, may be repeated.",
    ),
]

SEEDS = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        metavar="N|LIST",
        help="Train several seeds side by side: how many, such as 5, or which, such as 1,2,3.",
    ),
]

HOST = Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen at; 0.0.0.0 is every one.")]
PORT = Annotated[
    int, typer.Option("--port", metavar="P", min=0, max=65535, help="Where to listen; 0 takes any that is free.")
]
TLS_CERT = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Encrypt with this certificate (PEM).")
]
TLS_KEY = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key (PEM).")]
ENVIRONMENT_SETS = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="A keyword argument of the environment; may be repeated."),
]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
QUIET = Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress and no summary.")]
STOCHASTIC = Annotated[
    bool, typer.Option("--stochastic", help="Draw actions as in training instead of taking the best.")
]


def environment_option(what: str, otherwise: str) -> Any:
    """-E of a command that plays: `what` describes it, `otherwise` the default."""
    names = "a gymnasium id, module:callable, a name in configs/environments/ or a file"
    help_text = f"{what}: {names}; without it {otherwise}."
    return Annotated[str | None, typer.Option("-E", "--environment", metavar="ENV", help=help_text)]


WHERE_IT_PLAYS = environment_option("Where it plays", "where it was trained")
WHAT_IS_PLAYED = environment_option("What is played", "what the endpoint's policy was trained in")

TEXTS = {"agent", "network", "environment", "cluster", "run_mode", "platform", "address"}
"""Flags whose values are never numbers."""

SETS = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="K=V", help="Set any field of the spec, such as agent.discount=0.97; may be repeated."
    ),
]


RESUME_SETS = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="K=V", help="Change some fields first, such as total_timesteps=2e6; may be repeated."
    ),
]
CLUSTER_SETS = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="K=V", help="Set any field of the cluster, such as location=europe-west4; may be repeated."
    ),
]


def with_experiment_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all FLAGS and --set; it receives them as `fields` (those that were given) and `sets`."""

    def receive(values: dict[str, Any]) -> dict[str, Any]:
        sets = values.pop("sets") or []
        fields = {name: _value(name, value) for name, value in values.items() if value is not None}
        _check_episodes(fields.get("episodes"))
        _check_seed(fields.get("seed"))
        if (address := fields.pop("address", None)) is not None:
            sets = [f"ray.address={json.dumps(address)}", *sets]
        return {"fields": fields, "sets": sets}

    return with_options(command, {**FLAGS, "sets": SETS}, {}, receive, ("fields", "sets"))


def with_options(
    command: Callable[..., Any],
    options: dict[str, Any],
    defaults: dict[str, Any],
    receive: Callable[[dict[str, Any]], dict[str, Any]],
    received: tuple[str, ...],
) -> Callable[..., Any]:
    """The command with more options; `receive` turns their values into its parameters `received`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name not in received]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation)
        for name, annotation in options.items()
    ]

    @functools.wraps(command)
    def wrapper(**given: Any) -> Any:
        values = {name: given.pop(name) for name in options}
        return command(**receive(values), **given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__  # type: ignore[attr-defined]
    return wrapper


def _check_episodes(given: Any) -> None:
    """Refuses a name after -e, which names an experiment in other commands."""
    if isinstance(given, str):
        raise UserError(
            f'wrong value "{given}" in --episodes; it must be a whole number (-e is short for --episodes here; in '
            "other commands it names an experiment)"
        )


def _check_seed(given: Any) -> None:
    """Refuses several seeds in --seed, with a hint to --seeds."""
    if isinstance(given, str) and re.fullmatch(r"\d+(\s*,\s*\d+)+", given):
        raise UserError(f'wrong value "{given}" in --seed, which takes one seed; for several give --seeds {given}')


def _value(name: str, given: Any) -> Any:
    """Parses numbers (1e6 and 500_000 too); the spec validates everything else."""
    if not isinstance(given, str) or name in TEXTS:
        return given
    try:
        value = json.loads(given.replace("_", ""))
    except ValueError:
        return given
    # None would mean that the flag was not given.
    return value if isinstance(value, int | float) and not isinstance(value, bool) else given
