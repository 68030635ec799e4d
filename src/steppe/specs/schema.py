"""JSON Schema of every kind of spec file, for editors and for `steppe schema`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

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


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one kind of file."""
    if kind not in KINDS:
        raise unknown_word("kind of spec", kind, KINDS)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | KINDS[kind].model_json_schema(
        schema_generator=_Schema
    )
    if kind == "experiment":
        for name in SUB_SPECS:
            schema["properties"][name] = _or_name(name, schema["properties"][name])
    return schema


class _Schema(GenerateJsonSchema):
    def encode_default(self, value: Any) -> Any:
        # Pydantic would write a default out by its parts, where files write text.
        return str(value) if isinstance(value, Frequency) else super().encode_default(value)


def _or_name(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A file may give a sub-spec by name, where the spec itself holds it inline."""
    name = {"type": "string", "description": f"The name of a file in configs/{kind}s/, or a path."}
    description = {"description": schema.pop("description")} if "description" in schema else {}
    return description | {"anyOf": [name, *schema.get("anyOf", [schema])]}
