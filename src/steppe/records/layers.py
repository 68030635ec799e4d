"""How an observation enters a network and what each layer does to its shape, for JAX, NumPy and ONNX alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np

from steppe.errors import SpecError
from steppe.specs.network import Conv1d, Conv2d, Dense, Embedding, Layer, LayerNorm, Linear, NetworkSpec, Pool2d
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Encoding:
    """From raw observations [..., *space.shape] to the network's input [..., *shape].

    Whole numbers in a space of bytes are divided by 255; floats there are taken as scaled already (by a normalizer).
    """

    space: Space
    shape: Shape
    is_integer: bool = False
    """The first layer is an embedding: it looks up whole numbers from 0."""
    is_transposed: bool = False
    """Channels come first and are moved to the end."""

    def __call__(self, observations: Any, xp: Any = np) -> Any:
        """Encoded observations [..., *shape] as float32, or int32 before an embedding; `xp` is numpy or jax.numpy."""
        observations = xp.asarray(observations)
        space = self.space
        if isinstance(space, Discrete):
            index = observations.astype(np.int32)
            index = index - space.start if space.start else index
            return index if self.is_integer else (index[..., None] == np.arange(space.n)).astype(np.float32)
        if isinstance(space, MultiDiscrete):
            if self.is_integer:
                return observations.astype(np.int32)
            group, option = one_hot_columns(space)
            return (observations[..., group] == option).astype(np.float32)
        if self.is_integer:
            return observations.astype(np.int32)
        is_bytes = space.dtype == "uint8" and not xp.issubdtype(observations.dtype, np.floating)
        encoded = observations if observations.dtype == np.float32 else observations.astype(np.float32)
        if is_bytes:
            encoded = encoded / np.float32(255.0)
        if self.is_transposed:
            encoded = xp.moveaxis(encoded, -3, -1)
        if self.shape != encoded.shape[encoded.ndim - len(self.shape) :] or len(self.shape) != len(space.shape):
            lead = observations.shape[: observations.ndim - len(space.shape)]
            encoded = encoded.reshape(lead + self.shape)
        return encoded


@dataclass(frozen=True)
class Step:
    """One layer in its place: the shapes of one sample going in and out, and of its parameters."""

    name: str
    layer: Layer
    input: Shape
    output: Shape
    parameters: tuple[tuple[str, Shape], ...] = ()


@dataclass(frozen=True)
class Plan:
    """A network whose shapes fit together; `features` is the length of its output vector."""

    encoding: Encoding
    steps: tuple[Step, ...]
    features: int


def plan(layers: NetworkSpec | Iterable[Layer], observation: Space) -> Plan:
    """Works out all shapes; a layer that cannot take what it gets is a SpecError that names it."""
    layers = tuple(layers.root if isinstance(layers, NetworkSpec) else layers)
    encoding = _encoding(layers, observation)
    shape = encoding.shape
    steps = []
    for index, layer in enumerate(layers):
        output, parameters = _shapes(index, layer, shape, observation)
        steps.append(Step(f"{index}_{layer.type}", layer, shape, output, tuple(parameters.items())))
        shape = output
    return Plan(encoding, tuple(steps), prod(shape))


def one_hot_columns(space: MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """(which choice, which of its options) for each column of concatenated one-hots [sum(nvec)]."""
    group = np.repeat(np.arange(len(space.nvec)), space.nvec)
    return group, np.concatenate([np.arange(n) for n in space.nvec])


def is_channels_first(shape: Shape) -> bool:
    """Whether an image's first axis is clearly the smallest, as in stacks of 4 x 84 x 84 frames."""
    return len(shape) == 3 and 2 * shape[0] <= min(shape[1:])


def padding_of(size: int, window: int, stride: int, padding: str) -> tuple[int, int]:
    """(before, after) along one axis; SAME puts the odd one after, as XLA and ONNX's SAME_UPPER do."""
    if padding == "VALID":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def window_counts(layer: Pool2d, shape: Shape) -> np.ndarray:
    """How many elements inside the image each window of a pool2d sees: [H', W', 1] for an image [H, W, C]."""
    height, width = (
        np.lib.stride_tricks.sliding_window_view(
            np.pad(np.ones(size, np.float32), padding_of(size, layer.window, layer.stride, layer.padding)), layer.window
        )[:: layer.stride].sum(-1)
        for size in shape[:2]
    )
    return (height[:, None] * width)[:, :, None]


def _encoding(layers: tuple[Layer, ...], space: Space) -> Encoding:
    """What the first layer that cares about shapes wants to see."""
    if layers and isinstance(layers[0], Embedding):
        is_whole = not isinstance(space, Box) or np.issubdtype(np.dtype(space.dtype), np.integer)
        if not is_whole:
            _refuse(0, layers[0], f"looks up whole numbers but observations are {space.dtype}", "use a dense layer")
        return Encoding(space, space.shape, is_integer=True)
    match space:
        case Discrete():
            return Encoding(space, (space.n,))
        case MultiDiscrete():
            return Encoding(space, (sum(space.nvec),))
    # Dropout, nonlinearity and layer_norm take any shape, so the layer after them decides.
    first = next((each.type for each in layers if each.type not in ("dropout", "nonlinearity", "layer_norm")), "dense")
    shape = space.shape
    if first in ("conv2d", "pool2d") and is_channels_first(shape):
        return Encoding(space, (*shape[1:], shape[0]), is_transposed=True)
    if len(shape) == {"conv1d": 1, "conv2d": 2, "pool2d": 2}.get(first):
        return Encoding(space, (*shape, 1))
    if first in ("conv1d", "conv2d", "pool2d", "flatten"):
        return Encoding(space, shape)
    return Encoding(space, (prod(shape),))


def _shapes(index: int, layer: Layer, shape: Shape, observation: Space) -> tuple[Shape, dict[str, Shape]]:
    """(output shape, parameter shapes) of one layer that gets `shape`."""
    match layer:
        case Dense() | Linear():
            # A dense layer reads all its inputs: an image is flattened on the way in.
            parameters = {"kernel": (prod(shape), layer.size), "bias": (layer.size,)}
            return (layer.size,), parameters if layer.bias else {"kernel": parameters["kernel"]}
        case Conv1d() | Conv2d():
            positions = _positions(index, layer, shape, 1 if isinstance(layer, Conv1d) else 2)
            kernel = (layer.window,) * len(positions) + (shape[-1], layer.size)
            return (*positions, layer.size), {"kernel": kernel, **({"bias": (layer.size,)} if layer.bias else {})}
        case Pool2d():
            return (*_positions(index, layer, shape, 2), shape[-1]), {}
        case Embedding():
            if index > 0:
                _refuse(index, layer, f"gets shape {shape} from another layer", "an embedding must be the first layer")
            if (most := _largest(observation)) is not None and most > layer.indices:
                _refuse(
                    index, layer, f"has {layer.indices} indices but {most} can be observed", f"set indices to {most}"
                )
            return (*shape, layer.size), {"embedding": (layer.indices, layer.size)}
        case LayerNorm():
            return shape, {"scale": shape[-1:], "bias": shape[-1:]}
    return ((prod(shape),) if layer.type == "flatten" else shape), {}


def _positions(index: int, layer: Conv1d | Conv2d | Pool2d, shape: Shape, axes: int) -> Shape:
    """How many places a window stops at along each axis."""
    if len(shape) != axes + 1:
        wanted = "length x channels" if axes == 1 else "height x width x channels"
        _refuse(index, layer, f"needs {wanted} but gets shape {shape}", "move or remove it")
    if layer.padding == "SAME":
        return tuple(-(-size // layer.stride) for size in shape[:-1])
    if layer.window > min(shape[:-1]):
        way_out = 'use a smaller window, a smaller stride before it, or padding "SAME"'
        _refuse(index, layer, f"has a window of {layer.window}, larger than what it gets: shape {shape}", way_out)
    return tuple((size - layer.window) // layer.stride + 1 for size in shape[:-1])


def _largest(space: Space) -> int | None:
    """How many whole numbers from 0 an observation may hold; None when the space does not say."""
    match space:
        case Discrete():
            return space.n
        case MultiDiscrete():
            return max(space.nvec)
        case Box():
            return int(max(space.high)) + 1 if np.all(np.isfinite(space.high)) else None


def _refuse(index: int, layer: Layer, problem: str, way_out: str) -> NoReturn:
    raise SpecError(f"layer {index} ({layer.type}) of the network {problem}; {way_out}")
