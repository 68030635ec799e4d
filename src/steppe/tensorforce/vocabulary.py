"""TensorForce's words in listings and JSON schemas: the words that `steppe.tensorforce` translates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from steppe.specs.describing.spellings import (
    NULL,
    TEXT,
    WITHOUT_TYPE,
    Json,
    Spellings,
    either,
    json_object,
    members,
    outside,
)
from steppe.specs.learning import baseline, layer_options, optimizer
from steppe.specs.learning.agent import DEFAULTS_OF
from steppe.specs.learning.preprocessing import PreprocessingSpec
from steppe.specs.running.connections import CONNECTIONS
from steppe.tensorforce import OLD_FIELDS, elsewhere, environment_names, layer_words, optimizer_words, without_effect
from steppe.tensorforce.agent_words import understood
from steppe.tensorforce.defaults import AGENTS, OWNERS
from steppe.tensorforce.names import replaced_by
from steppe.tensorforce.renamed import SAME_THING
from steppe.tensorforce.translation import AgentTranslation, TranslationError

_COUNT: Json = either({"type": "integer", "minimum": 1}, NULL)
_FLAG: Json = either({"type": "boolean"}, NULL)
_TURNED = {"baseline_mode": "share_network"}
"""Old word -> the setting that follows from its value."""
_RATE: Json = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "initial_value": {"type": "number", "exclusiveMinimum": 0},
        "final_value": {"type": "number", "minimum": 0},
    },
    "required": ["initial_value"],
    "additionalProperties": False,
    "description": "How the learning rate falls until total_timesteps.",
}
_BATCH_NORMALIZATION: Json = {
    "type": "object",
    "properties": {"type": {"const": "tf_layer"}, "layer": {"const": "batch_normalization"}}
    | {name: {"enum": [value, None]} for name, value in layer_words.LAYER_NORM_HAS.items()}
    | {name: {} for name in layer_words.WITHOUT_EFFECT},
    "required": ["type", "layer"],
    "additionalProperties": False,
}
_ALE = (
    *("rom", "level", "seed", "frame_skip", "repeat_action_probability", "loss_of_life_termination"),
    *("life_loss_terminal", "loss_of_life_reward", "life_loss_punishment", "display_screen", "watch", "visualize"),
)
_OLD_ENVIRONMENTS: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("openaigym", "gym"): (("gym_id", "level", "visualize", *environment_names.MONITOR), ("gym_id", "level", "id")),
    ("ale", "arcadelearningenvironment"): (_ALE, ("rom", "level")),
    ("minimaltest",): (("specification",), ()),
}
"""Old names of environments -> the words they take beside today's, and those of which one is required."""
_OLD_CONNECTIONS = {"remote": ("remoteenvironment",), "ue4": ("ue4environment", "unrealengine")}


def spelled(settings: type[BaseModel]) -> dict[str, list[str]]:
    """Each setting's names in TensorForce."""
    names: dict[str, list[str]] = {}
    for old, new in (SAME_THING | _TURNED).items():
        if new in settings.model_fields and old not in settings.model_fields:
            names.setdefault(new, []).append(old)
    return names


class OldSpellings(Spellings):
    """Today's ways to write a value, and TensorForce's."""

    def of_model(self, model: type[BaseModel], schema: Json) -> Json:
        """A model's schema with the other ways to write it."""
        properties: Json = schema.get("properties", {})
        if model in members(optimizer.OptimizerSpec):
            old = optimizer_words.OLD_OPTIONS.get(model.model_fields["type"].default, {})
            options = {name: {"enum": [harmless, None]} for name, harmless in old.items()}
            rate = either({"type": "number", "exclusiveMinimum": 0}, _RATE, NULL)
            schema = schema | {"properties": properties | options | {"learning_rate": rate}}
        if "priority_exponent" in properties:
            options = {name: either(option, NULL) for name, option in properties.items()}
            schema = schema | {"properties": options | _old_memory(options)}
        schema = super().of_model(model, schema)
        if model is PreprocessingSpec:
            state = json_object({"state": either(*schema["anyOf"])}, required=("state",))
            schema = schema | {"anyOf": [*schema["anyOf"], state]}
        return schema

    def of_value(self, validator: Any, schema: Json) -> Json:
        """A value's schema with the other forms that `validator` and the translation convert."""
        schema = super().of_value(validator, schema)
        if validator is baseline._understood:
            keyed = {"type": "object", "additionalProperties": schema, "minProperties": 1, "maxProperties": 1}
            return either(schema, keyed | WITHOUT_TYPE)
        if validator is layer_options.usual_spelling and "relu" in schema["enum"]:
            return either(schema, json_object({"name": schema}, required=("name",)), NULL)
        return schema

    def of_network(self, network: Json) -> Json:
        """A network, with batch normalisation, or wrapped as {"type": "layered", "layers": [...]}."""
        one, several = network["items"]["anyOf"]
        layer = one | {"anyOf": [*one["anyOf"], _BATCH_NORMALIZATION]}
        network = network | {"items": either(layer, several | {"items": layer})}
        layers = {name: value for name, value in network.items() if name not in ("$defs", "title", "description")}
        properties = {"type": {"const": "layered"}, "layers": layers, "layers_spec": layers}
        return network | json_object(properties, ("layers", "layers_spec")) | {"type": ["array", "object"]}

    def of_environment(self, schema: Json) -> Json:
        """An environment, also by the names of TensorForce's classes around environments."""
        own = {name: value for name, value in schema["properties"].items() if name != "id"}
        words = [word for words in (*_OLD_ENVIRONMENTS, *_OLD_CONNECTIONS.values()) for word in words]
        is_known = _pattern(*words, *CONNECTIONS, *environment_names.GONE)
        id = schema["properties"]["id"] | {"not": either({"pattern": is_known}, {"pattern": r"^tensorforce\."})}
        branches = [
            json_object({"id": id, "type": id, "gym_id": TEXT, **own}, ("id", "gym_id", "type")),
            *(
                json_object(
                    {"type": _named(*names), "id": TEXT, **{name: {} for name in more}, **own}, one_of, ("type",)
                )
                for names, (more, one_of) in _OLD_ENVIRONMENTS.items()
            ),
            *(
                self.connection(
                    name,
                    _named(name, *_OLD_CONNECTIONS[name]),
                    own,
                    ("image", "remote", "connect") if name == "ue4" else (),
                )
                for name in CONNECTIONS
            ),
        ]
        return outside(schema) | either(TEXT, *branches)

    def name_of_agent(self, agent: str) -> Json:
        """The agent's name, "ppo_agent" as TensorForce registered it, or the path of its class."""
        others = replaced_by(agent)
        words = {"enum": [agent, f"{agent}_agent", *(f"{name}_agent" for name in others)]}
        any_case = "".join(f"[{char}{char.upper()}]" if char.isalpha() else "[-_]?" for char in agent)
        plain = agent.replace("_", "[-_]")
        path = r"tensorforce\.(.*\.)?"
        old = "".join(rf"|{name}[-_]agent|{name.upper()}Agent" for name in others)
        return either(words, {"type": "string", "pattern": rf"^({path})?({plain}([-_]agent)?|{any_case}Agent{old})$"})

    def of_agent(self, agent: str, settings: type[BaseModel], known: Json) -> Json:
        """An agent's settings with all their spellings, and the old words that are translated."""
        found = super().of_agent(agent, settings, known)
        found |= _timing(AgentTranslation(agent, settings.model_fields, {}), found)
        if "share_network" in known:
            found["baseline_mode"] = {"enum": ["states", "network", None]}
        for old, new in SAME_THING.items():
            if old not in found and new in found:
                found[old] = either(found[new], NULL)
        others = {*SAME_THING, *without_effect.JUDGES, *elsewhere.REASONS} - set(found)
        found |= {old: {"anyOf": kinds} for old in sorted(others) if (kinds := _harmless(old, settings))}
        owners = [owner for owner in OWNERS if owner == "steppe" or agent in AGENTS]
        description = "Whose defaults hold for settings that are not given."
        return found | {DEFAULTS_OF: {"enum": [*owners, None], "description": description}}

    def of_setting(self, name: str, settings: type[BaseModel], schema: Json) -> Json:
        """One setting of an agent."""
        known = super().of_setting(name, settings, schema)
        more: list[Json] = []
        if name == "learning_rate":
            more.append(_RATE)
        if name in ("distribution", "exploration", "action"):
            more.append(_by_action(either(known, *([_distribution(schema)] if name == "distribution" else []))))
        if name == "distribution":
            more.append(_distribution(schema))
        if name == "critic_network":
            more.append(json_object({"size_t0": _COUNT, "size_t1": _COUNT}))
        if name in ("huber", "double"):
            more.append({"const": 0})
        return known | {"anyOf": [*known.get("anyOf", [schema]), *more]} if more else known

    def beside_options(self) -> tuple[str, ...]:
        """Learning rates inside optimizers."""
        return ("learning_rate",)

    def fields_of_experiment(self, properties: Json) -> Json:
        """Old names of fields, and the type that the old tfcli wrote."""
        kind = {"const": "experiment", "description": "Old files say it; it may be left out."}
        renamed = {old: properties[new] | {"description": f"The same as {new}."} for old, new in OLD_FIELDS.items()}
        return {"type": kind, **renamed}


def _old_memory(options: Json) -> Json:
    return {
        "prioritization_weight": options["priority_exponent"],
        "random_sampling": {"enum": [True, None]},
        "prioritization_constant": {"enum": [0, None]},
        "buffer_size": {},
    }


def _timing(agent: AgentTranslation, known: Json) -> Json:
    """update_mode, and the memory of agents that are on-policy here or were in TensorForce."""
    if agent.learned_from_episodes:
        kind: Json = {"const": "latest"}
        latest = json_object(
            {"type": kind, "capacity": _COUNT, "include_next_states": {"const": True}}, required=("type",)
        )
        return {
            "update_mode": either(_update_mode("timesteps", "episodes", first_update={}), NULL),
            "memory": either(known["memory"], kind, latest),
        }
    if "memory" in known:
        return {"update_mode": either(_update_mode("timesteps", first_update={}), NULL)}
    if "rollout_timesteps" not in known:
        return {"update_mode": NULL, "memory": NULL}
    kind = {"enum": ["latest", None]}
    memory = json_object({"type": kind, "capacity": _COUNT, "include_next_states": _FLAG})
    return {
        "update_mode": either(_update_mode("timesteps", "episodes", first_update=NULL), NULL),
        "memory": either(kind, memory),
    }


def _update_mode(*units: str, first_update: Json) -> Json:
    unit = {"enum": [*units, None]}
    return json_object({"unit": unit, "batch_size": _COUNT, "frequency": _COUNT, "first_update": first_update})


def _by_action(schema: Json) -> Json:
    """An object whose only key is the name of the one action."""
    keyed = {"type": "object", "additionalProperties": schema, "minProperties": 1, "maxProperties": 1}
    return keyed | WITHOUT_TYPE


def _distribution(schema: Json) -> Json:
    options = {"mean": {"enum": [0, None]}, "log_stddev": {"type": ["number", "null"]}}
    kind = {"type": {"enum": schema["enum"]}}
    return {"type": "object", "properties": kind | options, "additionalProperties": NULL, "required": ["type"]}


_SAMPLES: tuple[tuple[Any, Json], ...] = (
    (None, NULL),
    (True, {"const": True}),
    (False, {"const": False}),
    (0, {"const": 0}),
    (1, {"const": 1}),
    (7, {"type": "number"}),
    ("text", {"type": "string"}),
    ("single", {"const": "single"}),
    ([], {"type": "array"}),
    ({}, {"type": "object"}),
)
"""Sample values, each with a schema of all values like it."""


def _harmless(word: str, settings: type[BaseModel]) -> list[Json]:
    """Schemas of the values with which a word has no effect; some objects among them ask for more and are refused."""
    return [schema for sample, schema in _SAMPLES if _is_dropped(word, sample, settings.model_fields)]


def _is_dropped(word: str, value: Any, fields: Iterable[str]) -> bool:
    try:
        return word not in understood(AgentTranslation("", list(fields), {word: value})).data
    except TranslationError:
        return False


def _named(*names: str) -> Json:
    return {"type": "string", "pattern": _pattern(*names)}


def _pattern(*names: str) -> str:
    """Old names as files wrote them: in upper or lower case, with or without separators and TensorForce's modules."""
    spelled = [
        "[-_ ]*".join(f"[{char}{char.upper()}]" if char.isalpha() else re.escape(char) for char in name)
        for name in names
    ]
    return rf"^(tensorforce.*\.)?({'|'.join(spelled)})$"
