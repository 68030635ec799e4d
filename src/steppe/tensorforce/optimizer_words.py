"""Learning rates inside optimisers, schedules, and objects that leave out their type."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from steppe.specs.describing.field_rows import as_written
from steppe.tensorforce.translation import Misread, Reading

_RATES = {
    "optimizer": "learning_rate",
    "baseline_optimizer": "baseline_learning_rate",
    "critic_optimizer": "critic_learning_rate",
}
_KINDS = {"linear_decay": "linear", "exponential_decay": "exponential", "cosine_decay": "cosine"}


def settle(reading: Reading) -> None:
    """Learning rates beside their optimisers, schedules as settings, and types where they are left out."""
    for optimizer, rate in _RATES.items():
        if optimizer in reading.fields:
            _lift(reading, optimizer, rate)
            if isinstance(reading.data.get(rate), dict):
                _settle_schedule(reading, rate)
    for name in (*_RATES, "exploration"):
        if name in reading.fields:
            _complete(reading, name)


def _lift(reading: Reading, optimizer: str, rate: str) -> None:
    """Moves the learning rate written inside an optimiser, or inside the one it wraps, to its place beside it."""
    path: list[dict[str, Any]] = []
    inner = reading.data.get(optimizer)
    while isinstance(inner, dict):
        path.append(inner)
        inner = inner.get("optimizer")
    depths = [depth for depth, spec in enumerate(path) if "learning_rate" in spec]
    if not depths:
        return
    if rate in reading.data or len(depths) > 1:
        raise Misread(f"the learning rate of {optimizer} is given twice; give it once")
    (depth,) = depths
    rebuilt = inner
    for number, spec in reversed(list(enumerate(path))):
        spec = {name: value for name, value in spec.items() if name != "learning_rate"}
        rebuilt = spec | {"optimizer": rebuilt} if number + 1 < len(path) or rebuilt is not None else spec
    value = path[depth]["learning_rate"]
    where = reading.written(optimizer, *["optimizer"] * depth, "learning_rate")
    # An optimiser of which nothing else was said is the usual one.
    if rebuilt:
        reading.data[optimizer] = rebuilt
    else:
        del reading.data[optimizer]
    if value is not None:
        reading.put(rate, value, *where)


def _settle_schedule(reading: Reading, rate: str) -> None:
    """{"type": "linear", "initial_value": ..., "final_value": ...} as settings."""
    where, given = reading.written(rate), reading.data.pop(rate)
    reading.places.pop((rate,), None)
    if rate != "learning_rate":
        raise Misread(
            f"{rate} falls in proportion to learning_rate, by learning_rate_decay; give it as one number", *where
        )
    kind = given.get("type", "linear")
    if kind == "decaying" or {"decay", "decay_steps", "decay_rate"} & set(given):
        raise Misread(
            'a learning rate falls until total_timesteps here, not by decay_steps and decay_rate; write {"type": '
            '"exponential", "initial_value": 1e-3, "final_value": 1e-5}, the final value being the initial one times '
            "decay_rate ** (total_timesteps / decay_steps)",
            *where,
        )
    if (
        set(given) - {"type", "initial_value", "final_value"}
        or "initial_value" not in given
        or not isinstance(kind, str)
    ):
        raise Misread(
            'a falling learning rate is written {"type": "linear", "initial_value": 1e-3, "final_value": 0}; '
            "it falls until total_timesteps",
            *where,
        )
    if {"learning_rate_decay", "final_learning_rate"} & set(reading.data):
        raise Misread("how the learning rate falls is given twice, as an object and beside it; give it once", *where)
    reading.put(rate, given["initial_value"], *where, "initial_value")
    reading.put("learning_rate_decay", _KINDS.get(kind, kind), *where, "type")
    reading.put("final_learning_rate", given.get("final_value", 0.0), *where, "final_value")


def _complete(reading: Reading, name: str) -> None:
    """An object without a type changes what is there by default, as `--set agent.exploration.timesteps=9` does."""
    given, default = reading.data.get(name), reading.default(name)
    if not isinstance(given, dict) or not given or "type" in given or not isinstance(default, BaseModel):
        return
    usual = as_written(default)
    reading.data[name] = ({"type": usual} if isinstance(usual, str) else usual) | given
