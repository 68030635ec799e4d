"""Nested states as flat dicts of named NumPy arrays, as in checkpoints, and back.

Only the filled part of a replay memory is kept.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from steppe.errors import CheckpointError
from steppe.memories import ReplayState, compact, restore
from steppe.runners import keys


def below(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """{"learner/agent/params": array, ...}; random keys become their words. Always copies."""
    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, _is_memory)[0]:
        if _is_memory(leaf):
            inner = jax.tree_util.tree_flatten_with_path(compact(leaf))[0]
            arrays |= {_name((*path, *below)): array for below, array in inner}
        else:
            arrays[_name(path)] = np.array(jax.random.key_data(leaf) if keys.is_key(leaf) else leaf)
    return arrays


def from_arrays(template: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A tree like `template`, whose leaves only need shapes and dtypes, with the values of `arrays`."""

    def restored(path: Any, leaf: Any) -> Any:
        name = _name(path)
        if _is_memory(leaf):
            return _memory(name, leaf, arrays)
        array = _found(name, arrays)
        wanted = jax.eval_shape(jax.random.key_data, leaf) if keys.is_key(leaf) else leaf
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise CheckpointError(
                f'the checkpoint\'s "{name}" is {array.dtype} {list(array.shape)}, but this experiment needs '
                f"{wanted.dtype} {list(wanted.shape)}; it was made by an experiment with other settings"
            )
        return keys.wrap(array) if keys.is_key(leaf) else array

    return jax.tree_util.tree_map_with_path(restored, template, is_leaf=_is_memory)


def _memory(name: str, template: ReplayState, arrays: dict[str, np.ndarray]) -> ReplayState:
    """Restores a replay memory; those saved by older versions have no frames."""
    has_frames = any(each.startswith(f"{name}/frames/") for each in arrays)
    like = template if has_frames else template._replace(frames=())
    saved = jax.tree_util.tree_map_with_path(lambda path, _: _found(f"{name}/{_name(path)}", arrays), like)
    try:
        return restore(template, saved)
    except ValueError as error:
        raise CheckpointError(
            f'the checkpoint\'s "{name}" does not fit: {error}; it was made by an experiment with other settings'
        ) from error


def _found(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    if name not in arrays:
        raise CheckpointError(f'the checkpoint has no "{name}"; it was made by an experiment with other settings')
    return arrays[name]


def _is_memory(node: Any) -> bool:
    return isinstance(node, ReplayState)


def _name(path: Any) -> str:
    return "/".join(str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part)))) for part in path)
