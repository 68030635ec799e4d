"""Arrays and a description in one file: the same bytes for the same content, in any order and layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import load, save

from steppe.files.tensors import checksum, parse, serialize

ARRAYS = st.dictionaries(
    st.text("abc/_", min_size=1, max_size=6),
    arrays_of.arrays(
        st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_]),
        arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=4),
    ),
    max_size=4,
)
WORDS = st.dictionaries(st.text("xyz", min_size=1, max_size=4), st.text(max_size=5), min_size=1, max_size=3)


@given(ARRAYS, WORDS)
def test_files_are_readable_by_steppe_and_by_safetensors(arrays, metadata):
    data = serialize(arrays, metadata)
    read_metadata, ours = parse(data)
    assert read_metadata == metadata
    for read in (ours, load(data)):
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(read[name], array)


@given(ARRAYS, WORDS)
def test_the_order_of_names_and_memory_does_not_change_the_bytes(arrays, metadata):
    other = {name: np.asarray(arrays[name], order="F") for name in reversed(arrays)}
    again = {name: metadata[name] for name in reversed(metadata)}
    assert serialize(arrays, metadata) == serialize(other, again)
    assert checksum("about", arrays) == checksum("about", other)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.update(a=arrays["a"] + 1),
        lambda arrays: arrays.update(a=arrays["a"].reshape(3, 2)),
        lambda arrays: arrays.update(a=arrays["a"].view(np.int32)),
        lambda arrays: arrays.update(b=arrays.pop("a")),
        lambda arrays: arrays.update(b=np.zeros(0)),
    ],
    ids=["numbers", "shape", "type", "name", "one more"],
)
def test_every_change_changes_the_checksum(change):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    before = checksum("about", arrays)
    assert checksum("about", dict(arrays)) == before
    assert checksum("another", arrays) != before
    change(arrays)
    assert checksum("about", arrays) != before


def test_other_files_are_a_value_error():
    whole = save({"a": np.zeros(3)}, {"format": "x"})
    unknown = b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    for data in (b"", b"hello", whole[:-1], whole[8:], len(unknown).to_bytes(8, "little") + unknown + b"\0\0"):
        with pytest.raises(ValueError):
            parse(data)
