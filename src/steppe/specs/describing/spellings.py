"""Other ways to write a value, as JSON Schema: those that validators convert before they check the value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from steppe.specs import environment, serving
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.learning import baseline, layer_options, preprocessing
from steppe.specs.learning.agent import DEFAULTS
from steppe.specs.learning.agent_settings import COMPLETED
from steppe.specs.learning.baseline import NetworkBaseline
from steppe.specs.learning.preprocessing import PreprocessingSpec, RewardPreprocessingSpec
from steppe.specs.running.connections import CONNECTIONS, Ue4Settings

Json = dict[str, Any]

NULL: Json = {"type": "null"}
TEXT: Json = {"type": "string", "minLength": 1}
WITHOUT_TYPE: Json = {"not": {"required": ["type"]}}
_POLICY: Json = {
    "type": "string",
    "minLength": 1,
    "description": "A policy: an experiment's name, or the path of a run folder or a policy folder.",
}


class Spellings:
    """Today's ways to write a value; a front end for other files adds its own."""

    def of_model(self, model: type[BaseModel], schema: Json) -> Json:
        """A model's schema with the other ways to write it."""
        properties: Json = schema.get("properties", {})
        if model in (PreprocessingSpec, RewardPreprocessingSpec):
            return _stages(schema)
        if model is EnvironmentSpec:
            return self.of_environment(schema)
        if model is NetworkBaseline:
            layers = either(name_of("network"), properties["network"])
            return schema | {"properties": properties | {"network": layers}}
        if model in members(serving.BanditSpec):
            return _bandit(schema, model.model_fields["type"].default)
        if model in members(serving.Node):
            return _node(schema, model)
        kind = model.model_fields.get("type")
        if kind is not None and not kind.is_required() and get_args(kind.annotation):
            return _or_word(schema, get_args(kind.annotation))
        return schema

    def of_value(self, validator: Any, schema: Json) -> Json:
        """A value's schema with the other forms that `validator` converts."""
        return _BEFORE[validator](schema) if validator in _BEFORE else schema

    def of_network(self, network: Json) -> Json:
        """A network, or `{"layers": [...]}`: TOML has no list at the top of a file."""
        layers = {name: value for name, value in network.items() if name not in ("$defs", "title", "description")}
        return network | json_object({"layers": layers}, ("layers",)) | {"type": ["array", "object"]}

    def of_environment(self, schema: Json) -> Json:
        """A name alone, today's fields, or the fields of a connection beside `type` or in `settings`."""
        own = {name: value for name, value in schema["properties"].items() if name != "id"}
        id = schema["properties"]["id"] | {"not": {"enum": list(CONNECTIONS)}}
        branches = [
            json_object({"id": id, "type": id, "gym_id": TEXT, **own}, ("id", "gym_id", "type")),
            *(self.connection(name, {"const": name}, own) for name in CONNECTIONS),
        ]
        return outside(schema) | {"anyOf": [TEXT, *branches]}

    def connection(self, name: str, named: Json, own: Json, more: Iterable[str] = ()) -> Json:
        """An environment of a type such as `remote`, with its own options beside it or in its settings."""
        settings = CONNECTIONS[name]
        options: Json = {name: {} for name in (*settings.model_fields, "host", "port", *more)}
        if settings is Ue4Settings:
            options["discretize_actions"] = {}
        inside = {"settings": {"type": "object", "properties": options, "additionalProperties": False}}
        return json_object({"id": named, "type": named, **options, **own, **inside}, ("id", "type"))

    def name_of_agent(self, agent: str) -> Json:
        """The agent's name."""
        return {"const": agent}

    def of_agent(self, agent: str, settings: type[BaseModel], known: Json) -> Json:
        """An agent's settings: null is the default, an object without a type changes it."""
        found = {name: self.of_setting(name, settings, schema) for name, schema in known.items()}
        found[DEFAULTS] = {"type": "object", "description": "The defaults that hold instead of the agent's own."}
        return found

    def of_setting(self, name: str, settings: type[BaseModel], schema: Json) -> Json:
        """One setting of an agent."""
        more: list[Json] = []
        field = next(field for each, field in settings.model_fields.items() if name in (each, *_aliases(field)))
        if not field.is_required():
            more.append(NULL)
        if name == "critic_network":
            more.append(name_of("network"))
        if name in COMPLETED and (default := field.get_default(call_default_factory=True)) is not None:
            options = type(default).model_fields.items()
            names = [each for option, inner in options for each in (option, *_aliases(inner))]
            more.append(json_object({each: {} for each in (*names, *self.beside_options())}) | WITHOUT_TYPE)
        outer = {key: schema[key] for key in ("title", "description", "default") if key in schema}
        return outer | either(schema, *more) if more else schema

    def beside_options(self) -> tuple[str, ...]:
        """Further keys of an object that changes the default."""
        return ()

    def fields_of_experiment(self, properties: Json) -> Json:
        """Further fields of an experiment."""
        return {}


def name_of(kind: str) -> Json:
    """A part given by the name of the file that holds it."""
    return {"type": "string", "description": f"The name of a file in configs/{kind}s/, or a path."}


def members(union: Any) -> tuple[type[BaseModel], ...]:
    """The models of a union that a field called type or kind selects from."""
    return get_args(get_args(union)[0])


def _or_word(schema: Json, words: tuple[str, ...]) -> Json:
    """An object that needs only its type may also be that word alone."""
    if set(schema.get("required", [])) - {"type"}:
        return schema
    return {"anyOf": [{"enum": list(words)}, schema]}


def _stages(schema: Json) -> Json:
    """One stage instead of a list, and words for stages without options."""
    stage = schema.pop("items")
    simple = {"enum": [tag for member in _simple_stages() for tag in get_args(member.model_fields["type"].annotation)]}
    stage = {"anyOf": [simple, stage]}
    return outside(schema) | {"anyOf": [stage, {"type": "array", "items": stage}]}


def _simple_stages() -> list[type[BaseModel]]:
    return [
        stage
        for stage in members(preprocessing.Stage)
        if not any(field.is_required() for name, field in stage.model_fields.items() if name != "type")
    ]


def _also(**other: str) -> Callable[[Json], Json]:
    """Words and their other spellings; `other` maps each spelling to its word."""

    def widened(schema: Json) -> Json:
        known = schema["enum"]
        return schema | {"enum": [*known, *(word for word, meant in other.items() if meant in known)]}

    return widened


def _or_pair(_: Json) -> Json:
    size = {"type": "integer", "minimum": 1}
    return {"anyOf": [size, {"type": "array", "items": size, "minItems": 2, "maxItems": 2}]}


def _wrapper(_: Json) -> Json:
    path = {"type": "string", "minLength": 1}
    return {"anyOf": [path, {"type": "object", "properties": {"type": path}, "required": ["type"]}]}


def _bandit(schema: Json, name: str) -> Json:
    """A bandit with its settings, or its name alone; in upper or lower case, and with - for _."""
    word = {"type": "string", "pattern": f"^{''.join(_in_any_case(char) for char in name)}$"}
    kind = {"description": "Which bandit.", "anyOf": [{"const": name}, word]}
    whole = schema | {"properties": schema["properties"] | {"type": kind}, "required": ["type"]}
    return {"anyOf": [{"const": name}, word, whole]}


def _in_any_case(char: str) -> str:
    return f"[{char}{char.upper()}]" if char.isalpha() else "[-_]" if char == "_" else char


def _node(schema: Json, model: type[BaseModel]) -> Json:
    """A node of a graph; `kind` may be left out if the node has a policy."""
    properties = dict(schema["properties"])
    properties["name"] = properties["name"] | {"pattern": f"^{serving.NAME.pattern}$", "not": {"pattern": r"\.\."}}
    if model is serving.ModelSpec:
        # The default name follows from the policy.
        properties["name"].pop("default")
    if model is serving.AbTestSpec:
        weights = properties["weights"]["anyOf"][0] | {"minItems": 2, "contains": {"exclusiveMinimum": 0}}
        properties["weights"] = properties["weights"] | {"anyOf": [weights, NULL]}
    required = [*([] if model is serving.ModelSpec else ["kind"]), *schema["required"]]
    return schema | {"properties": properties, "required": required}


def _or_policy(schema: Json) -> Json:
    """A node of a graph, or the text that names its policy."""
    return outside(schema) | {"anyOf": [_POLICY, *schema.get("oneOf", [schema])]}


_BEFORE: dict[Any, Callable[[Json], Json]] = {
    baseline._one_state: lambda schema: schema | {"maxProperties": 1},
    environment._with_type: _wrapper,
    layer_options.listed_names: lambda schema: {"anyOf": [{"type": "string"}, schema]},
    layer_options.one_or_two: _or_pair,
    layer_options.usual_spelling: _also(**layer_options.OTHER_SPELLINGS),
    preprocessing._on_last_axis: lambda schema: {"anyOf": [schema, {"const": -1}]},
    serving._understood_node: _or_policy,
}
"""Validator -> the schema of the values that it accepts, given that of the values it returns."""


def json_object(properties: Json, one_of: tuple[str, ...] = (), required: tuple[str, ...] = ()) -> Json:
    """An object with no other fields, of which `required` and one of `one_of` must be given."""
    rule = {"anyOf": [{"required": [*required, name]} for name in one_of]} if one_of else {"required": list(required)}
    return {"type": "object", "properties": properties, "additionalProperties": False} | rule


def either(*options: Json) -> Json:
    """A value that fits one of the schemas."""
    return {"anyOf": list(options)}


def outside(schema: Json) -> Json:
    """The title and the description of a schema."""
    return {name: schema[name] for name in ("title", "description") if name in schema}


def _aliases(field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else []
