"""Whether two policies are interchangeable: their observations and actions must be the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.policies.description import PolicyDescription
from steppe.specs.spaces import Box, Discrete, Space

CLOSE = 1e-5
"""Relative difference of bounds that is due to rounding only."""


def difference(one: PolicyDescription, other: PolicyDescription) -> str | None:
    """Which spaces of two policies differ, "observations" or "actions"; None if they are interchangeable.

    Bounds of observations do not matter, those of actions define what an action means, up to rounding.
    """
    if _form(one.shown) != _form(other.shown):
        return "observations"
    same = one.action.dtype == other.action.dtype and _form(one.action) == _form(other.action)
    return None if same and _have_same_bounds(one.action, other.action) else "actions"


def _form(space: Space) -> Any:
    """A space without its bounds; of the types only uint8 matters, which policies read differently."""
    match space:
        case Box():
            parts = tuple((part.name, part.start, _form(part.space)) for part in space.parts)
            return "box", space.shape, space.dtype == "uint8", parts
        case Discrete():
            return "discrete", space.n, space.start
        case _:
            return "multi_discrete", tuple(space.nvec)


def _have_same_bounds(one: Space, other: Space) -> bool:
    if not isinstance(one, Box) or not isinstance(other, Box):
        return True
    return all(np.allclose(*sides, rtol=CLOSE, atol=CLOSE) for sides in zip(one.bounds(), other.bounds(), strict=True))
