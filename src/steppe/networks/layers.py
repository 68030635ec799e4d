"""Each layer in JAX, as a function of its parameters and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from steppe.networks.convolution import FoldedImages, convolve, convolve_folded
from steppe.networks.products import product
from steppe.policies.custom_layers import apply_module
from steppe.policies.layers import LayerPlan, bend, pair, window_counts
from steppe.specs.learning.network import Pool2d

Params = dict[str, dict[str, Any]]


def _crelu(x: Array) -> Array:
    return jax.nn.relu(jnp.concatenate([x, -x], axis=-1))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "swish": jax.nn.swish,
    "leaky_relu": jax.nn.leaky_relu,
    "crelu": _crelu,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "softmax": jax.nn.softmax,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "none": lambda inputs: inputs,
}


def activate(name: str, x: Array) -> Array:
    """The activation of x [..., F]."""
    return ACTIVATIONS[name](x)


def apply_layer(step: LayerPlan, params: dict[str, Any], x: Any, dropout_key: Array | None = None) -> Array:
    """One layer on [..., *step.input]; convolutions, pooling and custom modules need exactly one leading axis.

    A convolution also takes `FoldedImages`.
    """
    layer: Any = step.layer
    match layer.type:
        case "dense" | "linear":
            inputs = _flat(x, step)
            x = product(inputs, params["kernel"])
            if getattr(layer, "skip", False):
                hidden = _finish(layer, x, params.get("bias"))
                return _finish(layer, inputs + product(hidden, params["skip_kernel"]), params.get("skip_bias"))
        case "conv1d" | "conv2d":
            kernel, strides = params["kernel"], pair(layer.stride, len(step.input) - 1)
            is_folded = isinstance(x, FoldedImages)
            if (x.blocks if is_folded else x).dtype == np.uint8:
                # Dividing the kernel is cheaper than dividing a batch of images.
                kernel = kernel * np.float32(1 / 255)
            x = (convolve_folded if is_folded else convolve)(x, kernel, strides, layer.padding)
        case "pool2d":
            return _pool(layer, x)
        case "flatten":
            return _flat(x, step)
        case "embedding":
            return params["embedding"][x]
        case "layer_norm":
            return _normalize(x) * params["scale"] + params["bias"]
        case "nonlinearity":
            return bend(layer, params, x, activate, jnp)
        case "dropout":
            return drop(x, layer.rate, dropout_key, step)
        case "custom":
            return apply_module(layer, params, x, _own_key(dropout_key, step))
    return _finish(layer, x, params.get("bias"))


def drop(x: Array, rate: float, dropout_key: Array | None, step: LayerPlan) -> Array:
    """Dropout: zeroes a share of x and scales up the rest to keep the expected value; the identity without a key."""
    if dropout_key is None:
        return x
    if rate >= 1.0:
        return jnp.zeros_like(x)
    kept: Any = jax.random.bernoulli(_own_key(dropout_key, step), 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), 0.0)


def _own_key(key: Array | None, step: LayerPlan) -> Any:
    """The layer's own key, from the index at the beginning of its name."""
    return None if key is None else jax.random.fold_in(key, int(step.name.split("_")[0]))


def _finish(layer: Any, x: Array, bias: Array | None) -> Array:
    if bias is not None:
        x = x + bias
    return activate(getattr(layer, "activation", "none"), x)


def _flat(x: Array, step: LayerPlan) -> Array:
    if len(step.input) == 1:
        return x
    return x.reshape((*x.shape[: x.ndim - len(step.input)], prod(step.input)))


def _pool(layer: Pool2d, x: Array) -> Array:
    """Pools [B, H, W, C]; a mean counts only elements inside the image."""
    window, strides = (1, *pair(layer.window, 2), 1), (1, *pair(layer.stride, 2), 1)
    if layer.pooling_type == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, layer.padding)
    total = lax.reduce_window(x, 0.0, lax.add, window, strides, layer.padding)
    return total / window_counts(layer, x.shape[1:])


def _normalize(x: Array) -> Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-6)
