"""Translates optimisers: learning rates inside them, and schedules of learning rates."""

from __future__ import annotations

from typing import Any

from steppe.specs.loading.validation import Steps
from steppe.tensorforce.translation import AgentTranslation, TranslationError

_RATES = {
    "optimizer": "learning_rate",
    "baseline_optimizer": "baseline_learning_rate",
    "critic_optimizer": "critic_learning_rate",
}
_NOT_HERE = {
    "synchronization": "it moves a target network; use target_sync_frequency and target_update_weight instead",
    "global_optimizer": "sharing an optimiser is what the run modes do; use run_mode instead",
}
OLD_OPTIONS: dict[str, dict[str, Any]] = {
    "evolutionary": {"unroll_loop": False},
    "multi_step": {"unroll_loop": False},
    "natural_gradient": {"cg_unroll_loop": False},
    "optimized_step": {"ls_unroll_loop": False, "ls_mode": "exponential"},
}
"""Options that only TensorForce's optimizers had, with the values that change nothing."""
_KINDS = {"linear_decay": "linear", "exponential_decay": "exponential", "cosine_decay": "cosine"}


def settle(agent: AgentTranslation) -> None:
    """Writes learning rates beside their optimisers, and schedules as settings."""
    for optimizer, rate in _RATES.items():
        if optimizer in agent.fields:
            if optimizer in agent.data:
                agent.data[optimizer] = _optimizer(agent.data[optimizer], agent.written(optimizer))
            _lift(agent, optimizer, rate)
            if isinstance(agent.data.get(rate), dict):
                _settle_schedule(agent, rate)


def _optimizer(given: Any, where: Steps) -> Any:
    """An optimizer, and those it wraps, without TensorForce's options."""
    kind = given.get("type") if isinstance(given, dict) else given
    if isinstance(kind, str) and kind in _NOT_HERE:
        raise TranslationError(
            f'"{kind}" is no optimiser here: {_NOT_HERE[kind]}', *where, is_joint=isinstance(given, dict)
        )
    if not isinstance(given, dict):
        return given
    old = OLD_OPTIONS.get(kind, {}) if isinstance(kind, str) else {}
    for name in old.keys() & given.keys():
        if given[name] not in (None, old[name]):
            reason = "steps are shortened by ls_parameter each time" if name == "ls_mode" else "loops stay loops"
            raise TranslationError(f'"{name}" cannot be honoured: {reason}; leave it out', *where, is_joint=True)
    kept = {name: option for name, option in given.items() if name not in old}
    if "optimizer" in kept:
        kept["optimizer"] = _optimizer(kept["optimizer"], (*where, "optimizer"))
    return kept


def _lift(agent: AgentTranslation, optimizer: str, rate: str) -> None:
    """Moves the learning rate written inside an optimiser, or inside the one it wraps, to its place beside it."""
    path: list[dict[str, Any]] = []
    inner = agent.data.get(optimizer)
    while isinstance(inner, dict):
        path.append(inner)
        inner = inner.get("optimizer")
    depths = [depth for depth, spec in enumerate(path) if "learning_rate" in spec]
    if not depths:
        return
    if rate in agent.data or len(depths) > 1:
        raise TranslationError(f"the learning rate of {optimizer} is given twice; give it once")
    (depth,) = depths
    rebuilt = inner
    for number, spec in reversed(list(enumerate(path))):
        spec = {name: value for name, value in spec.items() if name != "learning_rate"}
        rebuilt = spec | {"optimizer": rebuilt} if number + 1 < len(path) or rebuilt is not None else spec
    value = path[depth]["learning_rate"]
    where = agent.written(optimizer, *["optimizer"] * depth, "learning_rate")
    # An optimiser with nothing but a learning rate is the default one.
    if rebuilt:
        agent.data[optimizer] = rebuilt
    else:
        del agent.data[optimizer]
    if value is not None:
        agent.put(rate, value, *where)


def _settle_schedule(agent: AgentTranslation, rate: str) -> None:
    """Writes {"type": "linear", "initial_value": ..., "final_value": ...} as settings."""
    where, given = agent.written(rate), agent.data.pop(rate)
    agent.moved.pop((rate,), None)
    if rate != "learning_rate":
        raise TranslationError(
            f"{rate} falls in proportion to learning_rate, by learning_rate_decay; give it as one number", *where
        )
    kind = given.get("type", "linear")
    if kind == "decaying" or {"decay", "decay_steps", "decay_rate"} & set(given):
        raise TranslationError(
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
        raise TranslationError(
            'a falling learning rate is written {"type": "linear", "initial_value": 1e-3, "final_value": 0}; '
            "it falls until total_timesteps",
            *where,
        )
    if {"learning_rate_decay", "final_learning_rate"} & set(agent.data):
        raise TranslationError(
            "how the learning rate falls is given twice, as an object and beside it; give it once", *where
        )
    agent.put(rate, given["initial_value"], *where, "initial_value")
    agent.put("learning_rate_decay", _KINDS.get(kind, kind), *where, "type")
    agent.put("final_learning_rate", given.get("final_value", 0.0), *where, "final_value")
