"""The input of a network from an observation or a named part of it, for JAX, NumPy and ONNX alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from steppe.policies.heads import best
from steppe.specs.learning.network import Embedding, Layer
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part, Space

Shape = tuple[int, ...]

_TAKES_ANY_SHAPE = ("dropout", "nonlinearity", "layer_norm", "output")


@dataclass(frozen=True)
class Encoding:
    """Turns raw observations [..., *space.shape] into the input of the first layer, [..., *shape].

    Whole numbers in a space of bytes are divided by 255; floats there have been scaled already (by a normalizer).
    A part of bytes is always divided, since it comes as floats and is not normalized.
    """

    space: Space
    """The space of the whole observation."""
    shape: Shape
    is_integer: bool = False
    """Whether the first layer is an embedding, which looks up whole numbers from 0."""
    is_transposed: bool = False
    """Whether channels come first and are moved to the end."""
    part: Part | None = None
    """The part that is read; None reads all."""

    @property
    def is_plain(self) -> bool:
        """Whether the first layer takes float32 observations unchanged."""
        space = self.space
        is_vector = isinstance(space, Box) and space.shape == self.shape and len(self.shape) == 1
        is_scaled = isinstance(space, Box) and (space.dtype == "uint8" or part_scales(space) is not None)
        return is_vector and not is_scaled and not self.is_integer and self.part is None

    def __call__(self, observations: Any, xp: Any = np, *, keeps_bytes: bool = False) -> Any:
        """Encoded observations [..., *shape] as float32, or int32 before an embedding; `xp` is numpy or jax.numpy.

        `keeps_bytes` leaves bytes as they are, for a first layer that divides its kernel by 255 instead.
        """
        observations = xp.asarray(observations)
        if self.part is not None:
            return self._read_part(observations, self.part, xp)
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
        if is_bytes and keeps_bytes:
            return self._shaped(observations, space.shape, xp)
        encoded = observations if observations.dtype == np.float32 else observations.astype(np.float32)
        if is_bytes:
            encoded = encoded / np.float32(255.0)
        elif (scales := part_scales(space)) is not None:
            encoded = encoded * scales
        return self._shaped(encoded, space.shape, xp)

    def _read_part(self, observations: Any, part: Part, xp: Any) -> Any:
        """The part of a flattened observation [..., size of the whole]."""
        read = observations[..., part.start : part.start + part.size]
        space = part.space
        if isinstance(space, Box):
            if self.is_integer:
                return read.astype(np.int32).reshape(read.shape[:-1] + self.shape)
            read = read.astype(np.float32)
            if part.is_bytes:
                read = read / np.float32(255.0)
            return self._shaped(read.reshape(read.shape[:-1] + space.shape), space.shape, xp)
        if not self.is_integer:
            return read.astype(np.float32)
        return best(read, space, xp).astype(np.int32)

    def _shaped(self, encoded: Any, shape: Shape, xp: Any) -> Any:
        if self.is_transposed:
            encoded = xp.moveaxis(encoded, -3, -1)
        if self.shape != encoded.shape[encoded.ndim - len(self.shape) :] or len(self.shape) != len(shape):
            encoded = encoded.reshape(encoded.shape[: encoded.ndim - len(shape)] + self.shape)
        return encoded


def encoding_for(layers: Sequence[Layer], space: Space, part: Part | None = None) -> Encoding:
    """The encoding that the first shape-dependent layer of `layers` needs of an observation, or of a part of it."""
    seen = space if part is None else part.space
    if layers and isinstance(layers[0], Embedding):
        return Encoding(space, seen.shape, is_integer=True, part=part)
    match seen:
        case Discrete():
            return Encoding(space, (seen.n,), part=part)
        case MultiDiscrete():
            return Encoding(space, (sum(seen.nvec),), part=part)
    first = next((each.type for each in layers if each.type not in _TAKES_ANY_SHAPE), "dense")
    shape = seen.shape
    if first in ("conv2d", "pool2d") and is_channels_first(shape):
        return Encoding(space, (*shape[1:], shape[0]), is_transposed=True, part=part)
    if len(shape) == {"conv1d": 1, "conv2d": 2, "pool2d": 2}.get(first):
        return Encoding(space, (*shape, 1), part=part)
    # A custom layer may take any shape, so it gets that of the observation.
    if first in ("conv1d", "conv2d", "pool2d", "flatten", "custom"):
        return Encoding(space, shape, part=part)
    return Encoding(space, (prod(shape),), part=part)


def is_whole(space: Space) -> bool:
    """Whether observations are whole numbers, which an embedding can look up."""
    return not isinstance(space, Box) or np.issubdtype(np.dtype(space.dtype), np.integer)


def is_channels_first(shape: Shape) -> bool:
    """Whether an image's first axis is clearly the smallest, as in stacks of 4 x 84 x 84 frames."""
    return len(shape) == 3 and 2 * shape[0] <= min(shape[1:])


def one_hot_columns(space: MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """(which choice, which of its options) for each column of concatenated one-hots [sum(nvec)]."""
    group = np.repeat(np.arange(len(space.nvec)), space.nvec)
    return group, np.concatenate([np.arange(n) for n in space.nvec])


@lru_cache(maxsize=64)
def part_scales(space: Box) -> np.ndarray | None:
    """The factor for each number of a flattened observation; None if none of its parts are bytes."""
    if not any(part.is_bytes for part in space.parts):
        return None
    scales = np.ones(space.shape, np.float32)
    for part in space.parts:
        if part.is_bytes:
            scales[part.start : part.start + part.size] = 1 / 255
    return scales
