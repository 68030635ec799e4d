"""Networks in JAX from lists of layers: pure functions of plain nested dictionaries of parameters.

The parameters have flax.linen's names and shapes, and the tests hold every layer to flax's. The layers themselves are
plain JAX, because flax costs 0.2 s to import and traces eight times slower, and start-up time counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from steppe.networks import initial
from steppe.records.layers import Plan, Step, is_channels_first, plan, window_counts
from steppe.specs.network import Conv1d, Conv2d, Dense, Dropout, Flatten, Layer, NetworkSpec, Pool2d
from steppe.specs.spaces import Box, Space

Params = dict[str, dict[str, Array]]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "swish": jax.nn.swish,
    "leaky_relu": jax.nn.leaky_relu,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "softmax": jax.nn.softmax,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "none": lambda inputs: inputs,
}


class Network:
    """The layers between the observation and the agent's heads; hashable, holds no parameters."""

    def __init__(
        self,
        layers: NetworkSpec | Sequence[Layer],
        observation: Space,
        kernel_init: Literal["orthogonal", "lecun"] = "orthogonal",
    ) -> None:
        self.plan: Plan = plan(layers, observation)
        self.kernel_init = kernel_init
        types = {step.layer.type for step in self.plan.steps}
        self.has_dropout = "dropout" in types
        self._needs_one_batch_axis = bool(types & {"conv1d", "conv2d", "pool2d"})
        self._hash = hash((self.plan, kernel_init))

    @property
    def features(self) -> int:
        """The length of the output vector."""
        return self.plan.features

    @property
    def observation(self) -> Space:
        """The space of the raw observations."""
        return self.plan.encoding.space

    @property
    def layers(self) -> NetworkSpec:
        """The layers as a spec, as a policy's description wants them."""
        return NetworkSpec([step.layer for step in self.plan.steps])

    def init(self, rng: np.random.Generator | None) -> initial.HostParams:
        """Fresh parameters: {"0_dense": {"kernel", "bias"}, ...}; layers without parameters are left out."""
        return initial.layers(rng, self.plan.steps, self.kernel_init)

    def apply(self, params: Params, observations: Array, dropout_key: Array | None = None) -> Array:
        """Features [..., F] of raw observations [..., *space.shape]; dropout is active only with a key."""
        encoding = self.plan.encoding
        x = encoding(observations, jnp)
        lead = x.shape[: x.ndim - len(encoding.shape)]
        if self._needs_one_batch_axis and len(lead) != 1:
            x = x.reshape((prod(lead), *encoding.shape))
        for index, step in enumerate(self.plan.steps):
            if isinstance(step.layer, Dropout):
                if dropout_key is not None:
                    x = _drop(x, step.layer.rate, jax.random.fold_in(dropout_key, index))
                continue
            x = _apply_layer(step, params.get(step.name, {}), x)
        return x if x.shape == (*lead, self.features) else x.reshape((*lead, self.features))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and (self.plan, self.kernel_init) == (other.plan, other.kernel_init)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Network({' -> '.join(step.name for step in self.plan.steps)}, features={self.features})"


def default_layers(observation: Space) -> NetworkSpec:
    """Dense layers for vectors; for images the convolutions of Mnih et al. 2015, smaller ones below 36 pixels."""
    if not (isinstance(observation, Box) and observation.is_image):
        return NetworkSpec([Dense(type="dense", size=64, activation="tanh") for _ in range(2)])
    shape = observation.shape
    pixels = min(shape[1:] if is_channels_first(shape) else shape[:2])
    convolutions: list[Layer]
    if pixels >= 36:
        sizes = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        convolutions = [Conv2d(type="conv2d", size=n, window=w, stride=s, padding="VALID") for n, w, s in sizes]
        return NetworkSpec([*convolutions, Flatten(type="flatten"), Dense(type="dense", size=512)])
    convolutions = [Conv2d(type="conv2d", size=n, window=3, stride=s) for n, s in ((32, 1), (64, 2))]
    return NetworkSpec([*convolutions, Flatten(type="flatten"), Dense(type="dense", size=256)])


def apply_head(params: dict[str, Array], features: Array) -> Array:
    """Outputs [..., outputs] of features [..., F]."""
    return features @ params["kernel"] + params["bias"]


def _apply_layer(step: Step, params: dict[str, Array], x: Array) -> Array:
    """One layer on [..., *step.input]; convolutions and pooling want exactly one leading axis."""
    layer = step.layer
    match layer.type:
        case "dense" | "linear":
            x = _flat(x, step) @ params["kernel"]
        case "conv1d" | "conv2d":
            x = _convolve(layer, params["kernel"], x)
        case "pool2d":
            return _pool(layer, x)
        case "flatten":
            return _flat(x, step)
        case "embedding":
            return params["embedding"][x]
        case "layer_norm":
            return _normalize(x) * params["scale"] + params["bias"]
        case "nonlinearity":
            return ACTIVATIONS[layer.name](x)
    if "bias" in params:
        x = x + params["bias"]
    return ACTIVATIONS[getattr(layer, "activation", "none")](x)


def _flat(x: Array, step: Step) -> Array:
    if len(step.input) == 1:
        return x
    return x.reshape((*x.shape[: x.ndim - len(step.input)], prod(step.input)))


def _convolve(layer: Conv1d | Conv2d, kernel: Array, x: Array) -> Array:
    """[B, *positions, channels] with a kernel [*window, channels, size]."""
    names = ("NWC", "WIO", "NWC") if layer.type == "conv1d" else ("NHWC", "HWIO", "NHWC")
    strides = (layer.stride,) * (kernel.ndim - 2)
    return lax.conv_general_dilated(x, kernel, strides, layer.padding, dimension_numbers=names)


def _pool(layer: Pool2d, x: Array) -> Array:
    """[B, H, W, C]; a mean counts only what lies inside the image."""
    window, strides = (1, layer.window, layer.window, 1), (1, layer.stride, layer.stride, 1)
    if layer.pooling_type == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, layer.padding)
    total = lax.reduce_window(x, 0.0, lax.add, window, strides, layer.padding)
    return total / window_counts(layer, x.shape[1:])


def _normalize(x: Array) -> Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-6)


def _drop(x: Array, rate: float, key: Array) -> Array:
    """Zeroes a share of x and scales the rest up, so that the expected value stays."""
    if rate >= 1.0:
        return jnp.zeros_like(x)
    kept: Any = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), 0.0)
