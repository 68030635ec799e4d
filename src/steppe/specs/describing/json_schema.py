"""JSON Schema of every kind of spec file, for editors and `steppe schema`: it accepts the files that the loader
accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import models_json_schema

from steppe.specs._base import Settings
from steppe.specs.describing.docstrings import DescribedSchema
from steppe.specs.describing.spellings import Spellings, name_of
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.loading.files import EFFECTIVE
from steppe.specs.loading.inlining import SUB_SPECS
from steppe.specs.loading.validation import unknown_word
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.frequency import Frequency
from steppe.specs.serving import GraphSpec

KINDS: dict[str, type[BaseModel]] = {
    "experiment": ExperimentSpec,
    "environment": EnvironmentSpec,
    "agent": AgentSpec,
    "network": NetworkSpec,
    "cluster": ClusterSpec,
    "graph": GraphSpec,
}
Json = dict[str, Any]
_GIVEN_OTHERWISE = {"name", "agent"}
"""Required fields that a file may leave out: the name is that of the file, the agent is `ppo`."""


def schema_of(
    kind: str, agents: Mapping[str, type[Settings]] | None = None, spellings: Spellings | None = None
) -> Json:
    """The JSON Schema (draft 2020-12) of one kind of file.

    `agents` are all agents with their settings; `spellings` adds other ways to write a value.
    """
    if kind not in KINDS:
        raise unknown_word("kind of spec", kind, KINDS)
    spellings = spellings or Spellings()
    generator = type("_Schema", (_Schema,), {"spellings": spellings})
    schema = KINDS[kind].model_json_schema(schema_generator=generator)
    if kind == "agent":
        schema = _any_of(agents, schema, generator) if agents else _or_word(schema)
    if kind == "experiment":
        if agents:
            agent = _any_of(agents, schema["$defs"]["AgentSpec"], generator)
            schema["$defs"] |= agent.pop("$defs") | {"AgentSpec": agent}
        schema["required"] = [name for name in schema["required"] if name not in _GIVEN_OTHERWISE]
        for name in SUB_SPECS:
            schema["properties"][name] = _or_name(name, schema["properties"][name])
        schema["properties"]["agent"]["anyOf"].append({"type": "null"})
        schema["properties"][EFFECTIVE] = {
            "type": "object",
            "description": "What a run has noted of its settings with all defaults; nothing is trained by it.",
        }
        schema["properties"] |= spellings.fields_of_experiment(schema["properties"])
    if kind == "graph":
        # The root node may have "$schema", so its schemas are copied; nodes below refer to the definitions.
        schema["anyOf"] = [_referred(option, schema["$defs"]) for option in schema["anyOf"]]
    if kind == "network":
        schema = spellings.of_network(schema)
    elif "NetworkSpec" in (definitions := schema.get("$defs", {})):
        definitions["NetworkSpec"] = spellings.of_network(definitions["NetworkSpec"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | _naming_its_schema(schema)


class _Schema(DescribedSchema):
    spellings: ClassVar[Spellings]

    def encode_default(self, value: Any) -> Any:
        # Pydantic would write a Frequency as an object, but files write text.
        return str(value) if isinstance(value, Frequency) else super().encode_default(value)

    def model_schema(self, schema: Any) -> Json:
        model: type[BaseModel] = schema["cls"]
        return self.spellings.of_model(model, _with_aliases(model, super().model_schema(schema)))

    def function_before_schema(self, schema: Any) -> Json:
        return self.spellings.of_value(schema["function"]["function"], super().function_before_schema(schema))


def _with_aliases(model: type[BaseModel], schema: Json) -> Json:
    """Adds the fields again under their other names."""
    aliases = [field.validation_alias for field in model.model_fields.values()]
    names = [[str(name) for name in alias.choices] for alias in aliases if isinstance(alias, AliasChoices)]
    if not names or "properties" not in schema:
        return schema
    properties = schema["properties"]
    spelled = {other: properties[first] for first, *others in names for other in others if first in properties}
    required = schema.get("required", [])
    either = [{"anyOf": [{"required": [name]} for name in each]} for each in names if each[0] in required]
    rest = [name for name in required if name not in {each[0] for each in names}]
    kept = {key: value for key, value in schema.items() if key != "required"}
    return kept | {"properties": properties | spelled} | ({"required": rest} if rest else {}) | _all_of(either)


def _all_of(rules: list[Json]) -> Json:
    return {"allOf": rules} if len(rules) > 1 else rules[0] if rules else {}


def _any_of(agents: Mapping[str, type[Settings]], general: Json, generator: type[_Schema]) -> Json:
    """The schema of an agent with one branch for each type, in place of the general one that takes any setting."""
    models = [(settings, "validation") for settings in agents.values()]
    places, shared = models_json_schema(models, schema_generator=generator)  # type: ignore[arg-type]
    definitions = shared["$defs"]
    own = {settings: place["$ref"].rpartition("/")[2] for (settings, _), place in places.items()}
    branches = []
    for name, settings in agents.items():
        inner = definitions[own[settings]]
        kind = {"description": general["properties"]["type"]["description"]} | generator.spellings.name_of_agent(name)
        properties = {"type": kind} | generator.spellings.of_agent(name, settings, inner.get("properties", {}))
        required = ["type", *inner.get("required", [])]
        branches.append(_naming_its_schema({**inner, "title": name, "properties": properties, "required": required}))
    complete = [name for name, settings in agents.items() if not definitions[own[settings]].get("required")]
    words = {
        "title": "an agent with its defaults",
        "anyOf": [generator.spellings.name_of_agent(name) for name in complete],
    }
    return {
        "title": general["title"],
        "description": general["description"],
        "oneOf": [*branches, words],
        "$defs": {name: schema for name, schema in definitions.items() if name not in own.values()},
    }


def _or_word(schema: Json) -> Json:
    description = {"description": schema.pop("description")}
    return description | {"anyOf": [{"type": "string", "minLength": 1}, schema]}


def _or_name(kind: str, schema: Json) -> Json:
    """A sub-spec, or the name of its file."""
    name = name_of(kind)
    description = {"description": schema.pop("description")} if "description" in schema else {}
    return description | {"anyOf": [name, *schema.get("anyOf", [schema])]}


def _referred(schema: Json, definitions: Json) -> Json:
    """The schema that a reference refers to; any other schema is returned as it is."""
    return definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _naming_its_schema(schema: Json) -> Json:
    """Allows "$schema", which editors read, in the objects at the top of a file."""
    if "anyOf" in schema:
        schema = schema | {"anyOf": [_naming_its_schema(option) for option in schema["anyOf"]]}
    if "properties" in schema:
        schema = schema | {"properties": schema["properties"] | {"$schema": {"type": "string"}}}
    return schema
