"""Resizing and greying of images: linear operations, so any sequence of such stages is two matrix products.

Shrinking averages the area that each new pixel covers, as the usual Atari preprocessing does, so no thin line is lost
as with the nearest pixels only. Enlarging interpolates between the nearest pixels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, NoReturn

import numpy as np

from steppe.errors import SpecError
from steppe.policies.encoding import Shape, is_channels_first
from steppe.specs.learning.preprocessing import Grayscale, ImageResize, Stage
from steppe.specs.spaces import Box

MOST_MULTIPLICATIONS = 2**18
"""OpenBLAS spreads larger products over threads, whose start takes far longer than the product on a busy machine."""

MOST_NUMBERS = 2**20
"""The numbers that NumPy processes at once: larger arrays leave the cache and are allocated anew each time."""


@dataclass(frozen=True, eq=False)
class Resampling:
    """Resamples images [N, H, W] or [N, H, W, C] to [N, *shape].

    To shrink 210 rows to 84, 42 equal blocks of 5 become 2 rows each, so one block is kept as the factor.
    """

    shape: Shape
    """Of one resulting image."""
    rows: np.ndarray | None
    """The weight of each old row of a block in each new one, [parts, h' / parts, h]; None if the height stays."""
    columns: np.ndarray | None
    """The same for the columns of a block with their colours, [w * C, w' * C']; None if neither changes."""
    group: int
    """The number of blocks of columns that are multiplied at once."""
    rows_first: bool
    """Whether rows are reduced before columns, which leaves fewer columns to multiply."""
    in_bytes: bool
    """Whether the result is rounded to bytes; otherwise it is float32."""

    def __call__(self, images: Any, xp: Any = np) -> Any:
        """The resulting images; `xp` is numpy or jax.numpy."""
        if xp is np and images.size > MOST_NUMBERS and len(images) > 1:
            count = max(len(images) * MOST_NUMBERS // images.size, 1)
            return np.concatenate([self(images[i : i + count]) for i in range(0, len(images), count)])
        x = images if images.dtype == np.float32 else images.astype(np.float32)
        x = x.reshape((*x.shape[:2], -1))
        x = self._along_rows(x, xp) if self.rows_first else x
        if self.columns is not None:
            blocks = x.reshape((-1, self.group, len(self.columns)))
            x = xp.matmul(blocks, self.columns).reshape((*x.shape[:2], -1))
        x = x if self.rows_first else self._along_rows(x, xp)
        x = x.reshape((-1, *self.shape))
        return xp.rint(x).astype(np.uint8) if self.in_bytes else x

    def _along_rows(self, x: Any, xp: Any) -> Any:
        """[N, H, L] -> [N, H', L]."""
        if self.rows is None:
            return x
        count, _, length = x.shape
        return xp.matmul(self.rows, x.reshape((-1, 1, self.rows.shape[-1], length))).reshape((count, -1, length))


def resampling(stages: Iterable[tuple[int, Stage]], space: Box, in_bytes: bool) -> tuple[Resampling, Box]:
    """Numbered image_resize and grayscale stages as one operation, and the space of its results.

    Greying commutes with resizing, so the order in which the stages are written makes no difference.
    """
    shape = space.shape
    rows = columns = shades = None
    for index, stage in stages:
        if isinstance(stage, ImageResize):
            if len(shape) not in (2, 3) or is_channels_first(shape):
                refuse(index, stage, f"needs height x width x channels but gets shape {shape}", "remove it")
            rows = _joined(rows, _weights(shape[0], stage.height))
            columns = _joined(columns, _weights(shape[1], stage.width))
            shape = (stage.height, stage.width, *shape[2:])
        elif isinstance(stage, Grayscale):
            if len(shape) != 3 or shape[-1] != 3:
                refuse(index, stage, f"needs height x width x 3 colours but gets shape {shape}", "remove it")
            shades = stage.weights
            shape = shape[:2] if stage.remove_rank else (*shape[:2], 1)
    bounds = (bound.reshape(shape) for bound in _bounds(space, rows, columns, shades))
    low, high = (np.rint(bound) for bound in bounds) if in_bytes else bounds
    result = box_within(low, high, "uint8" if in_bytes else "float32")
    return _operation(space.shape, result, rows, columns, shades), result


def box_within(low: np.ndarray, high: np.ndarray, dtype: str) -> Box:
    """The space between two arrays of bounds; equal bounds are written as one number."""
    sides = (np.asarray(bound, np.float32).reshape(-1) for bound in (low, high))
    low_side, high_side = (tuple((side[:1] if np.all(side == side[0]) else side).tolist()) for side in sides)
    return Box(low.shape, low_side, high_side, dtype)


def refuse(index: int, stage: Stage, problem: str, way_out: str) -> NoReturn:
    """Raises the error for a stage that does not fit its input."""
    raise SpecError(f"stage {index} ({stage.type}) of states_preprocessing {problem}; {way_out}")


def _weights(old: int, new: int) -> np.ndarray | None:
    """The weight of each old pixel along an axis in each new one: [new, old]."""
    if new == old:
        return None
    pixel = np.arange(old)
    if new < old:
        edges = np.arange(new + 1)[:, None] * (old / new)
        overlap = np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel)
        weights = np.maximum(overlap, 0.0)
    else:
        centre = np.clip((np.arange(new)[:, None] + 0.5) * (old / new) - 0.5, 0, old - 1)
        weights = np.maximum(1.0 - np.abs(centre - pixel), 0.0)
    return weights / weights.sum(1, keepdims=True)


def _joined(first: np.ndarray | None, then: np.ndarray | None) -> np.ndarray | None:
    """Two resizings along one axis as one."""
    if first is None or then is None:
        return then if first is None else first
    return then @ first


def _bounds(
    space: Box, rows: np.ndarray | None, columns: np.ndarray | None, shades: tuple[float, ...] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and highest values of the resulting pixels."""
    low, high = space.bounds()
    if shades is not None:
        # For a colour with a negative weight the brightest value gives the lowest result.
        near_and_far = ((low, high), (high, low))
        low, high = (
            np.sum([shade * (near if shade > 0 else far)[..., i] for i, shade in enumerate(shades) if shade], axis=0)
            for near, far in near_and_far
        )
    return _averaged(low, -np.inf, rows, columns), _averaged(high, np.inf, rows, columns)


def _averaged(bound: np.ndarray, limit: float, rows: np.ndarray | None, columns: np.ndarray | None) -> np.ndarray:
    """The bound of weighted means of pixels with bounds [H, W, ...]; `limit` if one of those is infinite."""
    matrices = (rows, columns)
    if np.all(bound == bound.flat[0]):
        # The mean of equal numbers is exact; a product would round it.
        size = [old if each is None else len(each) for old, each in zip(bound.shape[:2], matrices, strict=True)]
        return np.full((*size, *bound.shape[2:]), bound.flat[0])

    def mean(x: np.ndarray) -> np.ndarray:
        for axis, matrix in enumerate(matrices):
            x = x if matrix is None else np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
        return x

    is_infinite = np.isinf(bound)
    return np.where(mean(is_infinite.astype(float)) > 0, limit, mean(np.where(is_infinite, 0.0, bound)))


def _operation(
    shape: Shape, result: Box, rows: np.ndarray | None, columns: np.ndarray | None, shades: tuple[float, ...] | None
) -> Resampling:
    """The products that make images of the space `result` from images of `shape`."""
    height, length = shape[0], prod(shape[1:])
    rows_first = False
    row_block = column_block = None
    if rows is not None:
        row_block = _block(rows).astype(np.float32)
        rows_first = len(rows) < height and row_block.size * length <= MOST_MULTIPLICATIONS
    group = 1
    if columns is not None or shades is not None:
        colours = np.eye(prod(shape[2:])) if shades is None else np.array([shades])
        weights = np.eye(1) if columns is None else _block(columns)
        column_block = np.kron(weights, colours).T.astype(np.float32, order="C")
        blocks = (result.shape[0] if rows_first else height) * (length // len(column_block))
        group = _largest_divisor(blocks, MOST_MULTIPLICATIONS // column_block.size)
    if row_block is not None:
        length = length if rows_first else prod(result.shape[1:])
        together = _largest_divisor(len(row_block), MOST_MULTIPLICATIONS // (row_block.shape[1] * length))
        row_block = row_block.reshape((-1, together, row_block.shape[1]))
    return Resampling(result.shape, row_block, column_block, group, rows_first, result.dtype == "uint8")


def _block(matrix: np.ndarray) -> np.ndarray:
    """The block that repeats along the diagonal of a matrix; the matrix itself if there is none."""
    new, old = matrix.shape
    for count in range(gcd(new, old), 1, -1):
        if new % count == old % count == 0:
            block = matrix[: new // count, : old // count]
            if np.allclose(matrix, np.kron(np.eye(count), block), atol=1e-9):
                return block
    return matrix


def _largest_divisor(number: int, most: int) -> int:
    return next((each for each in range(min(number, most), 0, -1) if number % each == 0), 1)
