"""The forward pass of a network in NumPy, for acting without JAX, or if calling JAX costs more than the computation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from steppe.policies import cells
from steppe.policies.custom_layers import module_in_numpy
from steppe.policies.layers import LayerPlan, NetworkPlan, bend, join, padding_of, pair, window_counts

Array = np.ndarray
State = dict[str, Array]
"""The states of recurrent layers: {"1_lstm/hidden": [B, size], ...}; {} without such layers."""
Layers = Any
"""The result of `Forward.prepare`: one version of the parameters, ready for use."""

BUFFERED_BATCH_SIZES = 8


class Forward:
    """Runs one network; may be shared by threads, each with its own version of the parameters."""

    def __init__(self, plan: NetworkPlan) -> None:
        self.plan = plan
        self._is_dense = _is_dense(plan)
        self._thread = threading.local()

    def prepare(self, tensors: Mapping[str, Array]) -> Layers:
        """The layers with their parameters, named "<layer>/<parameter>" as in "0_dense/kernel"."""
        if self._is_dense:
            return [_dense(step, tensors) for step in self.plan.steps if step.layer.type in ("dense", "linear")]
        return {step.name: _layer(step, _parameters(step, tensors)) for step in self.plan.steps}

    def __call__(self, layers: Layers, observations: Array) -> Array:
        """Features [B, F] of observations [B, *space.shape]; this thread's next call with the same B overwrites it."""
        if not self._is_dense:
            return self.advance(layers, observations, {})[0]
        assert self.plan.encoding is not None
        x = self.plan.encoding(observations)
        for (kernel, bias, activation), buffer in zip(layers, self._buffers(len(x), layers), strict=True):
            x = np.dot(x, kernel, out=buffer)
            if bias is not None:
                x += bias
            if activation is not None:
                x = activation(x)
        return x

    def shortcut(self, layers: Layers, head: tuple[Array, Array]) -> Callable[[Array], Array] | None:
        """A function from one observation [n] to the head's outputs in as few NumPy calls as possible.

        None if the input is not plain numbers or a layer is not dense. A policy that is called now and then finds cold
        processor caches, so that each NumPy call takes many times as long as in a loop.
        """
        if not self._is_dense or self.plan.encoding is None or not self.plan.encoding.is_plain:
            return None
        steps = [*layers, (*head, None)]

        def outputs(x: Array) -> Array:
            for kernel, bias, activation in steps:
                x = x.dot(kernel)
                if bias is not None:
                    x += bias
                if activation is not None:
                    x = activation(x)
            return x

        return outputs

    def initial_state(self, lead: tuple[int, ...]) -> State:
        """The state at the beginning of an episode: zeros [*lead, size]."""
        return {name: np.zeros((*lead, *shape), np.float32) for name, shape in self.plan.states}

    def advance(self, layers: Layers, observations: Array, state: State) -> tuple[Array, State]:
        """(features [B, F], the state after) of observations [B, *space.shape] that come after `state`."""
        if self._is_dense:
            return self(layers, observations), {}
        after: State = {}

        def apply(step: LayerPlan, x: Array) -> Array:
            if not step.states:
                return layers[step.name](x)
            later = layers[step.name](x, tuple(state[name] for name, _ in step.states))
            after.update((name, each) for (name, _), each in zip(step.states, later, strict=True))
            return later[0]

        x = self.plan.run(lambda encoding: encoding(observations), join, apply)
        return x.reshape(len(x), self.plan.features), after

    def _buffers(self, batch: int, layers: Layers) -> list[Array]:
        """One array [batch, size] for each dense layer, per thread, since a product releases the interpreter lock."""
        try:
            return self._thread.buffers[batch]
        except (AttributeError, KeyError):
            buffers = self._thread.__dict__.setdefault("buffers", {})
            if len(buffers) >= BUFFERED_BATCH_SIZES:
                buffers.clear()
            buffers[batch] = [np.empty((batch, kernel.shape[1]), np.float32) for kernel, _, _ in layers]
            return buffers[batch]


def activate(name: str, x: Array) -> Array:
    """The activation of x [..., F]; may overwrite x."""
    return _ACTIVATIONS[name](x)


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0), out=x)


def _tanh(x: Array) -> Array:
    return np.tanh(x, out=x)


def _sigmoid(x: Array) -> Array:
    # By tanh, since exp overflows for large negative inputs.
    x *= np.float32(0.5)
    np.tanh(x, out=x)
    x += np.float32(1)
    x *= np.float32(0.5)
    return x


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


def _selu(x: Array) -> Array:
    # The fixed point of Klambauer et al. 2017 (arXiv:1706.02515), eq. 14.
    return np.float32(1.0507009873554805) * _elu(x, 1.6732632423543772)


def _gelu(x: Array) -> Array:
    # The approximation of Hendrycks and Gimpel (arXiv:1606.08415), as jax.nn.gelu computes it.
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def _softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _crelu(x: Array) -> Array:
    return _relu(np.concatenate([x, -x], axis=-1))


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "elu": _elu,
    "selu": _selu,
    "sigmoid": _sigmoid,
    "swish": lambda x: x * _sigmoid(x.copy()),
    "leaky_relu": lambda x: np.maximum(x, np.float32(0.01) * x),
    "crelu": _crelu,
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softmax": _softmax,
    "tanh": _tanh,
    "gelu": _gelu,
    "none": lambda x: x,
}


def _is_dense(plan: NetworkPlan) -> bool:
    """Whether all layers are dense layers on vectors, which run in preallocated buffers."""
    types = {step.layer.type for step in plan.steps}
    is_plain = all(len(step.input) == 1 and not getattr(step.layer, "skip", False) for step in plan.steps)
    return types <= {"dense", "linear", "dropout"} and is_plain


def _dense(
    step: LayerPlan, tensors: Mapping[str, Array]
) -> tuple[Array, Array | None, Callable[[Array], Array] | None]:
    """(kernel, bias, activation) of a dense layer."""
    params = _parameters(step, tensors)
    activation = getattr(step.layer, "activation", "none")
    return params["kernel"], params.get("bias"), None if activation == "none" else _ACTIVATIONS[activation]


def _parameters(step: LayerPlan, tensors: Mapping[str, Array]) -> dict[str, Array]:
    return {name: tensors[f"{step.name}/{name}"] for name, _ in step.parameters}


def _layer(step: LayerPlan, params: dict[str, Array]) -> Callable[..., Any]:
    """One layer as a function of x [B, *step.input]; a recurrent one maps (x, state) to the next state."""
    layer: Any = step.layer
    match layer.type:
        case "dense" if layer.skip:
            return lambda x: _residual(x.reshape(len(x), -1), params, layer)
        case "dense" | "linear":
            return lambda x: _finish(x.reshape(len(x), -1) @ params["kernel"], params.get("bias"), layer)
        case "conv1d" | "conv2d":
            columns, bias = params["kernel"].reshape(-1, layer.size), params.get("bias")
            return lambda x: _finish(_windows(x, step, 0.0) @ columns, bias, layer).reshape(len(x), *step.output)
        case "pool2d":
            return lambda x: _pool(x, step)
        case "flatten":
            return lambda x: x.reshape(len(x), -1)
        case "embedding":
            return lambda x: params["embedding"][x]
        case "layer_norm":
            return lambda x: _normalize(x) * params["scale"] + params["bias"]
        case "nonlinearity":
            return lambda x: bend(layer, params, x, activate, np)
        case "lstm" | "internal_lstm" | "gru":
            return lambda x, state: cells.advance(
                layer.type, params, cells.project(params, x.reshape(len(x), -1)), state
            )
        case "custom":
            return module_in_numpy(layer, params)
    return lambda x: x


def _finish(x: Array, bias: Array | None, layer: Any) -> Array:
    if bias is not None:
        x += bias
    return activate(getattr(layer, "activation", "none"), x)


def _residual(x: Array, params: dict[str, Array], layer: Any) -> Array:
    hidden = _finish(x @ params["kernel"], params.get("bias"), layer)
    return _finish(x + hidden @ params["skip_kernel"], params.get("skip_bias"), layer)


def _windows(x: Array, step: LayerPlan, fill: float) -> Array:
    """Every window of x [B, *positions, C] as a row: [B * stops, window ** axes * C], padded with `fill`."""
    layer: Any = step.layer
    positions = step.input[:-1]
    windows, strides = pair(layer.window, len(positions)), pair(layer.stride, len(positions))
    sides = [padding_of(*each, layer.padding) for each in zip(positions, windows, strides, strict=True)]
    if any(map(any, sides)):
        sizes = [before + size + after for size, (before, after) in zip(positions, sides, strict=True)]
        padded = np.full((len(x), *sizes, x.shape[-1]), fill, np.float32)
        inside = tuple(slice(before, before + size) for size, (before, _) in zip(positions, sides, strict=True))
        padded[(slice(None), *inside)] = x
        x = padded
    views = sliding_window_view(x, windows, axis=tuple(range(1, len(positions) + 1)))
    views = views[(slice(None), *(slice(None, None, stride) for stride in strides))]
    # The channels go last, as in the kernel's rows, so that the copy moves contiguous memory.
    views = np.moveaxis(views, len(positions) + 1, -1)
    return views.reshape(len(x) * prod(step.output[:-1]), -1)


def _pool(x: Array, step: LayerPlan) -> Array:
    layer: Any = step.layer
    is_max = layer.pooling_type == "max"
    rows = _windows(x, step, -np.inf if is_max else 0.0).reshape(len(x), *step.output[:-1], -1, x.shape[-1])
    return rows.max(-2) if is_max else rows.sum(-2) / window_counts(layer, step.input)


def _normalize(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(1e-6))
