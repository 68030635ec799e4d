"""Tensors as the Open Inference Protocol writes them: by REST and by gRPC, as numbers and as bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from steppe.errors import UserError

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""The protocol's words for types; its bytes are little-endian."""
_SAME = {"INT64": ("longlong",), "UINT64": ("ulonglong",)}
"""NumPy's other names for the same."""
WORDS = {np.dtype(word).char: name for name, dtype in DTYPES.items() for word in (dtype, *_SAME.get(name, ()))}
MOST_DIMENSIONS = 16
"""What NumPy takes is more, but no observation has so many."""
FEW = 64
"""Up to so many numbers Python itself looks at, which takes less time than asking NumPy."""
LARGEST = 3e38
"""What float32 can hold, and a little less."""
_NUMBERS = {float, int}
_KINDS = {"b": "iufb", "i": "iu", "u": "iu", "f": "iuf"}
"""Which kinds of numbers are taken for a type of this kind; the others would become something else without a word."""


def from_numbers(values: Any, shape: Any, datatype: Any, name: str) -> np.ndarray:
    """The tensor of a list of numbers, flat or nested, in the shape and type that are given beside it."""
    dtype, sizes = dtype_of(datatype, name), shape_of(shape, name)
    if type(values) is not list:
        raise UserError(f'the data of "{name}" must be a list of numbers')
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        raise UserError(f'the data of "{name}" must be numbers in rows of the same length') from None
    if array.dtype != dtype:
        array = _as(array, dtype, datatype, name)
    if array.size != math.prod(sizes):
        raise UserError(f'"{name}" has {array.size} numbers, but its shape {list(sizes)} has {math.prod(sizes)}')
    return array if array.shape == sizes else array.reshape(sizes)


def one_small(values: Any, shape: Any, datatype: Any) -> np.ndarray | None:
    """One observation [1, n] of a few numbers that float32 can hold, all finite; None for whatever else it is.

    The way of nearly all questions, with one call of NumPy: the first of each kind after a pause takes many times as
    long as it does in a loop.
    """
    if (
        datatype == "FP32"
        and type(values) is list
        and 0 < len(values) <= FEW
        and shape == [1, len(values)]
        and _NUMBERS.issuperset(map(type, values))
        and math.hypot(*values) < LARGEST
    ):
        return np.array([values], np.float32)
    return None


def from_bytes(data: bytes | memoryview, shape: Any, datatype: Any, name: str) -> np.ndarray:
    """The tensor of raw bytes, in row order; shares their memory."""
    dtype, sizes = dtype_of(datatype, name), shape_of(shape, name)
    expected = math.prod(sizes) * dtype.itemsize
    if len(data) != expected:
        raise UserError(f'"{name}" has {len(data)} bytes, but shape {list(sizes)} of {datatype} takes {expected}')
    return np.frombuffer(data, dtype).reshape(sizes)


def dtype_of(datatype: Any, name: str) -> np.dtype:
    """NumPy's type for the protocol's word."""
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise UserError(f'the datatype of "{name}" must be one of {", ".join(DTYPES)}')
    return dtype


def word_of(dtype: np.dtype) -> str:
    """The protocol's word for NumPy's type."""
    return WORDS[dtype.char]


def shape_of(shape: Any, name: str) -> tuple[int, ...]:
    """A shape that a client wrote, once it is one."""
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise UserError(f'the shape of "{name}" must be a list of whole numbers, at most {MOST_DIMENSIONS}')
    for size in shape:
        if type(size) is not int or not 0 <= size <= 1 << 40:
            raise UserError(f'the shape of "{name}" must be whole numbers that are not negative')
    return tuple(shape)


def _as(array: np.ndarray, dtype: np.dtype, datatype: str, name: str) -> np.ndarray:
    if array.size and array.dtype.kind not in _KINDS[dtype.kind]:
        raise UserError(f'the data of "{name}" must be numbers that {datatype} can hold')
    if dtype.kind == "f":
        # What is too large becomes infinite, which is refused as NaN is where the observation is checked.
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    whole = array.astype(dtype)
    if not np.array_equal(whole, array):
        raise UserError(f'the data of "{name}" must be numbers that {datatype} can hold')
    return whole
