"""Nested states as flat dicts of named NumPy arrays, and back: what a checkpoint holds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from steppe.errors import CheckpointError
from steppe.runners import keys


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """{"learner/agent/params": array, ...}; random keys are written as their words. Always copies."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): np.array(jax.random.key_data(leaf) if keys.is_key(leaf) else leaf) for path, leaf in leaves}


def from_arrays(template: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A tree like `template`, whose leaves only need shapes and dtypes, with the values of `arrays`."""

    def restored(path: Any, leaf: Any) -> Any:
        name = _name(path)
        if name not in arrays:
            raise CheckpointError(f'the checkpoint has no "{name}"; it was made by an experiment with other settings')
        array = arrays[name]
        wanted = jax.eval_shape(jax.random.key_data, leaf) if keys.is_key(leaf) else leaf
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise CheckpointError(
                f'the checkpoint\'s "{name}" is {array.dtype} {list(array.shape)}, but this experiment needs '
                f"{wanted.dtype} {list(wanted.shape)}; it was made by an experiment with other settings"
            )
        return keys.wrap(array) if keys.is_key(leaf) else array

    return jax.tree_util.tree_map_with_path(restored, template)


def _name(path: Any) -> str:
    return "/".join(str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part)))) for part in path)
