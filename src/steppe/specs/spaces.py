"""What can be observed and done: small, JSON-ready descriptions that need neither gymnasium nor JAX."""

from __future__ import annotations

from dataclasses import dataclass
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

    @property
    def size(self) -> int:
        """How many numbers one value holds."""
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
        """One place for each choice."""
        return (len(self.nvec),)


Space = Box | Discrete | MultiDiscrete


def to_json(space: Space) -> dict[str, Any]:
    """A description for policy.json; infinities are written as null."""
    match space:
        case Box():
            low, high = ([float(b) if np.isfinite(b) else None for b in side] for side in (space.low, space.high))
            return {"type": "box", "shape": list(space.shape), "low": low, "high": high, "dtype": space.dtype}
        case Discrete():
            return {"type": "discrete", "n": space.n, "start": space.start}
        case MultiDiscrete():
            return {"type": "multi_discrete", "nvec": list(space.nvec)}


def from_json(data: dict[str, Any]) -> Space:
    """The inverse of `to_json`."""
    match data.get("type"):
        case "box":
            low = tuple(float("-inf") if b is None else float(b) for b in data["low"])
            high = tuple(float("inf") if b is None else float(b) for b in data["high"])
            return Box(tuple(data["shape"]), low, high, data["dtype"])
        case "discrete":
            return Discrete(int(data["n"]), int(data["start"]))
        case "multi_discrete":
            return MultiDiscrete(tuple(int(n) for n in data["nvec"]))
        case other:
            raise SpecError(f'unknown space "{other}"; it must be one of box, discrete, multi_discrete')
