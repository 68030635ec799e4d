"""The commands that list agents, environments and layers, and print the schema of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.input import completion
from steppe.cli.input.flags import AS_JSON

if TYPE_CHECKING:
    from pydantic import BaseModel

    from steppe.specs.describing.field_rows import Members


FULL_NAMES = {
    "vpg": "Vanilla policy gradient",
    "a2c": "Advantage actor-critic",
    "a3c": "Asynchronous advantage actor-critic",
    "ppo": "Proximal policy optimisation",
    "trpo": "Trust-region policy optimisation",
    "impala": "Importance-weighted actor-learner architecture",
    "dqn": "Deep Q-learning",
    "ddqn": "Double deep Q-learning",
    "dqn_nstep": "N-step deep Q-learning",
    "dqfd": "Deep Q-learning from demonstrations",
    "qr_dqn": "Quantile-regression deep Q-learning",
    "pqn": "Parallelised Q-learning",
    "ddpg": "Deep deterministic policy gradient",
    "td3": "Twin delayed deterministic policy gradient",
    "sac": "Soft actor-critic",
    "naf": "Normalised advantage functions",
}
"""The full names of agents that are abbreviations."""
_SENTENCES = {
    "a2c": "vanilla policy gradient with short rollouts and one RMSProp step for each.",
    "a3c": "the same as a2c; only run_mode can make it asynchronous.",
    "ddqn": "dqn with double and single rewards (n_step 1).",
    "dqn_nstep": "dqn with sums of five rewards (n_step 5).",
    "dqfd": "dqn that begins with what a demonstrator did, and never forgets it.",
    "qr_dqn": "dqn that learns the whole distribution of returns, by its quantiles.",
}
"""Sentences of agents that are variants of others."""


def agents(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An agent whose settings are shown.", autocompletion=completion.agents),
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """List the agents, or one agent's settings."""
    from steppe import agents
    from steppe.display.console import console, print_json, table
    from steppe.specs.describing import field_rows
    from steppe.specs.describing.docstrings import DescribedSchema
    from steppe.specs.learning import defaults_by_kind
    from steppe.specs.loading.validation import unknown_word
    from steppe.tensorforce import vocabulary

    out = console()
    if name is None:
        sentences = {name: agent_sentence(name) for name in agents.names()}
        if as_json:
            print_json(sentences)
            return
        listing = table("AGENT", "WHAT IT DOES")
        for agent, sentence in sentences.items():
            listing.add_row(agent, sentence)
        out.print(listing)
        out.print("one agent's settings: steppe agents ppo")
        return
    plain = name.removesuffix("_agent")
    if plain not in agents.names():
        raise unknown_word("agent", name, agents.names(), listed_by="steppe agents")
    settings = agents.settings_class(plain)
    if as_json:
        print_json(settings.model_json_schema(schema_generator=DescribedSchema))
        return
    out.print(f"{plain}: {agent_sentence(plain)}", markup=False, style="bold")
    out.print("its settings, each given in the agent's file or by --set agent.NAME=VALUE", markup=False)
    out.print(_settings_table(settings, vocabulary.spelled(settings)))
    for sentence in defaults_by_kind.sentences(plain):
        out.print(sentence, markup=False)
    for kind, members in field_rows.kinds(settings).items():
        if kind != "layer":
            out.print()
            out.print(_kind_table(kind, _taken(settings, members) if kind == "optimizer" else members))


def environments(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="An environment whose settings are shown.", autocompletion=completion.environments
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every id that gymnasium knows here, too.")] = False,
    as_json: AS_JSON = False,
) -> None:
    """List the environments, or one environment's settings."""
    from steppe.display.console import console, print_json, table
    from steppe.envs import registry

    if name is not None:
        _environment(name, as_json)
        return
    entries = registry.catalogue(every)
    if as_json:
        print_json({entry.id: {"kind": entry.kind, "sentence": entry.sentence} for entry in entries})
        return
    listing = table("ENVIRONMENT", "KIND", "WHAT IT IS")
    for entry in entries:
        listing.add_row(*_plain(entry.id, entry.kind, entry.sentence))
    out = console()
    out.print(listing)
    out.print("one environment's settings: steppe environments CartPole-v1")
    if not every:
        out.print("also any gymnasium id (steppe environments --all) and your own, as module:callable")


def layers(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The one layer to show.")] = None,
    as_json: AS_JSON = False,
) -> None:
    """List the layers of networks, or one layer's settings."""
    from typing import get_args

    from steppe.display.console import console, print_json
    from steppe.specs.describing import field_rows
    from steppe.specs.describing.docstrings import DescribedSchema
    from steppe.specs.learning.layer_options import Activation
    from steppe.specs.learning.network import Layer
    from steppe.specs.loading.validation import unknown_word

    kinds = field_rows.members(Layer)
    if name is not None:
        if name not in kinds:
            raise unknown_word("layer", name, kinds, listed_by="steppe layers")
        kinds = {name: kinds[name]}
    if as_json:
        schemas = {kind: layer.model_json_schema(schema_generator=DescribedSchema) for kind, layer in kinds.items()}
        print_json(schemas if name is None else schemas[name])
        return
    out = console()
    for kind, layer in kinds.items():
        out.print(f"{kind}: {field_rows.sentence(layer)}", markup=False, style="bold")
        if field_rows.rows(layer, without_type=True):
            out.print(_settings_table(layer))
    if name is None or any(row.plain_type == "activation" for row in field_rows.rows(kinds[name])):
        out.print("activations", markup=False, style="bold")
        out.print("  " + ", ".join(get_args(Activation)), markup=False)


def schema(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="experiment, environment, agent, network, cluster or graph.",
            autocompletion=completion.kinds,
        ),
    ],
) -> None:
    """Print the JSON Schema of one kind of file."""
    from steppe.display.console import print_json

    print_json(full_schema(kind))


def full_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of file, with every agent's settings."""
    from steppe import agents
    from steppe.specs.describing.json_schema import schema_of
    from steppe.tensorforce.vocabulary import OldSpellings

    # Only these two kinds need the modules of agents, which import JAX.
    names = agents.names() if kind in ("agent", "experiment") else []
    return schema_of(kind, {name: agents.settings_class(name) for name in names}, OldSpellings())


def agent_sentence(name: str) -> str:
    """The full name of an agent's algorithm, and a sentence on it."""
    from steppe import agents

    does = _SENTENCES.get(name) or agents.sentence(name)
    if name not in FULL_NAMES:
        return does
    is_word = does[1:2].isspace() or does[1:2].islower()
    return f"{FULL_NAMES[name]}: {does[:1].lower() if is_word else does[:1]}{does[1:]}"


def _environment(name: str, as_json: bool) -> None:
    from steppe.display.console import console, print_json, table
    from steppe.envs import registry
    from steppe.spec_files import read_environment
    from steppe.specs.running.connections import CONNECTIONS

    # An environment behind a connection cannot be read without its required settings.
    spec = read_environment(name) if name not in CONNECTIONS else None
    id, notices = (spec.id, spec.notices) if spec is not None else (name, ())
    settings = registry.settings_of(id)
    if as_json:
        print_json({each.name: {"default": _json(each.default), "sentence": each.sentence} for each in settings})
        return
    out = console()
    for notice in notices:
        out.print(notice, markup=False)
    out.print(f"settings of {id}, each given by --set environment.settings.NAME=VALUE", markup=False)
    listing = table("  SETTING", "DEFAULT", "WHAT IT DOES")
    for each in settings:
        default = each.default if each.default == "required" else json.dumps(_json(each.default))
        listing.add_row(*_plain(f"  {each.name}", default, each.sentence))
    out.print(listing)


def _json(value: Any) -> Any:
    """A default as JSON; values that JSON cannot hold become text."""
    return json.loads(json.dumps(value, default=str))


def _settings_table(settings: type[BaseModel], spelled: Mapping[str, list[str]] | None = None) -> Any:
    from steppe.display.console import table
    from steppe.specs.describing import field_rows

    listing = table("  SETTING", "TYPE", "DEFAULT", "WHAT IT DOES", drop=("TYPE",))
    for row in field_rows.rows(settings, without_type=True, spelled=spelled):
        listing.add_row(*_plain(f"  {row.name}", row.plain_type, row.default, row.sentence))
    return listing


def _taken(settings: type[BaseModel], members: Members) -> Members:
    """The optimizers that an agent's validators accept."""
    from pydantic import ValidationError

    fields = settings.model_fields
    required = {name: "x" for name, field in fields.items() if field.is_required()}
    apart = {"baseline_optimizer": "adam"} if "baseline_optimizer" in fields else {}
    names = [name for name in ("optimizer", "baseline_optimizer") if name in fields and not fields[name].exclude]

    def takes(name: str, member: type[BaseModel]) -> bool:
        options = {"type": member.model_fields["type"].default}
        options |= {"optimizer": "adam"} if "optimizer" in member.model_fields else {}
        options |= {"clipping_value": 1.0} if "clipping_value" in member.model_fields else {}
        try:
            settings.model_validate(required | apart | {name: options})
        except ValidationError:
            return False
        return True

    return {tag: member for tag, member in members.items() if any(takes(name, member) for name in names)}


def _kind_table(kind: str, members: Members) -> Any:
    """Each type of one kind of object, with its options and their defaults."""
    from steppe.display.console import table
    from steppe.specs.describing import field_rows

    listing = table(f"  {kind.upper()}", "OPTIONS", "WHAT IT DOES")
    for member in members.values():
        options = [f"{row.name} {row.default}" for row in field_rows.rows(member, without_type=True)]
        types = " or ".join(f'"{tag}"' for tag in field_rows.tags(member))
        listing.add_row(*_plain(f"  {types}", ", ".join(options), field_rows.sentence(member)))
    return listing


def _plain(*cells: str) -> list[str]:
    """Cells whose brackets are not Rich's markup."""
    from rich.markup import escape

    return [escape(cell) for cell in cells]
