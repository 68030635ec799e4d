"""JSON Schema of every kind of spec file, for editors and for `steppe schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from steppe.specs._base import Settings
from steppe.specs.agent import AgentSpec
from steppe.specs.cluster import ClusterSpec
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import SUB_SPECS, ExperimentSpec
from steppe.specs.frequency import Frequency
from steppe.specs.network import NetworkSpec
from steppe.specs.validation import unknown_word

KINDS: dict[str, type[BaseModel]] = {
    "experiment": ExperimentSpec,
    "environment": EnvironmentSpec,
    "agent": AgentSpec,
    "network": NetworkSpec,
    "cluster": ClusterSpec,
}
_GIVEN_OTHERWISE = {"name", "agent"}
"""What an experiment has and its file need not say: it is called like its file, and `ppo` learns."""


def schema_of(kind: str, agents: Mapping[str, type[Settings]] | None = None) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one kind of file; `agents` are the agents there are with their settings."""
    if kind not in KINDS:
        raise unknown_word("kind of spec", kind, KINDS)
    schema = KINDS[kind].model_json_schema(schema_generator=_Schema)
    if agents and kind == "agent":
        schema = _any_of(agents, schema)
    if kind == "experiment":
        if agents:
            agent = _any_of(agents, schema["$defs"]["AgentSpec"])
            schema["$defs"] |= agent.pop("$defs") | {"AgentSpec": agent}
        schema["required"] = [name for name in schema["required"] if name not in _GIVEN_OTHERWISE]
        for name in SUB_SPECS:
            schema["properties"][name] = _or_name(name, schema["properties"][name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


class _Schema(GenerateJsonSchema):
    def encode_default(self, value: Any) -> Any:
        # Pydantic would write a default out by its parts, where files write text.
        return str(value) if isinstance(value, Frequency) else super().encode_default(value)


def _any_of(agents: Mapping[str, type[Settings]], general: dict[str, Any]) -> dict[str, Any]:
    """The schema of an agent with one branch for each type, in place of the general one that takes any setting."""
    models = [(settings, "validation") for settings in agents.values()]
    places, shared = models_json_schema(models, schema_generator=_Schema)  # type: ignore[arg-type]
    definitions = shared["$defs"]
    own = {settings: place["$ref"].rpartition("/")[2] for (settings, _), place in places.items()}
    branches = []
    for name, settings in agents.items():
        inner = definitions[own[settings]]
        # TensorForce registered each agent under both spellings.
        kind = {"enum": [name, f"{name}_agent"], "description": general["properties"]["type"]["description"]}
        properties = {"type": kind} | inner.get("properties", {}) | _other_spellings(settings, inner)
        required = ["type", *inner.get("required", [])]
        branches.append({**inner, "title": name, "properties": properties, "required": required})
    return {
        "title": general["title"],
        "description": general["description"],
        "oneOf": branches,
        "$defs": {name: schema for name, schema in definitions.items() if name not in own.values()},
    }


def _other_spellings(settings: type[Settings], schema: dict[str, Any]) -> dict[str, Any]:
    """The settings again under the other names they may be written with."""
    aliases = [field.validation_alias for field in settings.model_fields.values()]
    names = [[str(name) for name in alias.choices] for alias in aliases if isinstance(alias, AliasChoices)]
    return {other: schema["properties"][first] for first, *others in names for other in others}


def _or_name(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A file may give a sub-spec by name, where the spec itself holds it inline."""
    name = {"type": "string", "description": f"The name of a file in configs/{kind}s/, or a path."}
    description = {"description": schema.pop("description")} if "description" in schema else {}
    return description | {"anyOf": [name, *schema.get("anyOf", [schema])]}
