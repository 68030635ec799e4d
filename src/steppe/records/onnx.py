"""A policy as an ONNX model: observation [batch, *shape] -> the greedy action as environments take it, and outputs."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.errors import MissingExtra, UserError
from steppe.records import heads
from steppe.records.durable import storing, write_atomically
from steppe.records.layers import Encoding, Step, one_hot_columns, plan
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

if TYPE_CHECKING:
    from steppe.records.policy import Policy

OPSET = 17
IR_VERSION = 8  # what opset 17 came with, so that runtimes of its time load the file


def export(policy: Policy, path: Path) -> Path:
    """Writes the model to `path` and returns it."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra("exporting to ONNX", "onnx") from error
    model = build(policy)
    onnx.checker.check_model(model, full_check=True)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, model.SerializeToString())
    return path


def build(policy: Policy) -> Any:
    """The model of a policy with a network; input float32, or int64 where observations are choices."""
    from onnx import TensorProto, helper

    description = policy.description
    if description.network is None or policy.kind in ("random", "constant"):
        raise UserError(f'a policy with a "{policy.kind}" head has no network to export to ONNX')
    graph = _Graph()
    outputs = graph.call("Identity", _outputs(graph, policy), name="outputs")
    graph.call("Identity", _action(graph, policy, outputs), name="action")
    observation, action = description.observation, description.action
    input_type = TensorProto.FLOAT if isinstance(observation, Box) else TensorProto.INT64
    action_type = helper.np_dtype_to_tensor_dtype(np.dtype(action.dtype if isinstance(action, Box) else np.int64))
    model_graph = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info("observation", input_type, ["batch", *observation.shape])],
        [
            helper.make_tensor_value_info("action", action_type, ["batch", *action.shape]),
            helper.make_tensor_value_info(
                "outputs", TensorProto.FLOAT, ["batch", heads.outputs_size(policy.kind, action)]
            ),
        ],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(model_graph, producer_name="steppe", opset_imports=opsets, ir_version=IR_VERSION)
    helper.set_model_props(model, {"agent": description.agent, "environment": description.environment})
    return model


class _Graph:
    """Collects nodes and constants under fresh names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def call(self, operator: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """Adds a node and returns its output's name; arrays among the inputs become constants."""
        from onnx import helper

        name = name or f"{operator.lower()}_{len(self.nodes)}"
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def _constant(self, value: Any) -> str:
        from onnx import numpy_helper

        array = np.asarray(value)
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name


def _outputs(graph: _Graph, policy: Policy) -> str:
    """Normalise, encode, layers, head: the name of [batch, outputs]."""
    description, tensors = policy.description, policy.tensors
    assert description.network is not None
    network = plan(description.network, description.observation)
    x = "observation"
    if description.normalizer is not None:
        clip = np.float32(description.normalizer["clip"])
        deviation = np.sqrt(tensors["normalizer/var"] + np.float32(1e-8))
        x = graph.call("Div", graph.call("Sub", x, tensors["normalizer/mean"]), deviation)
        x = graph.call("Clip", x, -clip, clip)
    x = _encode(graph, network.encoding, x, is_normalized=description.normalizer is not None)
    for step in network.steps:
        params = {name: tensors[f"torso/{step.name}/{name}"] for name, _ in step.parameters}
        x = _layer(graph, step, params, x)
    features = graph.call("Reshape", x, np.array([-1, network.features]))

    def dense(part: str) -> str:
        return graph.call("Gemm", features, tensors[f"head/{part}kernel"], tensors[f"head/{part}bias"])

    if "head/kernel" in tensors:
        return dense("")
    advantage = dense("advantage/")
    mean = graph.call("ReduceMean", advantage, axes=[-1], keepdims=1)
    return graph.call("Add", dense("value/"), graph.call("Sub", advantage, mean))


def _action(graph: _Graph, policy: Policy, outputs: str) -> str:
    """The greedy action, as `heads.greedy` and `heads.postprocess` make it."""
    from onnx import helper

    space = policy.description.action
    if isinstance(space, Discrete):
        return graph.call("Add", graph.call("ArgMax", outputs, axis=-1, keepdims=0), np.int64(space.start))
    if isinstance(space, MultiDiscrete):
        ends = np.cumsum(space.nvec)
        pieces = [
            graph.call("Slice", outputs, np.array([end - n]), np.array([end]), np.array([1]))
            for n, end in zip(space.nvec, ends, strict=True)
        ]
        return graph.call("Concat", *(graph.call("ArgMax", piece, axis=-1, keepdims=1) for piece in pieces), axis=1)
    low, high = (bound.ravel() for bound in space.bounds())
    action = graph.call("Min", graph.call("Max", outputs, low), high)
    dtype = np.dtype(space.dtype)
    action = graph.call("Round", action) if np.issubdtype(dtype, np.integer) else action
    action = graph.call("Cast", action, to=helper.np_dtype_to_tensor_dtype(dtype))
    return graph.call("Reshape", action, np.array([-1, *space.shape]))


def _encode(graph: _Graph, encoding: Encoding, x: str, is_normalized: bool) -> str:
    """What `Encoding` does, for [batch, *space.shape]."""
    from onnx import TensorProto

    space = encoding.space
    if isinstance(space, Discrete) and space.start:
        x = graph.call("Sub", x, np.int64(space.start))
    if encoding.is_integer:
        return graph.call("Cast", x, to=TensorProto.INT64)
    if isinstance(space, Discrete):
        column = graph.call("Unsqueeze", x, np.array([1]))
        return graph.call("Cast", graph.call("Equal", column, np.arange(space.n)), to=TensorProto.FLOAT)
    if isinstance(space, MultiDiscrete):
        group, option = one_hot_columns(space)
        chosen = graph.call("Gather", x, group, axis=1)
        return graph.call("Cast", graph.call("Equal", chosen, option), to=TensorProto.FLOAT)
    if space.dtype == "uint8" and not is_normalized:
        x = graph.call("Div", x, np.float32(255.0))
    if encoding.is_transposed:
        x = graph.call("Transpose", x, perm=[0, 2, 3, 1])
    return graph.call("Reshape", x, np.array([-1, *encoding.shape]))


def _layer(graph: _Graph, step: Step, params: dict[str, np.ndarray], x: str) -> str:
    """One layer on [batch, *step.input], channels last."""
    layer: Any = step.layer
    match layer.type:
        case "dense" | "linear":
            flat = graph.call("Reshape", x, np.array([-1, params["kernel"].shape[0]]))
            x = graph.call("Gemm", flat, params["kernel"], *([params["bias"]] if "bias" in params else []))
        case "conv1d" | "conv2d":
            # ONNX wants kernels [out, in, *window] where XLA has [*window, in, out].
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
            return _activate(graph, layer.name, x)
        case "dropout":
            return x
    return _activate(graph, getattr(layer, "activation", "none"), x)


def _channels_first(graph: _Graph, step: Step, x: str, operate: Callable[..., str]) -> str:
    """`operate` with the channels moved in front of the positions, and back."""
    layer: Any = step.layer
    axes = len(step.input) - 1
    x = graph.call("Transpose", x, perm=[0, axes + 1, *range(1, axes + 1)])
    auto_pad = "SAME_UPPER" if layer.padding == "SAME" else "VALID"
    x = operate(x, kernel_shape=[layer.window] * axes, strides=[layer.stride] * axes, auto_pad=auto_pad)
    return graph.call("Transpose", x, perm=[0, *range(2, axes + 2), 1])


def _activate(graph: _Graph, name: str, x: str) -> str:
    """The activation, as jax.nn defines it."""
    match name:
        case "none":
            return x
        case "swish":
            return graph.call("Mul", x, graph.call("Sigmoid", x))
        case "leaky_relu":
            return graph.call("LeakyRelu", x, alpha=0.01)
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
