"""A policy as an ONNX model: observation [batch, *shape] -> the greedy action as environments take it, and outputs.

A recurrent policy also takes what it remembers, such as "1_lstm/hidden" [batch, size], zeros where an episode begins,
and gives what to remember next under the same names after "next/". Preprocessing is part of the model, but for frames
that are stacked: such a model takes the stacked, preprocessed observation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.errors import MissingExtra, UserError
from steppe.records import heads
from steppe.records.durable import storing, write_atomically
from steppe.records.encoding import Encoding, one_hot_columns, part_scales
from steppe.records.images import Resampling
from steppe.records.layers import Plan, Step, joined_axis, pair, plan
from steppe.records.preprocessing import EPSILON, Center, Hold, Preprocessing, Reshape, Scale, Stretch
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

if TYPE_CHECKING:
    from steppe.records.policy import Policy

OPSET = 17
IR_VERSION = 8  # what opset 17 came with, so that runtimes of its time load the file
_LAST = np.array([-1])


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
    if own := next((layer for layer in description.network.root if layer.type == "custom"), None):
        raise UserError(f'the layer "{own.module}" is a flax module, which cannot be exported to ONNX')
    network = plan(description.network, description.observation)
    graph = _Graph()
    outputs = graph.call("Identity", _outputs(graph, policy, network), name="outputs")
    graph.call("Identity", _action(graph, policy, outputs), name="action")
    preprocessing, action = description.preprocessing, description.action
    is_stacked = preprocessing is not None and preprocessing.is_stateful
    observation = description.observation if is_stacked else description.shown
    input_type = TensorProto.FLOAT if isinstance(observation, Box) else TensorProto.INT64
    action_type = helper.np_dtype_to_tensor_dtype(np.dtype(action.dtype if isinstance(action, Box) else np.int64))

    def states(prefix: str) -> list[Any]:
        return [
            helper.make_tensor_value_info(f"{prefix}{name}", TensorProto.FLOAT, ["batch", *shape])
            for name, shape in network.states
        ]

    model_graph = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info("observation", input_type, ["batch", *observation.shape]), *states("")],
        [
            helper.make_tensor_value_info("action", action_type, ["batch", *action.shape]),
            helper.make_tensor_value_info(
                "outputs", TensorProto.FLOAT, ["batch", heads.outputs_size(policy.kind, action)]
            ),
            *states("next/"),
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


def _outputs(graph: _Graph, policy: Policy, network: Plan) -> str:
    """Normalise, encode, layers, head: the name of [batch, outputs]."""
    description, tensors = policy.description, policy.tensors
    seen = "observation"
    if description.preprocessing is not None:
        seen = preprocess(graph, description.preprocessing, seen)
    if description.normalizer is not None:
        clip = np.float32(description.normalizer["clip"])
        deviation = np.sqrt(tensors["normalizer/var"] + np.float32(1e-8))
        seen = graph.call("Div", graph.call("Sub", seen, tensors["normalizer/mean"]), deviation)
        seen = graph.call("Clip", seen, -clip, clip)
    is_normalized = description.normalizer is not None

    def apply(step: Step, x: str) -> str:
        params = {name: tensors[f"torso/{step.name}/{name}"] for name, _ in step.parameters}
        return _recurrent(graph, step, params, x) if step.states else _layer(graph, step, params, x)

    x = network.run(
        lambda encoding: _encode(graph, encoding, seen, is_normalized),
        lambda step, values: _join(graph, step, values),
        apply,
    )
    features = graph.call("Reshape", x, np.array([-1, network.features]))

    def dense(part: str) -> str:
        return graph.call("Gemm", features, tensors[f"head/{part}kernel"], tensors[f"head/{part}bias"])

    if "head/kernel" in tensors:
        return dense("")
    advantage = dense("advantage/")
    space = description.action
    choices = space.nvec if isinstance(space, MultiDiscrete) else (heads.outputs_size(policy.kind, space),)
    centred = []
    for size, end in zip(choices, np.cumsum(choices), strict=True):
        part = graph.call("Slice", advantage, np.array([end - size]), np.array([end]), _LAST)
        centred.append(graph.call("Sub", part, graph.call("ReduceMean", part, axes=[-1], keepdims=1)))
    return graph.call("Add", dense("value/"), graph.call("Concat", *centred, axis=-1))


def _action(graph: _Graph, policy: Policy, outputs: str) -> str:
    """The greedy action, as `heads.greedy` and `heads.postprocess` make it."""
    from onnx import TensorProto, helper

    space = policy.description.action
    if policy.kind == "bernoulli":
        chosen = graph.call("Cast", graph.call("Greater", outputs, np.float32(0.0)), to=TensorProto.INT64)
        if isinstance(space, MultiDiscrete):
            return chosen
        assert isinstance(space, Discrete)
        return graph.call("Add", graph.call("Reshape", chosen, np.array([-1])), np.int64(space.start))
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
    action = _within_one(graph, policy.kind, outputs, space.size)
    if policy.kind in heads.STRETCHED:
        action = graph.call("Add", low, graph.call("Mul", graph.call("Add", action, np.float32(1)), (high - low) / 2))
    action = graph.call("Min", graph.call("Max", action, low), high)
    dtype = np.dtype(space.dtype)
    action = graph.call("Round", action) if np.issubdtype(dtype, np.integer) else action
    action = graph.call("Cast", action, to=helper.np_dtype_to_tensor_dtype(dtype))
    return graph.call("Reshape", action, np.array([-1, *space.shape]))


def _within_one(graph: _Graph, kind: str, outputs: str, size: int) -> str:
    """The greedy continuous action [batch, size], within +-1 where its kind is stretched over the bounds."""

    def cut(x: str, start: int) -> str:
        return graph.call("Slice", x, np.array([start]), np.array([start + size]), _LAST)

    match kind:
        case "deterministic":
            return graph.call("Tanh", outputs)
        case "squashed_gaussian":
            return graph.call("Tanh", cut(outputs, 0))
        case "beta":
            positive = graph.call("Add", graph.call("Softplus", outputs), np.float32(1))
            alpha, beta = cut(positive, 0), cut(positive, size)
            share = graph.call("Div", alpha, graph.call("Add", alpha, beta))
            return graph.call("Sub", graph.call("Mul", share, np.float32(2)), np.float32(1))
    return outputs


def preprocess(graph: _Graph, preprocessing: Preprocessing, x: str) -> str:
    """What the stages do to [batch, *shape]; nothing where they stack frames, since then x is stacked already."""
    if preprocessing.is_stateful:
        return x
    shape = preprocessing.observation.shape
    for operation in preprocessing.operations:
        axes = list(range(1, len(shape) + 1))
        match operation:
            case Resampling():
                x, shape = _resampled(graph, operation, shape, x), operation.shape
            case Reshape():
                x, shape = graph.call("Reshape", x, np.array([-1, *operation.shape])), operation.shape
            case Scale():
                x = graph.call("Div", x, np.float32(operation.scale))
            case Hold():
                x = graph.call("Clip", x, np.float32(operation.low), np.float32(operation.high))
            case Center():
                x = graph.call("Sub", x, graph.call("ReduceMean", x, axes=axes, keepdims=1))
                deviation = graph.call("Sqrt", graph.call("ReduceMean", graph.call("Mul", x, x), axes=axes, keepdims=1))
                x = graph.call("Div", x, graph.call("Max", deviation, EPSILON))
            case Stretch():
                least, most = (graph.call(name, x, axes=axes, keepdims=1) for name in ("ReduceMin", "ReduceMax"))
                extent = graph.call("Add", graph.call("Sub", most, least), EPSILON)
                x = graph.call("Div", graph.call("Sub", x, least), extent)
    return x


def _resampled(graph: _Graph, operation: Resampling, shape: tuple[int, ...], x: str) -> str:
    """An image [batch, *shape] multiplied by the weights of its rows and of its columns."""
    for name in ("rows", "columns") if operation.rows_first else ("columns", "rows"):
        matrix = getattr(operation, name)
        if matrix is None:
            continue
        if name == "columns":
            grouped = graph.call("Reshape", x, np.array([-1, operation.group, len(matrix)]))
            x = graph.call("MatMul", grouped, matrix)
        else:
            across = prod((shape if operation.rows_first else operation.shape)[1:])
            x = graph.call("MatMul", matrix, graph.call("Reshape", x, np.array([-1, 1, matrix.shape[-1], across])))
    x = graph.call("Reshape", x, np.array([-1, *operation.shape]))
    return graph.call("Round", x) if operation.in_bytes else x


def _encode(graph: _Graph, encoding: Encoding, x: str, is_normalized: bool) -> str:
    """What `Encoding` does, for [batch, *space.shape]."""
    from onnx import TensorProto

    space = encoding.space
    if encoding.part is not None:
        return _encode_part(graph, encoding, x)
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
    elif (scales := part_scales(space)) is not None:
        x = graph.call("Mul", x, scales)
    return _shaped(graph, encoding, x)


def _encode_part(graph: _Graph, encoding: Encoding, x: str) -> str:
    """What `Encoding` does with a part of a flattened observation [batch, size of the whole]."""
    from onnx import TensorProto

    part = encoding.part
    assert part is not None
    space = part.space

    def cut(start: int, size: int) -> str:
        return graph.call("Slice", x, np.array([part.start + start]), np.array([part.start + start + size]), _LAST)

    if isinstance(space, Box):
        read = cut(0, part.size)
        if encoding.is_integer:
            whole = graph.call("Cast", read, to=TensorProto.INT64)
            return graph.call("Reshape", whole, np.array([-1, *encoding.shape]))
        read = graph.call("Div", read, np.float32(255.0)) if part.is_bytes else read
        return _shaped(graph, encoding, graph.call("Reshape", read, np.array([-1, *space.shape])))
    if not encoding.is_integer:
        return cut(0, part.size)
    if isinstance(space, Discrete):
        return graph.call("ArgMax", cut(0, space.n), axis=-1, keepdims=0)
    ends = np.cumsum(space.nvec).tolist()
    pieces = [cut(end - n, n) for n, end in zip(space.nvec, ends, strict=True)]
    return graph.call("Concat", *(graph.call("ArgMax", each, axis=-1, keepdims=1) for each in pieces), axis=1)


def _shaped(graph: _Graph, encoding: Encoding, x: str) -> str:
    if encoding.is_transposed:
        x = graph.call("Transpose", x, perm=[0, 2, 3, 1])
    return graph.call("Reshape", x, np.array([-1, *encoding.shape]))


def _join(graph: _Graph, step: Step, values: list[str]) -> str:
    """Several inputs [batch, *shape] as one."""
    layer: Any = step.layer
    match layer.aggregation_type:
        case "concat":
            return graph.call("Concat", *values, axis=joined_axis(layer, len(step.output)))
        case "product":
            return reduce(lambda one, other: graph.call("Mul", one, other), values)
    return graph.call({"sum": "Sum", "max": "Max", "mean": "Mean"}[layer.aggregation_type], *values)


def _recurrent(graph: _Graph, step: Step, params: dict[str, np.ndarray], x: str) -> str:
    """One timestep of `steppe.records.cells`; the state after it is an output of the model."""
    layer: Any = step.layer
    size = layer.size
    names = [name for name, _ in step.states]
    flat = graph.call("Reshape", x, np.array([-1, params["kernel"].shape[0]]))
    projected = graph.call("Gemm", flat, params["kernel"], params["bias"])
    recurrent = graph.call("MatMul", names[0], params["recurrent_kernel"])

    def cut(gates: str, first: int, last: int) -> str:
        return graph.call("Slice", gates, np.array([first * size]), np.array([last * size]), _LAST)

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


def _layer(graph: _Graph, step: Step, params: dict[str, np.ndarray], x: str) -> str:
    """One layer on [batch, *step.input], channels last."""
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
            return _bend(graph, layer, params, x)
        case "dropout":
            return x
    return _activate(graph, getattr(layer, "activation", "none"), x)


def _channels_first(graph: _Graph, step: Step, x: str, operate: Callable[..., str]) -> str:
    """`operate` with the channels moved in front of the positions, and back."""
    layer: Any = step.layer
    axes = len(step.input) - 1
    x = graph.call("Transpose", x, perm=[0, axes + 1, *range(1, axes + 1)])
    auto_pad = "SAME_UPPER" if layer.padding == "SAME" else "VALID"
    windows, strides = pair(layer.window, axes), pair(layer.stride, axes)
    x = operate(x, kernel_shape=windows, strides=strides, auto_pad=auto_pad)
    return graph.call("Transpose", x, perm=[0, *range(2, axes + 2), 1])


def _bend(graph: _Graph, layer: Any, params: dict[str, np.ndarray], x: str) -> str:
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


def _activate(graph: _Graph, name: str, x: str) -> str:
    """The activation, as jax.nn defines it."""
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
