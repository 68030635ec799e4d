"""Conversion of gymnasium's spaces, observations and actions to Steppe's and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from steppe.errors import UserError
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part, Space

Write = Callable[[Any, np.ndarray, int], None]
"""Writes one observation of the environment into row i of an array [N, ...]; a wrong shape is a ValueError."""
WriteAll = Callable[[list[Any], np.ndarray], None]
"""Writes N observations into an array [N, ...] fast; may raise anything, upon which `Write` finds the reason."""
ToEnv = Callable[[np.ndarray], Any]
"""Turns actions [N, ...] of the agent into N actions of the environment."""


def observation_crossing(space: gym_spaces.Space, id: str) -> tuple[Space, Write]:
    """The agent's observation space, and a function that writes an observation into a buffer of that space."""
    match space:
        case gym_spaces.Box():
            return _observed_box(space)
        case gym_spaces.Discrete():
            return Discrete(int(space.n), int(space.start)), _write_number
        case gym_spaces.MultiDiscrete():
            nvec = _counts(space, id)
            return MultiDiscrete(nvec), _writer((len(nvec),), np.shape(space.nvec))
        case gym_spaces.MultiBinary():
            size = int(np.prod(space.shape))
            return MultiDiscrete((2,) * size), _writer((size,), space.shape)
        case gym_spaces.Dict() | gym_spaces.Tuple():
            return _flattened(space, id)
        case _:
            raise UserError(
                f'environment "{id}" observes a {type(space).__name__} space, which Steppe cannot learn from; wrap '
                "it so that it observes Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
            )


def action_crossing(space: gym_spaces.Space, id: str) -> tuple[Space, ToEnv]:
    """The agent's action space (choices count from 0), and a function from its actions to the environment's."""
    match space:
        case gym_spaces.Discrete():
            start = int(space.start)
            to_env: ToEnv = _as_ints if start == 0 else lambda actions: [int(action) + start for action in actions]
            return Discrete(int(space.n), start), to_env
        case gym_spaces.MultiDiscrete():
            shape, dtype = np.shape(space.nvec), space.dtype
            return MultiDiscrete(_counts(space, id)), lambda actions: actions.astype(dtype).reshape(-1, *shape)
        case gym_spaces.MultiBinary():
            shape, size = space.shape, int(np.prod(space.shape))
            return MultiDiscrete((2,) * size), lambda actions: actions.astype(np.int8).reshape(-1, *shape)
        case gym_spaces.Box():
            return _acted_box(space)
        case _:
            raise UserError(
                f'environment "{id}" takes actions from a {type(space).__name__} space, which Steppe cannot choose '
                "from; wrap it so that it takes Discrete, MultiDiscrete, MultiBinary or Box actions"
            )


def bulk_writer(space: gym_spaces.Space, write: Write) -> WriteAll:
    """The fastest way to write the observations of N environments: one NumPy call if they are plain arrays."""
    if isinstance(space, gym_spaces.Box) and space.shape:
        merged = (-1, *space.shape[1:])

        def concatenate(seen: list[Any], rows: np.ndarray) -> None:
            # Unlike an assignment, concatenation does not broadcast, so a wrong shape is an error.
            np.concatenate(seen, out=rows.reshape(merged))

        return concatenate

    def write_all(seen: list[Any], rows: np.ndarray) -> None:
        for i, obs in enumerate(seen):
            write(obs, rows, i)

    return write_all


def zeros(space: Space, rows: int) -> np.ndarray:
    """A buffer of zeros for `rows` elements of a space."""
    return np.zeros((rows, *space.shape), space.dtype)


def _observed_box(space: gym_spaces.Box) -> tuple[Space, Write]:
    """A box keeps its shape; bytes stay bytes and every other number becomes float32."""
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    shape = space.shape or (1,)
    return Box(shape, *_bounds(space), dtype), _writer(shape, space.shape)


def _acted_box(space: gym_spaces.Box) -> tuple[Space, ToEnv]:
    """Actions, flat or in their shape, are clipped to the bounds, and rounded if the space has whole numbers."""
    shape, dtype = space.shape or (1,), space.dtype
    low, high = (np.asarray(bound, np.float32).reshape(shape) for bound in (space.low, space.high))
    whole = not np.issubdtype(dtype, np.floating)

    def to_env(actions: np.ndarray) -> np.ndarray:
        # A new array each time, since an environment may keep its last action.
        clipped = np.clip(actions.reshape(-1, *shape), low, high)
        if whole:
            clipped = np.rint(clipped)
        return clipped.astype(dtype, copy=False).reshape(-1, *space.shape)

    return Box(shape, *_bounds(space), dtype.name), to_env


def _flattened(space: gym_spaces.Space, id: str) -> tuple[Space, Write]:
    """All leaves of a Dict or Tuple side by side in one float32 vector, as `gymnasium.spaces.flatten` orders them.

    The space has the position of each leaf, so that a network can read it by name.
    """
    leaves = list(_leaves(space, id))
    sizes = [gym_spaces.flatdim(leaf) for _, leaf in leaves]
    ends = np.cumsum(sizes).tolist()
    parts = [(path, leaf, end - size, end) for (path, leaf), size, end in zip(leaves, sizes, ends, strict=True)]
    flat = gym_spaces.flatten_space(space)
    assert isinstance(flat, gym_spaces.Box)

    def write(obs: Any, rows: np.ndarray, i: int) -> None:
        row = rows[i]
        for path, leaf, begin, end in parts:
            value = obs
            for key in path:
                value = value[key]
            _write_leaf(value, leaf, row[begin:end])

    named = tuple(Part("/".join(map(str, path)), begin, _leaf_space(leaf, id)) for path, leaf, begin, _ in parts)
    return Box((int(ends[-1]) if ends else 0,), *_bounds(flat), parts=named), write


def _leaves(space: gym_spaces.Space, id: str, path: tuple[Any, ...] = ()) -> Any:
    """Each (path, space) that is not itself a Dict or Tuple, in flattening order."""
    match space:
        case gym_spaces.Dict():
            for key, inner in space.spaces.items():
                yield from _leaves(inner, id, (*path, key))
        case gym_spaces.Tuple():
            for index, inner in enumerate(space.spaces):
                yield from _leaves(inner, id, (*path, index))
        case _:
            observation_crossing(space, id)  # refuses spaces that cannot be flattened
            yield path, space


def _leaf_space(leaf: gym_spaces.Space, id: str) -> Space:
    """The space of a leaf; unlike a whole observation it keeps whole numbers, and bits stay numbers."""
    match leaf:
        case gym_spaces.MultiBinary():
            return Box(leaf.shape, (0.0,), (1.0,), "int32")
        case gym_spaces.Box() if np.issubdtype(leaf.dtype, np.integer) and leaf.dtype != np.uint8:
            return Box(leaf.shape or (1,), *_bounds(leaf), "int32")
        case _:
            return observation_crossing(leaf, id)[0]


def _write_leaf(value: Any, leaf: gym_spaces.Space, out: np.ndarray) -> None:
    """Writes numbers unchanged and choices as one-hot vectors; out: [size of the leaf]."""
    match leaf:
        case gym_spaces.Discrete():
            out[:] = 0.0
            out[_index(int(value) - int(leaf.start), int(leaf.n))] = 1.0
        case gym_spaces.MultiDiscrete():
            out[:] = 0.0
            begin = 0
            chosen = (np.asarray(value) - leaf.start).reshape(-1).tolist()
            for choice, n in zip(chosen, np.reshape(leaf.nvec, -1).tolist(), strict=True):
                out[begin + _index(choice, n)] = 1.0
                begin += n
        case _:
            value = np.asarray(value)
            if value.shape != leaf.shape:
                raise ValueError(f"an observation of shape {value.shape} where its space says {leaf.shape}")
            out[:] = value.reshape(-1)


def _index(choice: int, n: int) -> int:
    if not 0 <= choice < n:
        raise ValueError(f"the observation {choice} where its space has the choices 0 to {n - 1}")
    return choice


def _writer(shape: tuple[int, ...], original: tuple[int, ...]) -> Write:
    """Copies an observation of the `original` shape into a row of `shape`, refusing any other shape."""
    same = shape == original

    def write(obs: Any, rows: np.ndarray, i: int) -> None:
        # NumPy would broadcast a wrong shape silently, so shapes are compared first.
        if getattr(obs, "shape", None) != original:
            obs = np.asarray(obs)
            if obs.shape != original:
                raise ValueError(f"an observation of shape {obs.shape} where its space says {original}")
        rows[i] = obs if same else obs.reshape(shape)

    return write


def _write_number(obs: Any, rows: np.ndarray, i: int) -> None:
    rows[i] = int(obs)


def _as_ints(actions: np.ndarray) -> list[np.int64]:
    # NumPy's integers instead of Python's: gymnasium checks them in half the time, in every step.
    return list(actions.astype(np.int64))


def _counts(space: gym_spaces.MultiDiscrete, id: str) -> tuple[int, ...]:
    """The number of options of each choice; refuses choices that do not count from 0."""
    if np.any(np.asarray(space.start) != 0):
        raise UserError(
            f'environment "{id}" has a MultiDiscrete space whose choices do not count from 0, which Steppe does not '
            "support; wrap it so that they do"
        )
    return tuple(int(n) for n in np.reshape(space.nvec, -1))


def _bounds(space: gym_spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(low, high), each shortened to one number if all elements are equal."""
    sides = []
    for bound in (space.low, space.high):
        values = np.asarray(bound, np.float32).reshape(-1)
        sides.append(tuple(values[:1].tolist() if values.size and np.all(values == values[0]) else values.tolist()))
    return sides[0], sides[1]
