"""Writes docs/fields.md from the models that check the files: `python docs/generate_fields.py`."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from steppe import agents
from steppe.envs.registry import TWINS
from steppe.specs.agent import AgentSpec
from steppe.specs.cluster import ClusterSpec
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import DEFAULT_AGENT, EvaluationSpec, ExperimentSpec
from steppe.specs.frequency import Frequency
from steppe.specs.network import Activation, Layer

PAGE = Path(__file__).with_name("fields.md")

INTRODUCTION = """\
# Every field

This page is made from the code that checks the files (`python docs/generate_fields.py`), so it is never out of date.
The same is told by `steppe schema experiment`, `steppe agents NAME` and `steppe layers`.
[Experiment files](experiment-files.md) says where fields are written and how a file is found.

`null` means "not given". A whole number may be written `1e6`. A **frequency** is `"600s"` (seconds), `"100e"`
(episodes) or `"5000t"` (timesteps); a bare number means seconds.
"""

NOTES = {
    "Experiment": """\
A file that gives no name is called like the file. `environment` and `agent` may be plain names, and every sub-spec may
be the name of another file.

Limits are looked at between iterations. One iteration is the agent's horizon times `num_envs` timesteps, so a run may
end a little above `total_timesteps` or `episodes`. A timestep is one decision of the agent in one environment: with
`repeat_actions` 4 the environment itself makes four steps in it.

`run_mode`, `num_workers`, `num_parameter_servers`, `platform` and `cluster` are part of the file format; this version
trains in run mode `single` on platform `local` and refuses to start the others.
""",
    "Environment": "See [environments](environments.md).\n",
    "Agent": """\
An agent is written as its name, `"ppo"`, or as an object with `type` and any of the settings below. A name that ends in
`_agent`, such as `"ppo_agent"`, means the same agent. `num_envs` is a field of the experiment; each agent has its own
default for it.
""",
    "Network": """\
A network is a list of layers, first to last. The agent adds its own output layer. Without a network an agent takes two
dense layers of 64 with tanh; for images of at least 36 pixels the three convolutions of Mnih et al. 2015 and a dense
layer of 512, and for smaller images two convolutions and a dense layer of 256.
""",
    "Cluster": "Read and checked, but not used by this version, which trains on one machine.\n",
}


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION]
    parts += _section("Experiment", ExperimentSpec)
    parts += _section("Evaluation", EvaluationSpec, level=3)
    parts += _section("Environment", EnvironmentSpec)
    for twin in _twins():
        parts += [f"### Settings of {twin.id}\n", f"{_sentence(twin)}\n", _table(twin)]
    parts += [f"## Agent\n\n{NOTES['Agent']}"]
    for name in agents.names():
        algorithm = agents.agent_class(AgentSpec(type=name))
        parts.append(f"### {name}\n\n{_sentence(algorithm)} By default {_environments(algorithm.default_num_envs)}.\n")
        parts.append(_table(algorithm.Settings))
    parts.append(f"## Network\n\n{NOTES['Network']}")
    for layer in get_args(get_args(Layer)[0]):
        parts.append(f"### {get_args(layer.model_fields['type'].annotation)[0]}\n\n{_sentence(layer)}\n")
        parts.append(_table(layer, without=("type",)))
    names = ", ".join(f"`{name}`" for name in get_args(Activation))
    parts.append(f"### Activations\n\n{names}; `lrelu` means `leaky_relu`.\n")
    parts += _section("Cluster", ClusterSpec)
    return "\n".join(part for part in parts if part)


def _section(title: str, model: type[BaseModel], level: int = 2) -> list[str]:
    return [f"{'#' * level} {title}\n", NOTES.get(title, ""), _table(model)]


def _twins() -> Iterator[Any]:
    for module, name in TWINS.values():
        yield getattr(import_module(f"steppe.envs.{module}"), name)


def _environments(count: int) -> str:
    return f"{count} environment{'' if count == 1 else 's'}"


def _table(model: type[BaseModel], without: tuple[str, ...] = ()) -> str:
    rows = [row for row in _rows(model) if row[0] not in without]
    if not rows:
        return ""
    lines = ["| field | type | default | what it does |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {default} | {sentence} |" for name, kind, default, sentence in rows]
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, sentence); those of a group of settings follow it as group.name."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and _is_plain_group(field):
            yield from _rows(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _type(inner, field.metadata), _default(field), _described(field)


def _is_plain_group(field: FieldInfo) -> bool:
    """Whether a field is a group of settings with defaults, rather than a part of the file of its own."""
    return not field.is_required()


def _default(field: FieldInfo) -> str:
    if field.annotation is AgentSpec:
        return f'`"{DEFAULT_AGENT}"`'
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return f"`{json.dumps(value, default=str)}`"


def _described(field: FieldInfo) -> str:
    sentence = " ".join((field.description or "").split())
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        others = [f"`{choice}`" for choice in alias.choices[1:]]
        sentence += f" Also spelled {', '.join(others)}."
    return sentence.replace("|", "\\|")


def _type(annotation: Any, metadata: Any = ()) -> str:
    """A type in the words of a JSON file, with its bounds."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _type(inner, [bound for each in more for bound in getattr(each, "metadata", [each])])
    if annotation == Activation:
        return "[activation](#activations)"
    if origin is Literal:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(_type(option, metadata) for option in get_args(annotation))
    if origin is list:
        return f"list of {_type(get_args(annotation)[0])}s"
    if origin is tuple:
        members = get_args(annotation)
        return "list of [row, column]" if members[-1] is Ellipsis else "[row, column]"
    if annotation in (int, float):
        return ("whole number" if annotation is int else "number") + _bounds(metadata)
    if annotation is Frequency:
        return "frequency"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.__name__.removesuffix("Spec").lower()
        return f"[{kind}](#{kind})"
    return {bool: "`true` or `false`", str: "text", type(None): "`null`"}.get(annotation, "object")


def _bounds(metadata: Any) -> str:
    words = {Ge: "from", Gt: "above", Le: "to", Lt: "below"}
    found = [
        f" {word} {getattr(bound, kind.__name__.lower()):g}"
        for kind, word in words.items()
        for bound in metadata
        if isinstance(bound, kind)
    ]
    return "".join(found)


def _sentence(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


if __name__ == "__main__":
    main()
