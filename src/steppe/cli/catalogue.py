"""What there is: agents, environments, layers, and the schema of every file."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

JSON = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]


def agents(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="An agent whose settings are shown.")] = None,
    as_json: JSON = False,
) -> None:
    """List the agents, or one agent's settings."""
    from steppe import agents
    from steppe.cli.console import console, print_json, table
    from steppe.specs.agent import AgentSpec
    from steppe.specs.validation import unknown_word

    if name is None:
        sentences = {name: _described(agents.agent_class(AgentSpec(type=name))) for name in agents.names()}
        if as_json:
            print_json(sentences)
            return
        listing = table("AGENT", "WHAT IT DOES")
        for agent, sentence in sentences.items():
            listing.add_row(agent, sentence)
        console().print(listing)
        console().print("one agent's settings: steppe agents ppo")
        return
    if name.removesuffix("_agent") not in agents.names():
        raise unknown_word("agent", name, agents.names(), listed_by="steppe agents")
    settings = agents.settings_class(name)
    if as_json:
        print_json(settings.model_json_schema())
        return
    console().print(f"settings of {name}, each given in the agent's file or by --set agent.NAME=VALUE", markup=False)
    console().print(_settings_table(settings))


def environments(
    every: Annotated[bool, typer.Option("--all", help="List every id that gymnasium knows here, too.")] = False,
    as_json: JSON = False,
) -> None:
    """List the environments there are."""
    from steppe.cli.console import console, print_json, table
    from steppe.envs import registry

    ids = dict.fromkeys(registry.known_ids(), "compiled")
    if every:
        import gymnasium

        ids |= {name: "gymnasium" for name in sorted(gymnasium.registry) if name not in ids}
    if as_json:
        print_json(ids)
        return
    listing = table("ENVIRONMENT", "BACKEND")
    for name, backend in ids.items():
        listing.add_row(name, backend)
    console().print(listing)
    if not every:
        console().print("also any gymnasium id (steppe environments --all) and your own, as module:callable")


def layers(as_json: JSON = False) -> None:
    """List the layers a network is made of."""
    from typing import get_args

    from steppe.cli.console import console, print_json
    from steppe.specs.network import Layer

    kinds = get_args(get_args(Layer)[0])
    if as_json:
        print_json({_type(kind): kind.model_json_schema() for kind in kinds})
        return
    out = console()
    for kind in kinds:
        out.print(f"{_type(kind)}: {_sentence(kind)}", markup=False, style="bold")
        if len(kind.model_fields) > 1:
            out.print(_settings_table(kind))


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="experiment, environment, agent, network or cluster.")],
) -> None:
    """Print the JSON Schema of one kind of file."""
    from steppe import agents
    from steppe.cli.console import print_json
    from steppe.specs.schema import schema_of

    # Only for these two: an agent's settings come with its module, and that with JAX.
    names = agents.names() if kind in ("agent", "experiment") else []
    print_json(schema_of(kind, {name: agents.settings_class(name) for name in names}))


def _settings_table(settings: type[BaseModel]) -> Any:
    from steppe.cli.console import table

    listing = table("  SETTING", "TYPE", "DEFAULT", "WHAT IT DOES")
    for name, kind, default, sentence in _rows(settings):
        listing.add_row(f"  {name}", kind, default, sentence)
    return listing


def _rows(settings: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """(name, type, default, sentence) of every setting; those of a group follow it as group.name."""
    from pydantic import BaseModel
    from rich.markup import escape

    rows = []
    for name, field in settings.model_fields.items():
        if name == "type" and not prefix:
            continue
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows += _rows(inner, f"{prefix}{name}.")
            continue
        default = (
            "required" if field.is_required() else json.dumps(field.get_default(call_default_factory=True), default=str)
        )
        rows.append((f"{prefix}{name}", escape(_type_name(inner)), escape(default), escape(field.description or "")))
    return rows


def _type_name(annotation: Any) -> str:
    """A type in the words of a JSON file."""
    from types import UnionType
    from typing import Annotated, Literal, Union, get_args, get_origin

    origin = get_origin(annotation)
    if origin is Literal:
        return " | ".join(json.dumps(choice) for choice in get_args(annotation))
    if origin in (Union, UnionType):
        return " | ".join(_type_name(option) for option in get_args(annotation))
    if origin is Annotated:
        return _type_name(get_args(annotation)[0])
    if origin in (list, tuple):
        return "list"
    names = {
        int: "whole number",
        float: "number",
        bool: "true | false",
        str: "text",
        type(None): "null",
        dict: "object",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _type(kind: type[BaseModel]) -> str:
    from typing import get_args

    return str(get_args(kind.model_fields["type"].annotation)[0])


def _described(agent: type) -> str:
    """An agent's sentence after its algorithm's full name, with which an algorithm's module begins: `Name (paper)`."""
    first = (sys.modules[agent.__module__].__doc__ or "").partition("\n")[0]
    name, paper, _ = first.partition(" (")
    sentence = _sentence(agent)
    return f"{name}: {sentence[:1].lower()}{sentence[1:]}" if paper else sentence


def _sentence(thing: type) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]
