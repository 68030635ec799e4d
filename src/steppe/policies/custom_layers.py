"""Custom layers: flax.linen modules named by their path, such as "my_layers:MyLayer".

A module maps features [B, ...] to features [B, ...]. Only its parameters are kept. Other collections, such as batch
statistics, would change outside the optimiser and are refused.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from steppe.errors import MissingExtra, SpecError, UserError
from steppe.policies.encoding import Shape
from steppe.specs.learning.network import Custom
from steppe.specs.loading.suggestions import did_you_mean

Tree = dict[str, Any]


def module_shapes(layer: Custom, shape: Shape) -> tuple[Shape, dict[str, Shape]]:
    """(output shape, parameter shapes by names such as "Dense_0/kernel") of a module that gets samples of `shape`."""
    module = load_module(layer)
    import jax

    example = jax.ShapeDtypeStruct((2, *shape), np.float32)
    output, variables = _run(layer, lambda: jax.eval_shape(module.init_with_output, jax.random.key(0), example))
    if others := sorted(variables.keys() - {"params"}):
        raise UserError(f'{_called(layer)} keeps "{others[0]}", but Steppe keeps parameters only; use another layer')
    if not hasattr(output, "shape") or output.shape[:1] != (2,):
        raise UserError(f"{_called(layer)} must give features for each row [B, ...] that it gets")
    parameters = _flat(variables.get("params", {}))
    return output.shape[1:], {name: leaf.shape for name, leaf in parameters.items()}


def draw_module(layer: Custom, shape: Shape, rng: np.random.Generator) -> Tree:
    """Fresh parameters, drawn by the module itself."""
    module, example = load_module(layer), np.zeros((1, *shape), np.float32)
    import jax

    key = jax.random.key(int(rng.integers(2**31)))
    variables = _run(layer, lambda: jax.jit(module.init)(key, example))
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), dict(variables.get("params", {})))


def apply_module(layer: Custom, params: Tree, x: Any, dropout_key: Any = None) -> Any:
    """[B, ...] -> [B, ...] in JAX; a dropout layer inside gets the key as its "dropout" stream."""
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    return load_module(layer).apply({"params": params}, x, rngs=rngs)


def module_in_numpy(layer: Custom, tensors: dict[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The module with its parameters, named as in `module_shapes`, for arrays of NumPy; compiled by JAX."""
    load_module(layer)
    import jax

    params = nested(tensors)
    compiled = jax.jit(lambda params, x: apply_module(layer, params, x))
    return lambda x: np.array(compiled(params, x))


def nested(tensors: dict[str, Any]) -> Tree:
    """{"Dense_0/kernel": k} -> {"Dense_0": {"kernel": k}}."""
    tree: Tree = {}
    for name, leaf in tensors.items():
        *path, last = name.split("/")
        inside = tree
        for word in path:
            inside = inside.setdefault(word, {})
        inside[last] = leaf
    return tree


@lru_cache(maxsize=64)
def load_module(layer: Custom) -> Any:
    """Imports the module and constructs it with its arguments; only flax modules are called.

    Importing runs code, so callers that read a network from a file or a message check it with `AllowedModules` first.
    """
    try:
        import flax.linen as nn
    except ImportError as error:
        raise MissingExtra(_called(layer), "flax") from error
    path, _, name = layer.module.partition(":")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        # A console script does not have the user's folder on its path, `python -m` does.
        sys.path.append(str(Path.cwd()))
    try:
        found: Any = importlib.import_module(path)
    except SystemExit as error:
        raise UserError(f'{_called(layer)} cannot be used: its module "{path}" ends the program') from error
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            raise SpecError(f'{_called(layer)} is in no module "{path}" in {Path.cwd()} or installed') from error
        raise SpecError(f'{_called(layer)} needs the Python module "{error.name}", which is not installed') from error
    choices = [word for word, value in vars(found).items() if isinstance(value, type) and issubclass(value, nn.Module)]
    for word in name.split("."):
        found = getattr(found, word, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        way_out = did_you_mean(name, choices) or "; write it as a subclass of flax.linen.Module"
        raise SpecError(f"{_called(layer)} is not a flax module{way_out}")
    return _run(layer, lambda: found(**{key: _frozen(value) for key, value in layer.arguments.items()}))


def _run(layer: Custom, make: Callable[[], Any]) -> Any:
    """Calls the user's code, and turns any exception of it into one sentence."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        said = str(error).strip().split("\n")[0]
        raise UserError(
            f"{_called(layer)} with the arguments {layer.arguments} raised {type(error).__name__}: {said}"
        ) from error


def _called(layer: Custom) -> str:
    return f'the layer "{layer.module}"'


def _frozen(value: Any) -> Any:
    # JSON has lists only, and fields of flax modules must be hashable.
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not hasattr(tree, "items"):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}/{name}" if prefix else str(name))
    return flat
