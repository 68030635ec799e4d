"""Tensors of the Open Inference Protocol, as numbers and as bytes, by REST and by gRPC."""

from __future__ import annotations

import math
from itertools import chain
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
"""The protocol's names of types; its bytes are little-endian."""
_SAME = {"INT64": ("longlong",), "UINT64": ("ulonglong",)}
"""NumPy's other names for the same types."""
DATATYPES = {np.dtype(word).char: name for name, dtype in DTYPES.items() for word in (dtype, *_SAME.get(name, ()))}
MAX_DIMENSIONS = 16
"""NumPy allows more, but no observation needs them."""
MAX_FAST = 64
"""Up to so many numbers, plain Python is faster than NumPy."""
LARGEST = 3e38
"""A little less than the largest float32."""
_NUMBERS = {float, int}
_LEAVES = {float, int, bool}
_KINDS = {"b": "iufb", "i": "iu", "u": "iu", "f": "iuf"}
"""Kinds of numbers accepted for a type of each kind; others would change their value silently."""


def from_numbers(values: Any, shape: Any, datatype: Any, name: str) -> np.ndarray:
    """Makes a tensor of a list of numbers, flat or nested, in the given shape and type."""
    dtype, sizes = dtype_of(datatype, name), shape_of(shape, name)
    what = f'the data of "{name}"'
    numbers, _ = flattened(values, what, f"numbers that {datatype} can hold")
    if len(numbers) != math.prod(sizes):
        raise UserError(f'"{name}" has {len(numbers)} numbers, but its shape {list(sizes)} has {math.prod(sizes)}')
    array = as_array(numbers, what)
    if array.dtype != dtype:
        array = _as(array, dtype, datatype, name)
    return array.reshape(sizes)


def flattened(values: Any, what: str, wanted: str = "numbers") -> tuple[list[Any], tuple[int, ...]]:
    """(the numbers of a list in row order, the list's own shape); UserError if it holds anything but numbers.

    NumPy must not see the list before: one long text among a million short ones would make every item as wide as the
    longest, and lists of uneven length would become an array of Python objects.
    """
    if type(values) is not list:
        raise UserError(f"{what} must be a list of numbers")
    sizes = [len(values)]
    while list in (types := _types(values)):
        if len(sizes) == MAX_DIMENSIONS:
            raise UserError(f"{what} must be lists that are nested at most {MAX_DIMENSIONS} deep")
        if len(types) > 1 or len(lengths := set(map(len, values))) > 1:
            raise UserError(f"{what} must be numbers in rows of the same length")
        sizes.append(lengths.pop())
        values = list(chain.from_iterable(values))
    if not types <= _LEAVES:
        raise UserError(f"{what} must be {wanted}")
    return values, tuple(sizes)


def as_array(numbers: list[Any], what: str) -> np.ndarray:
    """Makes an array of the numbers that `flattened` returned."""
    # If the first number is a float, NumPy need not look at all of them to choose a type.
    dtype = np.float64 if numbers and type(numbers[0]) is float else None
    try:
        return np.array(numbers, dtype)
    except OverflowError:
        raise UserError(f"{what} must be numbers that 64 bits can hold") from None


def small_vector(values: Any, shape: Any, datatype: Any) -> np.ndarray | None:
    """A single small observation [1, n] of finite float32 numbers; None for anything else.

    The fast path of nearly all questions: one NumPy call, since the first call of each NumPy function after a pause is
    many times slower than in a loop.
    """
    if (
        datatype == "FP32"
        and type(values) is list
        and 0 < len(values) <= MAX_FAST
        and shape == [1, len(values)]
        and _NUMBERS.issuperset(map(type, values))
        and math.hypot(*values) < LARGEST
    ):
        return np.array([values], np.float32)
    return None


def from_bytes(data: bytes | memoryview, shape: Any, datatype: Any, name: str) -> np.ndarray:
    """Makes a tensor of raw bytes in row order, sharing their memory."""
    dtype, sizes = dtype_of(datatype, name), shape_of(shape, name)
    expected = math.prod(sizes) * dtype.itemsize
    if len(data) != expected:
        raise UserError(f'"{name}" has {len(data)} bytes, but shape {list(sizes)} of {datatype} takes {expected}')
    return np.frombuffer(data, dtype).reshape(sizes)


def dtype_of(datatype: Any, name: str) -> np.dtype:
    """NumPy's type for the protocol's name."""
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise UserError(f'the datatype of "{name}" must be one of {", ".join(DTYPES)}')
    return dtype


def datatype_of(dtype: np.dtype) -> str:
    """The protocol's name for NumPy's type."""
    return DATATYPES[dtype.char]


def shape_of(shape: Any, name: str) -> tuple[int, ...]:
    """A shape that a client wrote; UserError unless it is a list of positive whole numbers."""
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise UserError(f'the shape of "{name}" must be a list of at most {MAX_DIMENSIONS} whole numbers')
    for size in shape:
        # Without zeros, a shape that fits the data is never larger than the data.
        if type(size) is not int or not 0 <= size <= 1 << 40:
            raise UserError(f'the shape of "{name}" must be whole numbers that are not negative')
        if size == 0:
            raise UserError(f'the shape of "{name}" has a zero in it, so there are no observations')
    return tuple(shape)


def _types(values: list[Any]) -> set[type]:
    types = list(map(type, values))
    # Nearly always all are floats, and counting is faster than making a set.
    return {float} if types.count(float) == len(types) else set(types)


def _as(array: np.ndarray, dtype: np.dtype, datatype: str, name: str) -> np.ndarray:
    if array.size and array.dtype.kind not in _KINDS[dtype.kind]:
        raise UserError(f'the data of "{name}" must be numbers that {datatype} can hold')
    if dtype.kind == "f":
        # Too large a number becomes infinite, which the check of observations refuses.
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    whole = array.astype(dtype)
    if not np.array_equal(whole, array):
        raise UserError(f'the data of "{name}" must be numbers that {datatype} can hold')
    return whole
