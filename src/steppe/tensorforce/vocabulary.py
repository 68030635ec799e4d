"""TensorForce's words for settings, as lists and schemas tell them: what `steppe.tensorforce` understands."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices

from steppe.specs._base import Settings
from steppe.tensorforce import SAME_THING, Misread, Reading, elsewhere, understand, without_effect
from steppe.tensorforce.defaults import AGENTS, OWNERS

Json = dict[str, Any]
_NULL: Json = {"type": "null"}
_COUNT: Json = {"anyOf": [{"type": "integer", "minimum": 1}, _NULL]}
_FLAG: Json = {"anyOf": [{"type": "boolean"}, _NULL]}
_TURNED = {"baseline_mode": "share_network"}
"""Old word -> the setting that follows from what it says."""
_RATES = ("learning_rate",)
_TYPED = ("optimizer", "baseline_optimizer", "critic_optimizer", "exploration")
"""Settings that are objects with a type, which may be left out to change parts of the default."""

RATE: Json = {
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


def owners(agent: str) -> Json:
    """Whose defaults an agent can have."""
    choices = [owner for owner in OWNERS if owner == "steppe" or agent in AGENTS]
    return {"enum": [*choices, None], "description": "Whose defaults hold for settings that are not given."}


def spelled(settings: type[Settings]) -> dict[str, list[str]]:
    """Each setting's other names."""
    names: dict[str, list[str]] = {}
    for old, new in (SAME_THING | _TURNED).items():
        if new in settings.model_fields and old not in settings.model_fields:
            names.setdefault(new, []).append(old)
    return names


def schemas(settings: type[Settings], known: Json) -> Json:
    """An agent's settings, each with all that it may be written as, and the old words that it understands."""
    found = {name: _widened(name, settings, schema) for name, schema in known.items()}
    found |= _timing(settings, found)
    if "share_network" in known:
        found["baseline_mode"] = {"enum": ["states", "network", None]}
    for old, new in SAME_THING.items():
        if old not in found and new in found:
            found[old] = _or(found[new], _NULL)
    others = {*SAME_THING, *without_effect.JUDGES, *elsewhere.REASONS} - set(found)
    return found | {old: {"anyOf": kinds} for old in sorted(others) if (kinds := _harmless(old, settings))}


def _widened(name: str, settings: type[Settings], schema: Json) -> Json:
    """What one setting may be written as."""
    more: list[Json] = []
    field = next(field for each, field in settings.model_fields.items() if name in (each, *_aliases(field)))
    if not field.is_required():
        more.append(_NULL)
    if name in _RATES:
        more.append(RATE)
    if name in ("distribution", "exploration", "action"):
        more.append(_by_action(_or(schema, *([_distribution(schema)] if name == "distribution" else []))))
    if name == "distribution":
        more.append(_distribution(schema))
    if name == "critic_network":
        named = {"type": "string", "description": "The name of a file in configs/networks/, or a path."}
        more += [named, _object({"size_t0": _COUNT, "size_t1": _COUNT})]
    if name in ("huber", "double"):
        more.append({"const": 0})
    if name in _TYPED and (default := field.get_default(call_default_factory=True)) is not None:
        names = [each for option, inner in type(default).model_fields.items() for each in (option, *_aliases(inner))]
        more.append(_object({each: {} for each in (*names, "learning_rate")}) | {"not": {"required": ["type"]}})
    outer = {key: schema[key] for key in ("title", "description", "default") if key in schema}
    return outer | _or(schema, *more) if more else schema


def _aliases(field: Any) -> list[str]:
    alias = field.validation_alias
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else []


def _timing(settings: type[Settings], known: Json) -> Json:
    """update_mode, and the memory of agents that learn from what they just saw, or did so in TensorForce."""
    if Reading({}, settings.model_fields).learned_from_episodes:
        kind: Json = {"const": "latest"}
        latest = _object({"type": kind, "capacity": _COUNT, "include_next_states": {"const": True}})
        return {
            "update_mode": _or(_update_mode("timesteps", "episodes", first_update={}), _NULL),
            "memory": _or(known["memory"], kind, latest | {"required": ["type"]}),
        }
    if "memory" in known:
        return {"update_mode": _or(_update_mode("timesteps", first_update={}), _NULL)}
    if "rollout_timesteps" not in known:
        return {"update_mode": _NULL, "memory": _NULL}
    kind = {"enum": ["latest", None]}
    memory = _object({"type": kind, "capacity": _COUNT, "include_next_states": _FLAG})
    return {
        "update_mode": _or(_update_mode("timesteps", "episodes", first_update=_NULL), _NULL),
        "memory": _or(kind, memory),
    }


def _update_mode(*units: str, first_update: Json) -> Json:
    unit = {"enum": [*units, None]}
    return _object({"unit": unit, "batch_size": _COUNT, "frequency": _COUNT, "first_update": first_update})


def _by_action(schema: Json) -> Json:
    """One of them by the name of the one action there is."""
    return {
        "type": "object",
        "additionalProperties": schema,
        "minProperties": 1,
        "maxProperties": 1,
        "not": {"required": ["type"]},
    }


def _distribution(schema: Json) -> Json:
    options = {"mean": {"enum": [0, None]}, "log_stddev": {"type": ["number", "null"]}}
    kind = {"type": {"enum": schema["enum"]}}
    return {"type": "object", "properties": kind | options, "additionalProperties": _NULL, "required": ["type"]}


_SAMPLES: tuple[tuple[Any, Json], ...] = (
    (None, _NULL),
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
"""Values of every kind, and what takes all like them."""


def _harmless(word: str, settings: type[Settings]) -> list[Json]:
    """Of what kinds a word without effect may be; some objects among them ask for more and are refused."""
    return [schema for sample, schema in _SAMPLES if _is_dropped(word, sample, settings)]


def _is_dropped(word: str, value: Any, settings: type[Settings]) -> bool:
    try:
        return word not in understand({word: value}, settings.model_fields).data
    except Misread:
        return False


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _or(*options: Json) -> Json:
    return {"anyOf": list(options)}
