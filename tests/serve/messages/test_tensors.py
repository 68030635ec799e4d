from __future__ import annotations

import numpy as np
import pytest

from steppe.errors import UserError
from steppe.serve.messages import tensors
from steppe.serve.messages.tensors import DTYPES, datatype_of, from_bytes, from_numbers, small_vector


@pytest.mark.parametrize("word", DTYPES)
def test_numbers_and_bytes_mean_the_same_in_every_type(word):
    values = [1, 0, 1, 1, 0, 1]
    array = from_numbers(values, [2, 3], word, "x")
    assert array.dtype == DTYPES[word]
    again = from_bytes(array.tobytes(), [2, 3], word, "x")
    assert np.array_equal(array, again)
    assert datatype_of(array.dtype) == word


def test_the_fast_path_for_small_observations_agrees_with_the_general_one():
    rng = np.random.default_rng(0)
    for size in (1, 2, 4, 17, 64):
        values = rng.normal(size=size).tolist()
        quick = small_vector(values, [1, size], "FP32")
        slow = from_numbers(values, [1, size], "FP32", "x")
        assert quick.dtype == slow.dtype
        assert np.array_equal(quick, slow)


@pytest.mark.parametrize(
    ("values", "shape", "word"),
    [
        ([1.0, 2.0], [2, 1], "FP32"),
        ([1.0, 2.0], [2], "FP32"),
        ([1.0, 2.0], [1, 3], "FP32"),
        ([1.0, 2.0], [1, 2], "FP64"),
        ([1.0, "2"], [1, 2], "FP32"),
        ([1.0, True], [1, 2], "FP32"),
        ([1.0, None], [1, 2], "FP32"),
        ([1.0, float("nan")], [1, 2], "FP32"),
        ([1.0, float("inf")], [1, 2], "FP32"),
        ([1.0, 1e39], [1, 2], "FP32"),
        ([[1.0, 2.0]], [1, 2], "FP32"),
        ([0.0] * 65, [1, 65], "FP32"),
        ([], [1, 0], "FP32"),
        ("ab", [1, 2], "FP32"),
        (None, None, None),
    ],
)
def test_unusual_observations_take_the_general_path(values, shape, word):
    assert small_vector(values, shape, word) is None


def test_numbers_never_change_silently():
    for values, word in (([1.5], "INT32"), ([256], "UINT8"), ([-1], "UINT32"), (["1"], "FP32"), ([2**70], "INT64")):
        with pytest.raises(UserError, match="can hold"):
            from_numbers(values, [1], word, "x")


@pytest.mark.parametrize(
    "values",
    [["x" * 100, ""], [[1.0], ["x"]], [[1.0], [2.0, 3.0]], [[1.0], 2.0], [1.0, [2.0]], [None], [{}], [[]], [[[]], []]],
)
def test_numpy_never_sees_a_list_with_anything_but_numbers(values, monkeypatch):
    monkeypatch.setattr(tensors, "as_array", None)
    with pytest.raises(UserError):
        from_numbers(values, [2], "FP32", "x")


def test_nested_lists_are_read_as_numpy_reads_them():
    rng = np.random.default_rng(0)
    for shape in ((6,), (2, 3), (3, 1, 2), (1, 2, 3, 1)):
        for array in (rng.normal(size=shape), rng.integers(-5, 5, shape), rng.random(shape) < 0.5):
            numbers, sizes = tensors.flattened(array.tolist(), "x")
            assert sizes == shape
            again = tensors.as_array(numbers, "x").reshape(sizes)
            assert again.dtype == array.dtype
            assert np.array_equal(again, array)


@pytest.mark.parametrize(
    "shape", [[0], [0, 1 << 40, 1 << 40], [-1], [1 << 41], [True], [1.0], ["1"], [1] * 17, None, "1"]
)
def test_a_wrong_shape_is_a_client_error(shape):
    for read in (lambda: from_numbers([], shape, "FP32", "x"), lambda: from_bytes(b"", shape, "FP32", "x")):
        with pytest.raises(UserError, match="shape"):
            read()
