"""Short and old ways to write things, as JSON Schema: what validators that run before a field's own turn into it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

from pydantic import BaseModel

from steppe.specs import environment, serving
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.learning import baseline, layer_options, optimizer, preprocessing
from steppe.specs.learning.baseline import NetworkBaseline
from steppe.specs.learning.preprocessing import PreprocessingSpec, RewardPreprocessingSpec
from steppe.specs.running.connections import CONNECTIONS, Ue4Settings
from steppe.tensorforce import environment_names
from steppe.tensorforce.vocabulary import RATE

Json = dict[str, Any]

_RATE: Json = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, RATE, {"type": "null"}]}
_NULL: Json = {"type": "null"}
_POLICY: Json = {
    "type": "string",
    "minLength": 1,
    "description": "A policy: an experiment's name, or the path of a run folder or a policy folder.",
}


def of_model(model: type[BaseModel], schema: Json) -> Json:
    """The schema of a model, and of what else it is written as."""
    properties: Json = schema.get("properties", {})
    if model in _members(optimizer.OptimizerSpec):
        old = optimizer._OLD_OPTIONS.get(model.model_fields["type"].default, {})
        options = {name: {"enum": [harmless, None]} for name, harmless in old.items()}
        schema = schema | {"properties": properties | options | {"learning_rate": _RATE}}
    if "priority_exponent" in properties:
        options = {name: {"anyOf": [option, _NULL]} for name, option in properties.items()}
        schema = schema | {"properties": options | _old_memory(options)}
    if model in (PreprocessingSpec, RewardPreprocessingSpec):
        return _stages(schema, keyed=model is PreprocessingSpec)
    if model is EnvironmentSpec:
        return _environment(schema)
    if model is NetworkBaseline:
        layers = {"anyOf": [name_of("network"), properties["network"]]}
        return schema | {"properties": properties | {"network": layers}}
    if model in _members(serving.BanditSpec):
        return _bandit(schema, model.model_fields["type"].default)
    if model in _members(serving.Node):
        return _node(schema, model)
    kind = model.model_fields.get("type")
    if kind is not None and not kind.is_required() and get_args(kind.annotation):
        return _or_word(schema, get_args(kind.annotation))
    return schema


def of_value(validator: Any, schema: Json) -> Json:
    """The schema of a value, and of what else `validator` turns into it."""
    return _BEFORE[validator](schema) if validator in _BEFORE else schema


def or_wrapped(network: Json) -> Json:
    """A network's schema that also takes `{"layers": [...]}`: TOML has no list at the top of a file."""
    layers = {name: value for name, value in network.items() if name not in ("$defs", "title", "description")}
    properties = {"type": {"const": "layered"}, "layers": layers, "layers_spec": layers}
    return network | _object(properties, ("layers", "layers_spec")) | {"type": ["array", "object"]}


def name_of(kind: str) -> Json:
    """A part given by the name of the file that holds it."""
    return {"type": "string", "description": f"The name of a file in configs/{kind}s/, or a path."}


def _old_memory(options: Json) -> Json:
    return {
        "prioritization_weight": options["priority_exponent"],
        "random_sampling": {"enum": [True, None]},
        "prioritization_constant": {"enum": [0, None]},
        "buffer_size": {},
    }


def _members(union: Any) -> tuple[type[BaseModel], ...]:
    """The models between which a field called type or kind decides."""
    return get_args(get_args(union)[0])


def _or_word(schema: Json, words: tuple[str, ...]) -> Json:
    """An object of which nothing but its type need be said may be that word alone."""
    if set(schema.get("required", [])) - {"type"}:
        return schema
    return {"anyOf": [{"enum": list(words)}, schema]}


def _stages(schema: Json, keyed: bool) -> Json:
    """One stage for a list of one, words for stages without options, and stages by the name of the one state."""
    stage = schema.pop("items")
    simple = {"enum": [tag for member in _simple_stages() for tag in get_args(member.model_fields["type"].annotation)]}
    stage = {"anyOf": [simple, stage]}
    listed = {"anyOf": [stage, {"type": "array", "items": stage}]}
    state = {"type": "object", "properties": {"state": listed}, "required": ["state"], "additionalProperties": False}
    outer = {name: schema[name] for name in ("title", "description") if name in schema}
    return outer | {"anyOf": [*listed["anyOf"], *([state] if keyed else [])]}


def _simple_stages() -> list[type[BaseModel]]:
    return [
        stage
        for stage in _members(preprocessing.Stage)
        if not any(field.is_required() for name, field in stage.model_fields.items() if name != "type")
    ]


def _also(**other: str) -> Callable[[Json], Json]:
    """Words with other spellings, each for the one that it means."""

    def widened(schema: Json) -> Json:
        known = schema["enum"]
        return schema | {"enum": [*known, *(word for word, meant in other.items() if meant in known)]}

    return widened


def _or_named(schema: Json) -> Json:
    words = _also(**layer_options.OTHER_SPELLINGS)(schema)
    named = {"type": "object", "properties": {"name": words}, "required": ["name"], "additionalProperties": False}
    return {"anyOf": [words, named, {"type": "null"}]}


def _or_pair(_: Json) -> Json:
    size = {"type": "integer", "minimum": 1}
    return {"anyOf": [size, {"type": "array", "items": size, "minItems": 2, "maxItems": 2}]}


def _wrapper(_: Json) -> Json:
    path = {"type": "string", "minLength": 1}
    return {"anyOf": [path, {"type": "object", "properties": {"type": path}, "required": ["type"]}]}


def _or_keyed(schema: Json) -> Json:
    """A baseline by the name of the one state."""
    keyed = {"type": "object", "additionalProperties": schema, "not": {"required": ["type"]}}
    return {"anyOf": [schema, keyed | {"minProperties": 1, "maxProperties": 1}]}


def _bandit(schema: Json, name: str) -> Json:
    """The word alone, where it needs no settings; in upper or lower case, and with - for _."""
    word = {"type": "string", "pattern": f"^{''.join(_in_any_case(char) for char in name)}$"}
    kind = {"description": "Which bandit.", "anyOf": [{"const": name}, word]}
    whole = schema | {"properties": schema["properties"] | {"type": kind}, "required": ["type"]}
    return {"anyOf": [{"const": name}, word, whole]}


def _in_any_case(char: str) -> str:
    return f"[{char}{char.upper()}]" if char.isalpha() else "[-_]" if char == "_" else char


def _node(schema: Json, model: type[BaseModel]) -> Json:
    """A node of a graph, which only where it has a policy need not say what kind it is."""
    properties = dict(schema["properties"])
    properties["name"] = properties["name"] | {"pattern": f"^{serving.NAME.pattern}$", "not": {"pattern": r"\.\."}}
    if model is serving.ModelSpec:
        # It follows from the policy.
        properties["name"].pop("default")
    if model is serving.AbTestSpec:
        weights = properties["weights"]["anyOf"][0] | {"minItems": 2, "contains": {"exclusiveMinimum": 0}}
        properties["weights"] = properties["weights"] | {"anyOf": [weights, _NULL]}
    required = [*([] if model is serving.ModelSpec else ["kind"]), *schema["required"]]
    return schema | {"properties": properties, "required": required}


def _or_policy(schema: Json) -> Json:
    """A node of a graph, or the text that names its policy."""
    outer = {name: schema[name] for name in ("title", "description") if name in schema}
    return outer | {"anyOf": [_POLICY, *schema.get("oneOf", [schema])]}


_BEFORE: dict[Any, Callable[[Json], Json]] = {
    baseline._one_state: lambda schema: schema | {"maxProperties": 1},
    baseline._understood: _or_keyed,
    environment._with_type: _wrapper,
    layer_options.named_activation: _or_named,
    layer_options.listed_names: lambda schema: {"anyOf": [{"type": "string"}, schema]},
    layer_options.one_or_two: _or_pair,
    layer_options.usual_spelling: _also(**layer_options.OTHER_SPELLINGS),
    preprocessing._on_last_axis: lambda schema: {"anyOf": [schema, {"const": -1}]},
    serving._understood_node: _or_policy,
}
"""Validator -> what it makes of the schema of what it turns values into."""


_TEXT: Json = {"type": "string", "minLength": 1}
_ANY: Json = {}
_ALE = (
    *("rom", "level", "seed", "frame_skip", "repeat_action_probability", "loss_of_life_termination"),
    *("life_loss_terminal", "loss_of_life_reward", "life_loss_punishment", "display_screen", "watch", "visualize"),
)
_OLD_ENVIRONMENTS: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("openaigym", "gym"): (("gym_id", "level", "visualize", *environment_names._MONITOR), ("gym_id", "level", "id")),
    ("ale", "arcadelearningenvironment"): (_ALE, ("rom", "level")),
    ("minimaltest",): (("specification",), ()),
}
"""Old names of environments -> the words they take beside today's, and those of which one is required."""
_OLD_CONNECTIONS = {"remote": ("remoteenvironment",), "ue4": ("ue4environment", "unrealengine")}


def _environment(schema: Json) -> Json:
    """A name alone, today's fields, the fields of a connection in one place or the other, and old files."""
    own = {name: value for name, value in schema["properties"].items() if name != "id"}
    words = [word for words in (*_OLD_ENVIRONMENTS, *_OLD_CONNECTIONS.values()) for word in words]
    is_known = _pattern(*words, *CONNECTIONS, *environment_names._GONE)
    id = schema["properties"]["id"] | {"not": {"anyOf": [{"pattern": is_known}, {"pattern": r"^tensorforce\."}]}}
    branches = [
        _object({"id": id, "type": id, "gym_id": _TEXT, **own}, ("id", "gym_id", "type")),
        *(
            _object({"type": _named(*names), "id": _TEXT, **dict.fromkeys(more, _ANY), **own}, either, ("type",))
            for names, (more, either) in _OLD_ENVIRONMENTS.items()
        ),
        *(_connection(name, own) for name in CONNECTIONS),
    ]
    outer = {name: schema[name] for name in ("title", "description") if name in schema}
    return outer | {"anyOf": [_TEXT, *branches]}


def _connection(name: str, own: Json) -> Json:
    settings = CONNECTIONS[name]
    options = dict.fromkeys((*settings.model_fields, "host", "port"), _ANY)
    if settings is Ue4Settings:
        options |= dict.fromkeys(("discretize_actions", "image", "remote", "connect"), _ANY)
    named = _named(name, *_OLD_CONNECTIONS[name])
    inside = {"settings": {"type": "object", "properties": options, "additionalProperties": False}}
    return _object({"id": named, "type": named, **options, **own, **inside}, ("id", "type"))


def _object(properties: Json, either: tuple[str, ...], required: tuple[str, ...] = ()) -> Json:
    """An object with no other fields, of which `required` and one of `either` must be given."""
    rule = {"anyOf": [{"required": [*required, name]} for name in either]} if either else {"required": list(required)}
    return {"type": "object", "properties": properties, "additionalProperties": False} | rule


def _named(*names: str) -> Json:
    return {"type": "string", "pattern": _pattern(*names)}


def _pattern(*names: str) -> str:
    """Old names as files wrote them: in upper or lower case, with or without separators and TensorForce's modules."""
    spelled = [
        "[-_ ]*".join(f"[{char}{char.upper()}]" if char.isalpha() else re.escape(char) for char in name)
        for name in names
    ]
    return rf"^(tensorforce.*\.)?({'|'.join(spelled)})$"
