"""Spaces of observations and actions: small, JSON-ready descriptions that need neither gymnasium nor JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steppe.errors import SpecError


@dataclass(frozen=True)
class Box:
    """Numbers in a fixed shape. `low` and `high` are one bound for all elements or one for each, in row order."""

    shape: tuple[int, ...]
    low: tuple[float, ...] = (float("-inf"),)
    high: tuple[float, ...] = (float("inf"),)
    dtype: str = "float32"
    parts: tuple[Part, ...] = ()
    """The parts, if this vector is a flattened Dict or Tuple."""

    @property
    def size(self) -> int:
        """The number of elements in one value."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def is_image(self) -> bool:
        """Height x width x channels, or frames of height x width, of bytes or at least image-sized."""
        return len(self.shape) == 3 and (self.dtype == "uint8" or min(sorted(self.shape)[1:]) >= 16)

    @property
    def is_bounded(self) -> bool:
        """Whether every number has a lowest and a highest value."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each in the space's shape."""
        low, high = (np.asarray(b, np.float32) for b in (self.low, self.high))
        return tuple(  # type: ignore[return-value]
            np.full(self.shape, b[0], np.float32) if b.size == 1 else b.reshape(self.shape) for b in (low, high)
        )


@dataclass(frozen=True)
class Discrete:
    """One of `n` choices, the first written as `start`."""

    n: int
    start: int = 0

    shape: tuple[int, ...] = ()
    dtype: str = "int32"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once; `nvec[i]` options for the i-th."""

    nvec: tuple[int, ...]
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        """One element for each choice."""
        return (len(self.nvec),)


Space = Box | Discrete | MultiDiscrete


@dataclass(frozen=True)
class Part:
    """One named part of a flattened observation: numbers as they are (bytes too), choices as one-hot vectors."""

    name: str
    """Its key; keys of nested parts are joined by "/"."""
    start: int
    """The index of its first number in the vector."""
    space: Space
    """The space of the part before it was flattened."""

    @property
    def size(self) -> int:
        """The number of elements that it takes in the vector."""
        match self.space:
            case Box():
                return self.space.size
            case Discrete():
                return self.space.n
            case MultiDiscrete():
                return sum(self.space.nvec)

    @property
    def is_bytes(self) -> bool:
        """Whether its numbers lie in 0 .. 255 and are divided by 255 before the network."""
        return isinstance(self.space, Box) and self.space.dtype == "uint8"


def to_json(space: Space) -> dict[str, Any]:
    """A description for policy.json; infinities are written as null."""
    match space:
        case Box():
            low, high = ([float(b) if np.isfinite(b) else None for b in side] for side in (space.low, space.high))
            box = {"type": "box", "shape": list(space.shape), "low": low, "high": high, "dtype": space.dtype}
            parts = [{"name": part.name, "start": part.start, "space": to_json(part.space)} for part in space.parts]
            return box | ({"parts": parts} if parts else {})
        case Discrete():
            return {"type": "discrete", "n": space.n, "start": space.start}
        case MultiDiscrete():
            return {"type": "multi_discrete", "nvec": list(space.nvec)}


def are_same(one: Space, other: Space) -> bool:
    """Whether two descriptions mean the same space; one bound for all equals the same bound for each."""
    return _shortened(one) == _shortened(other)


def from_json(data: dict[str, Any]) -> Space:
    """The inverse of `to_json`."""
    match data.get("type"):
        case "box":
            low, high = _bounds(data["low"], "low", -math.inf), _bounds(data["high"], "high", math.inf)
            parts = (Part(part["name"], part["start"], from_json(part["space"])) for part in data.get("parts", ()))
            return Box(tuple(data["shape"]), low, high, data["dtype"], tuple(parts))
        case "discrete":
            return Discrete(int(data["n"]), int(data["start"]))
        case "multi_discrete":
            return MultiDiscrete(tuple(int(n) for n in data["nvec"]))
        case other:
            raise SpecError(f'unknown space "{str(other)[:50]}"; it must be one of box, discrete, multi_discrete')


def _bounds(values: Any, name: str, missing: float) -> tuple[float, ...]:
    for value in values:
        if value is not None and (type(value) not in (int, float) or value != value):
            raise SpecError(f'wrong bound {str(value)[:20]} in "{name}"; it must be a number, or null for none')
    return tuple(missing if value is None else float(value) for value in values)


def _shortened(space: Space) -> Space:
    if not isinstance(space, Box):
        return space
    low, high = (side[:1] if side.count(side[0]) == len(side) else side for side in (space.low, space.high))
    parts = tuple(replace(part, space=_shortened(part.space)) for part in space.parts)
    return replace(space, low=low, high=high, parts=parts)


def action_dtype(space: Space) -> str:
    """The type of actions as sent: those of a Box are floats, even if the environment has to round them."""
    return "float32" if isinstance(space, Box) else space.dtype
