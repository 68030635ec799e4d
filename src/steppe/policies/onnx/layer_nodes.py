"""The layers of an exported model, equal to those of `steppe.policies.forward` in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import sqrt
from typing import Any

import numpy as np

from steppe.policies.layers import LayerPlan, joined_axis, pair
from steppe.policies.onnx.model import OnnxGraph


def join(graph: OnnxGraph, step: LayerPlan, values: list[str]) -> str:
    """Several inputs [batch, *shape] as one."""
    layer: Any = step.layer
    match layer.aggregation_type:
        case "concat":
            return graph.call("Concat", *values, axis=joined_axis(layer, len(step.output)))
        case "product":
            return reduce(lambda one, other: graph.call("Mul", one, other), values)
    return graph.call({"sum": "Sum", "max": "Max", "mean": "Mean"}[layer.aggregation_type], *values)


def apply(graph: OnnxGraph, step: LayerPlan, params: dict[str, np.ndarray], x: str) -> str:
    """One layer on [batch, *step.input], channels last; the next state of a recurrent layer is an output."""
    if step.states:
        return _recurrent(graph, step, params, x)
    layer: Any = step.layer
    match layer.type:
        case "dense" | "linear":
            flat = graph.call("Reshape", x, np.array([-1, params["kernel"].shape[0]]))
            x = graph.call("Gemm", flat, params["kernel"], *([params["bias"]] if "bias" in params else []))
            if getattr(layer, "skip", False):
                inner = _activate(graph, layer.activation, x)
                bias = [params["skip_bias"]] if "skip_bias" in params else []
                x = graph.call("Add", graph.call("Gemm", inner, params["skip_kernel"], *bias), flat)
        case "conv1d" | "conv2d":
            # ONNX has kernels [out, in, *window], XLA has [*window, in, out].
            weights = [np.moveaxis(params["kernel"], (-1, -2), (0, 1)), *([params["bias"]] if "bias" in params else [])]
            x = _channels_first(graph, step, x, lambda each, **window: graph.call("Conv", each, *weights, **window))
        case "pool2d":
            operator = "MaxPool" if layer.pooling_type == "max" else "AveragePool"
            return _channels_first(graph, step, x, lambda each, **window: graph.call(operator, each, **window))
        case "flatten":
            return graph.call("Flatten", x, axis=1)
        case "embedding":
            return graph.call("Gather", params["embedding"], x, axis=0)
        case "layer_norm":
            return graph.call("LayerNormalization", x, params["scale"], params["bias"], axis=-1, epsilon=1e-6)
        case "nonlinearity":
            return _bend(graph, layer, params, x)
        case "dropout":
            return x
    return _activate(graph, getattr(layer, "activation", "none"), x)


def _recurrent(graph: OnnxGraph, step: LayerPlan, params: dict[str, np.ndarray], x: str) -> str:
    """One timestep of `steppe.policies.cells`; the next state is an output of the model."""
    layer: Any = step.layer
    size = layer.size
    names = [name for name, _ in step.states]
    flat = graph.call("Reshape", x, np.array([-1, params["kernel"].shape[0]]))
    projected = graph.call("Gemm", flat, params["kernel"], params["bias"])
    recurrent = graph.call("MatMul", names[0], params["recurrent_kernel"])

    def cut(gates: str, first: int, last: int) -> str:
        return graph.cut(gates, first * size, last * size)

    if layer.type == "gru":
        gates = graph.call("Sigmoid", graph.call("Add", cut(projected, 0, 2), cut(recurrent, 0, 2)))
        kept = graph.call("Mul", cut(gates, 0, 1), graph.call("Add", cut(recurrent, 2, 3), params["recurrent_bias"]))
        candidate = graph.call("Tanh", graph.call("Add", cut(projected, 2, 3), kept))
        change = graph.call("Mul", cut(gates, 1, 2), graph.call("Sub", names[0], candidate))
        return graph.call("Add", candidate, change, name=f"next/{names[0]}")
    gates = graph.call("Add", projected, recurrent)
    into, forget, out = (graph.call("Sigmoid", cut(gates, at, at + 1)) for at in (0, 1, 3))
    new = graph.call("Mul", into, graph.call("Tanh", cut(gates, 2, 3)))
    cell = graph.call("Add", graph.call("Mul", forget, names[1]), new, name=f"next/{names[1]}")
    return graph.call("Mul", out, graph.call("Tanh", cell), name=f"next/{names[0]}")


def _channels_first(graph: OnnxGraph, step: LayerPlan, x: str, operate: Callable[..., str]) -> str:
    """Applies `operate` with the channels first, and moves them back."""
    layer: Any = step.layer
    axes = len(step.input) - 1
    x = graph.call("Transpose", x, perm=[0, axes + 1, *range(1, axes + 1)])
    auto_pad = "SAME_UPPER" if layer.padding == "SAME" else "VALID"
    windows, strides = pair(layer.window, axes), pair(layer.stride, axes)
    x = operate(x, kernel_shape=windows, strides=strides, auto_pad=auto_pad)
    return graph.call("Transpose", x, perm=[0, *range(2, axes + 2), 1])


def _bend(graph: OnnxGraph, layer: Any, params: dict[str, np.ndarray], x: str) -> str:
    """f(clip(beta x)); swish is the exception that multiplies by x itself."""
    scaled = x
    if layer.beta != 1.0:
        scaled = graph.call("Mul", x, params["beta"] if layer.beta == "learn" else np.float32(layer.beta))
    if layer.max is not None:
        scaled = graph.call("Min", scaled, np.float32(layer.max))
    if layer.min is not None:
        scaled = graph.call("Max", scaled, np.float32(layer.min))
    if layer.alpha is not None:
        return graph.call("LeakyRelu", scaled, alpha=layer.alpha)
    if layer.name == "swish":
        return graph.call("Mul", x, graph.call("Sigmoid", scaled))
    return _activate(graph, layer.name, scaled)


def _activate(graph: OnnxGraph, name: str, x: str) -> str:
    """The activation as in jax.nn."""
    match name:
        case "none":
            return x
        case "swish":
            return graph.call("Mul", x, graph.call("Sigmoid", x))
        case "leaky_relu":
            return graph.call("LeakyRelu", x, alpha=0.01)
        case "crelu":
            return graph.call("Relu", graph.call("Concat", x, graph.call("Neg", x), axis=-1))
        case "softmax":
            return graph.call("Softmax", x, axis=-1)
        case "selu":
            return graph.call("Selu", x, alpha=1.6732632423543772, gamma=1.0507009873554805)
        case "gelu":
            # ONNX has Gelu from opset 20 on; this is its tanh approximation.
            cube = graph.call("Mul", graph.call("Mul", graph.call("Mul", x, x), x), np.float32(0.044715))
            inner = graph.call("Mul", graph.call("Add", x, cube), np.float32(sqrt(2 / np.pi)))
            gate = graph.call("Add", graph.call("Tanh", inner), np.float32(1))
            return graph.call("Mul", graph.call("Mul", x, gate), np.float32(0.5))
    # Relu, Elu, Sigmoid, Softplus, Softsign and Tanh are called alike.
    return graph.call(name.capitalize(), x)
