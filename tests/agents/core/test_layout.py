"""Parameters as one vector and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from steppe.agents.core.layout import Layout

PARAMETERS = {
    "torso": {"1_dense": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.full(3, 7.0)}, "0_empty": {}},
    "head": {"scale": np.float32(9.0), "kernel": np.arange(10.0, 14.0).reshape(2, 2, 1)},
}
LAYOUT = Layout(PARAMETERS)


def test_the_vector_has_room_for_every_number():
    assert LAYOUT.size == 6 + 3 + 1 + 4
    assert LAYOUT.join(PARAMETERS).shape == (14,)


def test_joining_and_splitting_gives_the_same_parameters_back():
    split = LAYOUT.split(LAYOUT.join(PARAMETERS))
    expected = PARAMETERS
    assert jax.tree.structure(split) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, split, expected)


def test_what_is_split_already_stays_as_it_is():
    split = LAYOUT.split(LAYOUT.join(PARAMETERS))
    assert LAYOUT.split(split) is split


def test_splitting_and_joining_gives_the_same_vector_back():
    vector = np.arange(14, dtype=np.float32)
    np.testing.assert_array_equal(LAYOUT.join(LAYOUT.split(vector)), vector)


def test_names_lead_to_the_arrays_of_the_nested_dict():
    vector = np.asarray(LAYOUT.join(PARAMETERS))
    named = LAYOUT.named(vector)
    assert set(named) == {"torso/1_dense/kernel", "torso/1_dense/bias", "head/scale", "head/kernel"}
    expected = PARAMETERS
    for name, array in named.items():
        leaf = expected
        for part in name.split("/"):
            leaf = leaf[part]
        np.testing.assert_array_equal(array, leaf)
        assert array.shape == leaf.shape


def test_named_arrays_are_windows_into_a_numpy_vector():
    vector = np.zeros(14, np.float32)
    for array in LAYOUT.named(vector).values():
        array += 1.0
    np.testing.assert_array_equal(vector, 1.0)


def test_gradients_reach_the_place_of_their_parameter():
    def first_bias(vector):
        return LAYOUT.split(vector)["torso"]["1_dense"]["bias"][0]

    slope = jax.jit(jax.grad(first_bias))(jnp.zeros(14))
    assert np.count_nonzero(slope) == 1
    assert LAYOUT.named(np.asarray(slope))["torso/1_dense/bias"][0] == 1.0


def test_a_part_begins_where_its_first_array_lies():
    vector = np.arange(14)
    assert LAYOUT.start_of("head") == 0
    assert LAYOUT.start_of("torso") == LAYOUT.split(vector)["torso"]["1_dense"]["bias"][0] == 5
    assert LAYOUT.start_of("torso/1_dense") == 5


def test_joining_inside_a_compiled_program_gives_the_same_vector():
    vector = np.arange(14, dtype=np.float32)
    np.testing.assert_array_equal(jax.jit(lambda v: LAYOUT.joined(LAYOUT.split(v)))(vector), vector)
