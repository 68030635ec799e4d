"""Reads fields of JSON messages that clients wrote; an optional field may be missing or null."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.serve.messages.exchange import Feedback, Question


def question_of(
    parameters: dict[str, Any],
    observations: np.ndarray,
    id: str | None,
    model: str | None = None,
    version: str | None = None,
    outputs: bool = False,
) -> Question:
    """A question about checked observations; its parameters describe its episode."""
    return Question(
        observations=observations,
        id=id,
        sequence_id=text_field(parameters, "sequence_id"),
        sequence_start=flag_field(parameters, "sequence_start"),
        sequence_end=flag_field(parameters, "sequence_end"),
        deterministic=optional_flag(parameters, "deterministic"),
        model=model,
        version=version,
        outputs=outputs,
    )


def feedback_of(parameters: dict[str, Any], reward: float, id: str | None, truth: Any) -> Feedback:
    """Feedback for a request or an episode; its parameters describe the episode."""
    return Feedback(
        reward=reward,
        id=id,
        sequence_id=text_field(parameters, "sequence_id"),
        sequence_end=flag_field(parameters, "sequence_end"),
        feedback_id=text_field(parameters, "feedback_id"),
        truth=truth,
    )


def text_field(message: dict[str, Any], name: str) -> str | None:
    """An optional text; whole numbers are accepted, as some clients number their episodes."""
    value = message.get(name)
    if value is None or value == "":
        return None
    if type(value) is int:
        return str(value)
    if type(value) is float and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    if type(value) is not str or len(value) > 256:
        raise UserError(f'"{name}" must be text of at most 256 characters, or a whole number')
    return value


def flag_field(message: dict[str, Any], name: str) -> bool:
    """An optional true or false; missing means false."""
    return optional_flag(message, name) is True


def optional_flag(message: dict[str, Any], name: str) -> bool | None:
    """True, false, or None if it is missing."""
    value = message.get(name)
    if value is not None and type(value) is not bool:
        raise UserError(f'"{name}" must be true or false')
    return value


def object_field(message: dict[str, Any], name: str) -> dict[str, Any]:
    """An optional object; missing means empty."""
    value = message.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise UserError(f'"{name}" must be a JSON object')
    return value


def reward_field(message: dict[str, Any], default: float | None = None) -> float:
    """The reward, not checked to be finite."""
    value = message.get("reward", default)
    if type(value) is float:
        return value
    if type(value) is not int:
        raise UserError('"reward" must be a number')
    return float(value)
