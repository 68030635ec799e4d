"""Mistakes in the values that an environment returns, with a fix for each."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces


class Mistake(NamedTuple):
    """A sentence about a mistake, and one on how to correct it."""

    found: str
    fix: str
    is_serious: bool = True
    """Whether it can spoil training."""


class Unreadable(Exception):
    """The result of a step cannot be read."""


STEP = "return observation, reward, terminated, truncated, info"
OLD_STEP = (
    f"this is the old gym API; {STEP}, where terminated means that the task is over and truncated that only the time is"
)


def observation_mistakes(value: Any, space: spaces.Space, name: str = "the observation") -> Iterator[Mistake]:
    """Mistakes of an observation of this space."""
    match space:
        case spaces.Dict():
            yield from _dict_mistakes(value, space, name)
        case spaces.Tuple():
            if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
                yield Mistake(
                    f"{name} is {_shown(value)}, but its space is a Tuple of {len(space.spaces)}",
                    f"return a tuple of {len(space.spaces)} parts",
                )
                return
            for i, (part, inner) in enumerate(zip(value, space.spaces, strict=True)):
                yield from observation_mistakes(part, inner, f"part {i} of {name}")
        case spaces.Box():
            yield from _box_mistakes(value, space, name)
        case _:
            if not space.contains(value):
                yield Mistake(f"{name} is {_shown(value)}, which is not in {space}", "return what its space says")


def reward_mistakes(reward: Any) -> Iterator[Mistake]:
    """Mistakes of a reward."""
    if isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "fiub":
        yield Mistake(
            f"the reward is an array of shape {reward.shape}, not a number", "return float(reward.item())", False
        )
        reward = reward.item()
    if not isinstance(reward, numbers.Real | np.bool_):
        yield Mistake(f"the reward is {_shown(reward)}, not a number", "return a float")
    elif not math.isfinite(float(reward)):
        yield Mistake(f"the reward is {float(reward)}", "find the division or the logarithm that it comes from")


def flag_mistakes(name: str, flag: Any) -> Iterator[Mistake]:
    """Mistakes of `terminated` or `truncated`."""
    if not isinstance(flag, bool | np.bool_):
        is_number = isinstance(flag, numbers.Real)
        yield Mistake(f"{name} is {_shown(flag)}, not True or False", f"return bool({name})", not is_number)


def reset_mistakes(value: Any) -> Iterator[Mistake]:
    """Mistakes in the structure of `reset`'s result."""
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], dict):
        yield Mistake(f"reset returned {_shown(value)}", "return two values: observation, info, where info is a dict")


def step_mistakes(value: Any) -> Iterator[Mistake]:
    """Mistakes in the structure of `step`'s result, which prevent further checks."""
    if not isinstance(value, tuple | list):
        yield Mistake(f"step returned {_shown(value)}, not five values", STEP)
    elif len(value) != 5:
        yield Mistake(f"step returned {len(value)} values, not five", OLD_STEP if len(value) == 4 else STEP)


def five_values(value: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The five values of a step, also from the old gym's four; else Unreadable."""
    if isinstance(value, tuple | list) and len(value) == 4:
        obs, reward, done, info = value
        return obs, reward, done, False, info
    if not isinstance(value, tuple | list) or len(value) != 5:
        raise Unreadable
    obs, reward, terminated, truncated, info = value
    return obs, reward, terminated, truncated, info


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    """Every array in an observation."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from arrays_of(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from arrays_of(part)


def are_equal(one: Any, other: Any) -> bool:
    """Whether two observations are equal, NaN to NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    first, second = np.asarray(one), np.asarray(other)
    is_number = first.dtype.kind in "fc"
    return first.shape == second.shape and np.array_equal(first, second, equal_nan=is_number)


def _dict_mistakes(value: Any, space: spaces.Dict, name: str) -> Iterator[Mistake]:
    if not isinstance(value, dict) or value.keys() != space.spaces.keys():
        keys = ", ".join(f'"{key}"' for key in space.spaces)
        yield Mistake(f"{name} is {_shown(value)}, but its space is a Dict of {keys}", "return a dict with these keys")
        return
    for key, inner in space.spaces.items():
        yield from observation_mistakes(value[key], inner, f'"{key}" of {name}')


def _box_mistakes(value: Any, space: spaces.Box, name: str) -> Iterator[Mistake]:
    dtype = space.dtype
    if not isinstance(value, np.ndarray | np.generic):
        way = f"return np.array(values, np.{dtype})"
        try:
            value = np.asarray(value)
        except ValueError:
            yield Mistake(f"{name} is {_shown(value)}, not an array", way)
            return
        is_number = value.dtype.kind in "fiub"
        yield Mistake(f"{name} is {_shown_kind(value)}, not a NumPy array", way, not is_number)
    if value.dtype.kind not in "fiub":
        yield Mistake(f"{name} holds {value.dtype}, not numbers", f"return np.array(values, np.{dtype})")
        return
    if value.shape != space.shape:
        yield Mistake(
            f"{name} has shape {value.shape}, but its space says {space.shape}",
            f"return that shape, or write shape={value.shape} in the space",
        )
        return
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        bad = value[~np.isfinite(value)].ravel()[0]
        yield Mistake(f"{name} has {bad} in it", "find the division or the logarithm that it comes from")
        return
    if value.dtype != dtype:
        fits = np.can_cast(value.dtype, dtype, "same_kind")
        yield Mistake(
            f"{name} is of {value.dtype}, but its space says {dtype}",
            f"return observation.astype(np.{dtype}), or write dtype=np.{value.dtype} in the space",
            not fits,
        )
    outside = (value < space.low) | (value > space.high)
    if outside.any():
        at = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(outside)))
        one = np.atleast_1d(value)[at]
        low, high = np.atleast_1d(space.low)[at], np.atleast_1d(space.high)[at]
        yield Mistake(
            f"{name} has {one} at {list(at)}, which is outside of its space, {low} to {high}",
            "widen low and high of the space, or clip the observation",
        )


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _shown_kind(value: np.ndarray) -> str:
    return "a number" if value.shape == () else "a list"
