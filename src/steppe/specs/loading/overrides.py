"""`--set agent.discount=0.97`: overrides of a spec's values from the command line."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from steppe.errors import SpecError
from steppe.specs.loading.validation import Steps, join_path

_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A new dict with each `path=value` applied; values are JSON, or else text."""
    data = copy.deepcopy(data)
    for text in overrides:
        put(data, *parse_override(text), text)
    return data


def parse_override(text: str) -> tuple[Steps, Any]:
    """`network.0.size=32` (or `network[0].size=32`) as (("network", 0, "size"), 32)."""
    path, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f'cannot understand --set "{text}"; write --set PATH=VALUE, such as --set agent.discount=0.97')
    words = re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")
    if not all(words):
        raise SpecError(f'cannot understand the path "{path}" in --set "{text}"; write it like agent.discount')
    return tuple(int(word) if word.isdecimal() else word for word in words), _parse_value(value.strip())


def put(data: dict[str, Any], steps: Steps, value: Any, text: str) -> Steps:
    """Sets the value at `steps` in `data` itself; returns the path to the first part that did not exist before."""
    inside: Any = data
    for number, step in enumerate(steps[:-1], start=1):
        key = _key(inside, step, steps[: number - 1], text)
        if isinstance(inside, dict) and inside.get(key) is None:
            if isinstance(steps[number], int):
                raise SpecError(f'cannot set "{text}": there is no list at {join_path("", steps[:number])}')
            inside[key] = _nested(steps[number:], value)
            return steps[:number]
        inside = inside[key]
    inside[_key(inside, steps[-1], steps[:-1], text)] = value
    return steps


def _key(inside: Any, step: str | int, steps: Steps, text: str) -> Any:
    """The key or index for `step` in `inside`, the value at `steps`."""
    here = join_path("", steps)
    if isinstance(inside, dict):
        return str(step)
    if not isinstance(inside, list):
        raise SpecError(f'cannot set "{text}": {here} is {json.dumps(inside)}, which has no fields')
    if not isinstance(step, int):
        raise SpecError(f'cannot set "{text}": {here} is a list, so a number must stand in place of "{step}"')
    if step >= len(inside):
        raise SpecError(f'cannot set "{text}": {here} has {len(inside)} items, counted from 0')
    return step


def _nested(steps: Steps, value: Any) -> Any:
    for step in reversed(steps):
        value = {str(step): value}
    return value


def _parse_value(text: str) -> Any:
    if text in _PYTHON_WORDS:
        return _PYTHON_WORDS[text]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value
