"""The part of an exported model before the first layer: preprocessing, then encoding."""

from __future__ import annotations

from math import prod

import numpy as np

from steppe.policies.encoding import Encoding, one_hot_columns, part_scales
from steppe.policies.images import Resampling
from steppe.policies.onnx.model import OnnxGraph
from steppe.policies.preprocessing import (
    EPISODE_BEGUN,
    EPSILON,
    STATE_PREFIX,
    Center,
    Hold,
    Preprocessing,
    Reshape,
    Scale,
    Stack,
    Stretch,
)
from steppe.specs.spaces import Box, Discrete, MultiDiscrete


def preprocess(graph: OnnxGraph, preprocessing: Preprocessing, x: str) -> str:
    """The stages on [batch, *shape]; stacked frames are inputs and outputs of the model, as states."""
    if preprocessing.is_stateful:
        # 0 before the first observation of an episode, 1 from then on.
        nothing = graph.call("Mul", EPISODE_BEGUN, np.float32(0.0))
        graph.call("Add", nothing, np.float32(1.0), name=f"next/{EPISODE_BEGUN}")
    shape = preprocessing.observation.shape
    for operation in preprocessing.operations:
        axes = list(range(1, len(shape) + 1))
        match operation:
            case Resampling():
                x, shape = _resampled(graph, operation, shape, x), operation.shape
            case Reshape():
                x, shape = graph.call("Reshape", x, np.array([-1, *operation.shape])), operation.shape
            case Stack():
                x, shape = _stacked(graph, operation, x), operation.shape
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


def encode(graph: OnnxGraph, encoding: Encoding, x: str, is_normalized: bool) -> str:
    """`Encoding` of [batch, *space.shape]."""
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


def _stacked(graph: OnnxGraph, stack: Stack, x: str) -> str:
    """The kept frames followed by this one [batch, *frame]; copies of it at the beginning of an episode."""
    state, last = f"{STATE_PREFIX}{stack.name}", stack.shape[-1]
    frame = graph.call("Unsqueeze", x, np.array([-1])) if stack.adds_axis else x
    width = last // stack.length
    going = graph.call("Concat", graph.cut(state, width, last), frame, axis=-1)
    filled = graph.call("Concat", *[frame] * stack.length, axis=-1)
    begun = graph.call("Greater", EPISODE_BEGUN, np.float32(0.0))
    begun = graph.call("Reshape", begun, np.array([-1, *[1] * len(stack.shape)]))
    return graph.call("Where", begun, going, filled, name=f"next/{state}")


def _resampled(graph: OnnxGraph, operation: Resampling, shape: tuple[int, ...], x: str) -> str:
    """An image [batch, *shape] times the weights of its rows and of its columns."""
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


def _encode_part(graph: OnnxGraph, encoding: Encoding, x: str) -> str:
    """`Encoding` of a part of a flattened observation [batch, size of the whole]."""
    from onnx import TensorProto

    part = encoding.part
    assert part is not None
    space = part.space
    read = graph.cut(x, part.start, part.start + part.size)
    if isinstance(space, Box):
        if encoding.is_integer:
            whole = graph.call("Cast", read, to=TensorProto.INT64)
            return graph.call("Reshape", whole, np.array([-1, *encoding.shape]))
        read = graph.call("Div", read, np.float32(255.0)) if part.is_bytes else read
        return _shaped(graph, encoding, graph.call("Reshape", read, np.array([-1, *space.shape])))
    if not encoding.is_integer:
        return read
    if isinstance(space, Discrete):
        return graph.call("ArgMax", read, axis=-1, keepdims=0)
    return graph.argmax_each(read, space.nvec)


def _shaped(graph: OnnxGraph, encoding: Encoding, x: str) -> str:
    if encoding.is_transposed:
        x = graph.call("Transpose", x, perm=[0, 2, 3, 1])
    return graph.call("Reshape", x, np.array([-1, *encoding.shape]))
