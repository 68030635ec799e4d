"""The shapes of a network's layers and the order in which they run, for JAX, NumPy and ONNX alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, NoReturn, TypeVar

import numpy as np

from steppe.errors import SpecError
from steppe.policies.encoding import Encoding, Shape, encoding_for, is_whole
from steppe.policies.encoding import is_channels_first as is_channels_first
from steppe.specs.learning import network as spec
from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space

PREVIOUS = ("*", "previous")
"""The names by which an input layer reads the output of the layer before it."""
WHOLE = ("state", "observation")
"""The names by which an input layer may read an observation without named parts."""

X = TypeVar("X")


@dataclass(frozen=True)
class LayerPlan:
    """One layer of a plan: the shapes of its input and output for one sample, and of its parameters."""

    name: str
    layer: spec.Layer
    input: Shape
    output: Shape
    parameters: tuple[tuple[str, Shape], ...] = ()
    states: tuple[tuple[str, Shape], ...] = ()
    """The state of a recurrent layer; the first part is its output."""
    sources: tuple[Encoding | str, ...] = ()
    """The inputs of an input layer: the observation or parts of it, the layer before ("*"), or named outputs."""


@dataclass(frozen=True)
class NetworkPlan:
    """A network whose shapes fit together; `features` is the length of its output vector."""

    observation: Space
    encoding: Encoding | None
    """The input of the first layer; None if that is an input layer."""
    steps: tuple[LayerPlan, ...]
    features: int

    @property
    def states(self) -> tuple[tuple[str, Shape], ...]:
        """The states of all recurrent layers: ("1_lstm/hidden", (64,)) and so on."""
        return tuple(state for step in self.steps for state in step.states)

    def run(
        self,
        encode: Callable[[Encoding], X],
        join: Callable[[LayerPlan, list[X]], X],
        apply: Callable[[LayerPlan, X], X],
    ) -> X:
        """The output of the last layer.

        `encode` reads the observation, `join` combines several inputs into one, and `apply` computes one layer.
        """
        named: dict[str, X] = {}
        x: Any = None if self.encoding is None else encode(self.encoding)
        for step in self.steps:
            if isinstance(step.layer, spec.Input):
                read = [encode(each) if isinstance(each, Encoding) else named.get(each, x) for each in step.sources]
                x = read[0] if len(read) == 1 else join(step, read)
            elif isinstance(step.layer, spec.Output):
                named[step.layer.name] = x
            else:
                x = apply(step, x)
        return x


def plan(layers: spec.NetworkSpec | Iterable[spec.Layer], observation: Space) -> NetworkPlan:
    """Computes all shapes; raises a SpecError that names the layer if one does not fit its input."""
    layers = tuple(layers.root if isinstance(layers, spec.NetworkSpec) else layers)
    encoding = None if isinstance(layers[0], spec.Input) else encoding_for(layers, observation)
    shape = None if encoding is None else encoding.shape
    named: dict[str, Shape] = {}
    steps: list[LayerPlan] = []
    for index, layer in enumerate(layers):
        name = f"{index}_{layer.type}"
        if isinstance(layer, spec.Input):
            sources = tuple(
                _source(index, layer, each, layers[index + 1 :], observation, named) for each in layer.names
            )
            shapes = [_source_shape(each, named, shape) for each in sources]
            step = LayerPlan(name, layer, shapes[0], _joined(index, layer, shapes), sources=sources)
        else:
            assert shape is not None
            if isinstance(layer, spec.Output):
                _check_name(index, layer, observation, named)
                named[layer.name] = shape
            output, parameters = _shapes(index, layer, shape)
            if isinstance(layer, spec.Embedding):
                _check_embedding(index, layer, encoding if index == 0 else _only_source(steps[-1]))
            step = LayerPlan(name, layer, shape, output, tuple(parameters.items()), _states(name, layer))
        steps.append(step)
        shape = step.output
    assert shape is not None
    return NetworkPlan(observation, encoding, tuple(steps), prod(shape))


def pair(value: int | tuple[int, int], axes: int) -> tuple[int, ...]:
    """The window or stride along each of `axes` axes."""
    return (value,) * axes if isinstance(value, int) else value


def padding_of(size: int, window: int, stride: int, padding: str) -> tuple[int, int]:
    """(before, after) along one axis; SAME puts an odd one after, as XLA and ONNX's SAME_UPPER do."""
    if padding == "VALID":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def window_counts(layer: spec.Pool2d, shape: Shape) -> np.ndarray:
    """The number of elements inside the image for each window of a pool2d: [H', W', 1] for an image [H, W, C]."""
    height, width = (
        np.lib.stride_tricks.sliding_window_view(
            np.pad(np.ones(size, np.float32), padding_of(size, window, stride, layer.padding)), window
        )[::stride].sum(-1)
        for size, window, stride in zip(shape[:2], pair(layer.window, 2), pair(layer.stride, 2), strict=True)
    )
    return (height[:, None] * width)[:, :, None]


def joined_axis(layer: spec.Input, rank: int) -> int:
    """The axis along which samples of this rank are joined, counted from the end."""
    return layer.axis if layer.axis < 0 else layer.axis - rank - 1


def join(step: LayerPlan, values: list[Any], xp: Any = np) -> Any:
    """Several inputs [..., *shape] as one; `xp` is numpy or jax.numpy."""
    layer: Any = step.layer
    match layer.aggregation_type:
        case "concat":
            return xp.concatenate(values, axis=joined_axis(layer, len(step.output)))
        case "max":
            return reduce(xp.maximum, values)
        case "product":
            return reduce(xp.multiply, values)
    total = reduce(xp.add, values)
    return total / np.float32(len(values)) if layer.aggregation_type == "mean" else total


def bend(
    layer: spec.Nonlinearity, params: Mapping[str, Any], x: Any, activate: Callable[[str, Any], Any], xp: Any
) -> Any:
    """f(clip(beta x)); swish is the exception that multiplies by x itself. `activate` may overwrite its argument."""
    beta = params["beta"] if layer.beta == "learn" else np.float32(layer.beta)
    scaled = x * beta if layer.beta != 1.0 or xp is np else x
    if layer.max is not None:
        scaled = xp.minimum(scaled, np.float32(layer.max))
    if layer.min is not None:
        scaled = xp.maximum(scaled, np.float32(layer.min))
    if layer.alpha is not None:
        return xp.where(scaled >= 0, scaled, np.float32(layer.alpha) * scaled)
    return activate("sigmoid", scaled) * x if layer.name == "swish" else activate(layer.name, scaled)


def _shapes(index: int, layer: spec.Layer, shape: Shape) -> tuple[Shape, dict[str, Shape]]:
    """(output shape, parameter shapes) of one layer that gets `shape`."""
    match layer:
        case spec.Dense() | spec.Linear():
            # A dense layer reads all its inputs, so an image is flattened first.
            size = layer.size or prod(shape)
            names = ("kernel", "skip_kernel") if isinstance(layer, spec.Dense) and layer.skip else ("kernel",)
            kernels: dict[str, Shape] = {name: (prod(shape), size) for name in names}
            biases: dict[str, Shape] = {name.replace("kernel", "bias"): (size,) for name in names if layer.bias}
            return _activated(layer, (size,)), kernels | biases
        case spec.Conv1d() | spec.Conv2d():
            axes = 1 if isinstance(layer, spec.Conv1d) else 2
            positions = _positions(index, layer, shape, axes)
            kernel = pair(layer.window, axes) + (shape[-1], layer.size)
            parameters: dict[str, Shape] = {"kernel": kernel, **({"bias": (layer.size,)} if layer.bias else {})}
            return _activated(layer, (*positions, layer.size)), parameters
        case spec.Pool2d():
            return (*_positions(index, layer, shape, 2), shape[-1]), {}
        case spec.Embedding():
            return (*shape, layer.size), {"embedding": (layer.indices, layer.size)}
        case spec.LayerNorm():
            return shape, {"scale": shape[-1:], "bias": shape[-1:]}
        case spec.Nonlinearity():
            return _activated(layer, shape), {"beta": ()} if layer.beta == "learn" else {}
        case spec.Lstm() | spec.InternalLstm():
            gates = 4 * layer.size
            kernels = {"kernel": (prod(shape), gates), "recurrent_kernel": (layer.size, gates)}
            return (layer.size,), kernels | {"bias": (gates,)}
        case spec.Gru():
            gates = 3 * layer.size
            kernels = {"kernel": (prod(shape), gates), "recurrent_kernel": (layer.size, gates)}
            return (layer.size,), kernels | {"bias": (gates,), "recurrent_bias": (layer.size,)}
        case spec.Custom():
            from steppe.policies.custom_layers import module_shapes

            return module_shapes(layer, shape)
        case spec.Dueling():
            way_out = 'leave it out, or make it the last layer of a network for "dqn"'
            _refuse(index, layer, "belongs to the output that the agent adds to the values of actions", way_out)
    return ((prod(shape),) if layer.type == "flatten" else shape), {}


def _activated(layer: spec.Layer, shape: Shape) -> Shape:
    """The shape after a layer's nonlinearity."""
    name = layer.name if isinstance(layer, spec.Nonlinearity) else getattr(layer, "activation", "none")
    return (*shape[:-1], 2 * shape[-1]) if name == "crelu" else shape


def _states(name: str, layer: spec.Layer) -> tuple[tuple[str, Shape], ...]:
    if not isinstance(layer, spec.Lstm | spec.InternalLstm | spec.Gru):
        return ()
    kinds = ("hidden",) if isinstance(layer, spec.Gru) else ("hidden", "cell")
    return tuple((f"{name}/{kind}", (layer.size,)) for kind in kinds)


def _positions(index: int, layer: spec.Conv1d | spec.Conv2d | spec.Pool2d, shape: Shape, axes: int) -> Shape:
    """The number of windows along each axis."""
    if len(shape) != axes + 1:
        wanted = "length x channels" if axes == 1 else "height x width x channels"
        _refuse(index, layer, f"needs {wanted} but gets shape {shape}", "move or remove it")
    windows, strides = pair(layer.window, axes), pair(layer.stride, axes)
    if layer.padding == "SAME":
        return tuple(-(-size // stride) for size, stride in zip(shape[:-1], strides, strict=True))
    if any(window > size for window, size in zip(windows, shape[:-1], strict=True)):
        way_out = 'use a smaller window, a smaller stride before it, or padding "SAME"'
        shown = " x ".join(map(str, windows)) if len(set(windows)) > 1 else windows[0]
        _refuse(index, layer, f"has a window of {shown}, larger than what it gets: shape {shape}", way_out)
    places = zip(shape[:-1], windows, strides, strict=True)
    return tuple((size - window) // stride + 1 for size, window, stride in places)


def _source(
    index: int, layer: spec.Input, name: str, after: tuple[spec.Layer, ...], space: Space, named: dict[str, Shape]
) -> Encoding | str:
    """The source of the input called `name`."""
    if name in named:
        return name
    if name in PREVIOUS and index > 0:
        return PREVIOUS[0]
    parts = {part.name: part for part in space.parts} if isinstance(space, Box) else {}
    if len(layer.names) > 1 and after and isinstance(after[0], spec.Embedding):
        _refuse(index, layer, "joins several inputs before an embedding", "give each embedding one input of its own")
    if name not in parts and name not in PREVIOUS and (parts or name not in WHOLE):
        known = [*parts, *named]
        listed = f"there are {', '.join(known)}" if known else 'the observation has no parts: its name is "state"'
        way_out = did_you_mean(name, known).removeprefix("; ") or listed
        _refuse(index, layer, f'reads "{name}", which is no part of the observation and no output before it', way_out)
    return encoding_for(after, space, parts.get(name))


def _source_shape(source: Encoding | str, named: dict[str, Shape], previous: Shape | None) -> Shape:
    if isinstance(source, Encoding):
        return source.shape
    shape = named.get(source, previous)
    assert shape is not None
    return shape


def _only_source(step: LayerPlan) -> Encoding | None:
    """The observation that an input layer passes on unchanged."""
    return next((each for each in step.sources if isinstance(each, Encoding)), None)


def _joined(index: int, layer: spec.Input, shapes: list[Shape]) -> Shape:
    """The shape of several joined inputs."""
    if len(shapes) == 1:
        return shapes[0]
    listed = " and ".join(map(str, shapes))
    way_out = 'let each branch end with a "flatten" or "dense" layer'
    rank = len(shapes[0])
    if any(len(shape) != rank for shape in shapes):
        _refuse(index, layer, f"cannot join the shapes {listed}", way_out)
    if layer.aggregation_type != "concat":
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            _refuse(index, layer, f"cannot take the {layer.aggregation_type} of the shapes {listed}", way_out)
    axis = joined_axis(layer, rank)
    if not -rank <= axis < 0:
        _refuse(index, layer, f"joins along axis {layer.axis} but gets the shapes {listed}", "use axis -1")
    others = {(*shape[: rank + axis], *shape[rank + axis + 1 :]) for shape in shapes}
    if len(others) > 1:
        _refuse(index, layer, f"cannot join the shapes {listed} along axis {layer.axis}", way_out)
    joined = list(shapes[0])
    joined[axis] = sum(shape[axis] for shape in shapes)
    return tuple(joined)


def _check_name(index: int, layer: spec.Output, space: Space, named: dict[str, Shape]) -> None:
    parts = [part.name for part in space.parts] if isinstance(space, Box) else []
    if layer.name in (*PREVIOUS, *parts, *named):
        _refuse(index, layer, f'has the name "{layer.name}", which means something else already', "choose another")


def _check_embedding(index: int, layer: spec.Embedding, encoding: Encoding | None) -> None:
    """Refuses an embedding with too few indices, or whose input is not whole numbers."""
    if encoding is None:
        _refuse(index, layer, "gets features from another layer", "an embedding must be the first layer of its branch")
    space = encoding.space if encoding.part is None else encoding.part.space
    if not is_whole(space):
        _refuse(index, layer, f"looks up whole numbers but observations are {space.dtype}", "use a dense layer")
    if (most := _largest(space)) is not None and most > layer.indices:
        _refuse(index, layer, f"has {layer.indices} indices but {most} can be observed", f"set indices to {most}")


def _largest(space: Space) -> int | None:
    """The number of values, counted from 0, that an observation may take; None if the space has no such bound."""
    match space:
        case Discrete():
            return space.n
        case MultiDiscrete():
            return max(space.nvec)
        case Box():
            return int(max(space.high)) + 1 if np.all(np.isfinite(space.high)) else None


def _refuse(index: int, layer: spec.Layer, problem: str, way_out: str) -> NoReturn:
    raise SpecError(f"layer {index} ({layer.type}) of the network {problem}; {way_out}")
