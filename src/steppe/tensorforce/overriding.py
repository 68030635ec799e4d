"""The spelling of a setting that an override replaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from steppe.specs.loading.validation import Steps
from steppe.tensorforce.renamed import SAME_THING


def as_written(agent: dict[str, Any], path: Steps) -> Steps:
    """The path to a setting as the agent's file spells it, so that a value put there replaces the file's."""
    for spellings in _spellings(agent):
        for spelling in spellings:
            if path[: len(spelling)] == spelling and not _is_there(agent, spelling):
                there = next((other for other in spellings if _is_there(agent, other)), spelling)
                path = (*there, *path[len(spelling) :])
                break
    return path


def _spellings(agent: dict[str, Any]) -> Iterator[list[Steps]]:
    """Groups of paths that mean the same setting."""
    for new in dict.fromkeys(SAME_THING.values()):
        if new != "rollout_timesteps":
            yield [(new,), *((old,) for old, meant in SAME_THING.items() if meant == new)]
    mode = agent.get("update_mode")
    if isinstance(mode, dict) and mode.get("unit") == "episodes":
        yield [("rollout_episodes",), ("update_mode", "batch_size")]
        yield [("rollout_timesteps",), ("memory", "capacity")]
    else:
        yield [("batch_size",), ("rollout_timesteps",), ("update_mode", "batch_size")]
        yield [("update_frequency",), ("update_mode", "frequency")]
        yield [("learning_starts",), ("update_mode", "first_update")]
    for optimizer, rate in (
        ("optimizer", "learning_rate"),
        ("step_optimizer", "learning_rate"),
        ("baseline_optimizer", "baseline_learning_rate"),
        ("critic_optimizer", "critic_learning_rate"),
    ):
        depth, inner = 0, agent.get(optimizer)
        while isinstance(inner, dict):
            yield [(rate,), (optimizer, *["optimizer"] * depth, "learning_rate")]
            depth, inner = depth + 1, inner.get("optimizer")


def _is_there(agent: dict[str, Any], path: Steps) -> bool:
    inside: Any = agent
    for step in path:
        if not isinstance(inside, dict) or inside.get(step) is None:
            return False
        inside = inside[step]
    return True
