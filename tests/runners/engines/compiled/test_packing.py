"""Small arrays are packed into one vector and unpacked unchanged."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.runners.engines.compiled.packing import LARGEST, Packing

TREE = {
    "numbers": np.array([1.5, -0.0, np.nan, np.inf], np.float32),
    "counts": np.array([[1, -2], [3, 2**31 - 1]], np.int32),
    "one": np.float32(0.25),
    "none": np.zeros((0, 3), np.float32),
    "flags": np.array([True, False]),
    "bytes": np.arange(5, dtype=np.uint8),
    "large": np.arange(LARGEST + 1, dtype=np.float32),
    "empty": (),
}


def test_every_leaf_comes_back_bit_for_bit():
    tree = {**TREE, "keys": jax.random.split(jax.random.key(3), 2)}
    packing = Packing(tree)
    packed = jax.jit(packing.pack)(tree)
    back = jax.jit(packing.unpack)(packed)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for name, leaf in TREE.items():
        if name != "empty":
            assert np.asarray(back[name]).dtype == leaf.dtype
            assert np.asarray(back[name]).tobytes() == leaf.tobytes(), name
    np.testing.assert_array_equal(jax.random.key_data(back["keys"]), jax.random.key_data(tree["keys"]))


def test_only_small_arrays_of_32_bit_words_are_packed():
    words, *alone = jax.jit(Packing(TREE).pack)(TREE)
    assert words.shape == (4 + 4 + 1,)
    assert sorted(np.asarray(leaf).size for leaf in alone) == [2, 5, LARGEST + 1]


def test_the_host_reads_and_writes_the_words_in_place():
    tree = {"vector": np.zeros(3, np.float32), "count": np.int32(0)}
    packing = Packing(tree, largest=None)
    words = np.zeros(packing.words, np.uint32)
    views = packing.views(words)
    views["vector"][:] = [1.0, 2.0, 3.0]
    views["count"][...] = -7
    back = jax.jit(lambda words: packing.unpack((words,)))(words)
    np.testing.assert_array_equal(back["vector"], [1.0, 2.0, 3.0])
    assert back["count"] == -7
    told = np.asarray(jax.jit(lambda words: packing.pack(packing.unpack((words,)))[0])(words))
    assert packing.views(told)["count"] == -7


def test_an_empty_tree_packs_into_no_words():
    packing = Packing({})
    assert jax.jit(packing.pack)({})[0].shape == (0,)
    assert packing.views(np.zeros(0, np.uint32)) == {}
    assert jnp.asarray(packing.words) == 0


def test_arrays_are_found_by_name():
    tree = {
        "vector": np.arange(3, dtype=np.float32),
        "count": np.int32(-7),
        "statistics": (np.ones(2, np.float32), np.full((2, 2), 5.0, np.float32)),
    }
    packing = Packing(tree, largest=None)
    named = packing.named(np.asarray(jax.jit(packing.pack)(tree)[0]))
    np.testing.assert_array_equal(named["vector"], tree["vector"])
    assert named["count"] == -7
    for part, expected in zip(named["statistics"], tree["statistics"], strict=True):
        np.testing.assert_array_equal(part, expected)
    with pytest.raises(KeyError):
        named["nothing"]
