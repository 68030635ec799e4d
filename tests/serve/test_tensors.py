from __future__ import annotations

import numpy as np
import pytest

from steppe.errors import UserError
from steppe.serve.tensors import DTYPES, from_bytes, from_numbers, one_small, word_of


@pytest.mark.parametrize("word", DTYPES)
def test_numbers_and_bytes_mean_the_same_in_every_type(word):
    values = [1, 0, 1, 1, 0, 1]
    array = from_numbers(values, [2, 3], word, "x")
    assert array.dtype == DTYPES[word]
    again = from_bytes(array.tobytes(), [2, 3], word, "x")
    assert np.array_equal(array, again)
    assert word_of(array.dtype) == word


def test_a_small_observation_is_read_as_the_long_way_reads_it():
    rng = np.random.default_rng(0)
    for size in (1, 2, 4, 17, 64):
        values = rng.normal(size=size).tolist()
        quick = one_small(values, [1, size], "FP32")
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
def test_whatever_is_unusual_goes_the_long_way(values, shape, word):
    assert one_small(values, shape, word) is None


def test_numbers_never_become_others_without_a_word():
    for values, word in (([1.5], "INT32"), ([256], "UINT8"), ([-1], "UINT32"), (["1"], "FP32"), ([2**70], "INT64")):
        with pytest.raises(UserError, match="can hold"):
            from_numbers(values, [1], word, "x")
