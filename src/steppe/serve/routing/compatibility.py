"""Whether policies can stand in for each other: what they are shown and what they do must be the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.policies.description import PolicyDescription
from steppe.specs.spaces import Box, Discrete, Space

CLOSE = 1e-5
"""Bounds that differ by less, relative to their size, differ in how they are written."""


def difference(one: PolicyDescription, other: PolicyDescription) -> str | None:
    """What two policies do not have in common, "observations" or "actions"; None where nothing.

    Bounds of observations are for people, those of actions say what an action means; neither needs the same digits.
    """
    if _form(one.shown) != _form(other.shown):
        return "observations"
    same = one.action.dtype == other.action.dtype and _form(one.action) == _form(other.action)
    return None if same and _have_same_bounds(one.action, other.action) else "actions"


def _form(space: Space) -> Any:
    """All but the bounds; only bytes are another type on the way into a policy."""
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
