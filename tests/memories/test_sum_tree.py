"""The sum tree against NumPy's sums."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.memories.sum_tree import SumTree

SIZES = [1, 2, 3, 7, 8, 9, 33]


@partial(jax.jit, static_argnums=0)
def put(tree, nodes, places, priorities):
    return tree.set(nodes, places, priorities)


@partial(jax.jit, static_argnums=(0, 3))
def draw(tree, nodes, key, count):
    return tree.sample(nodes, key, count)


def filled(priorities):
    """(tree, nodes) with these priorities."""
    tree = SumTree(len(priorities))
    places = np.arange(len(priorities))
    return tree, put(tree, tree.init(), places, np.asarray(priorities, np.float32))


def check_sums(tree, nodes, priorities):
    nodes = np.asarray(nodes)
    np.testing.assert_array_equal(nodes[tree.leaves : tree.leaves + tree.size], priorities)
    np.testing.assert_array_equal(nodes[tree.leaves + tree.size :], 0.0)
    # Exactly, not nearly: a sum that drifted from its parts would send draws astray.
    inner = np.arange(1, tree.leaves)
    np.testing.assert_array_equal(nodes[inner], nodes[2 * inner] + nodes[2 * inner + 1])
    np.testing.assert_allclose(nodes[1], np.sum(priorities, dtype=np.float64), rtol=1e-5)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(data=st.data(), size=st.sampled_from(SIZES))
def test_every_node_is_the_sum_of_its_children_after_any_writes(data, size):
    tree = SumTree(size)
    nodes, priorities = tree.init(), np.zeros(size, np.float32)
    for _ in range(data.draw(st.integers(1, 4))):
        count = min(size, 5)
        places = np.array(data.draw(st.permutations(range(size))))[:count]
        values = np.array(data.draw(st.lists(st.floats(0, 1000, width=32), min_size=count, max_size=count)), np.float32)
        values[values < 1e-6] = 0.0
        nodes = put(tree, nodes, places, values)
        priorities[places] = values
        check_sums(tree, nodes, priorities)
        np.testing.assert_array_equal(tree.get(nodes, places), values)


def test_sums_are_correct_after_a_place_is_written_twice_at_once():
    tree, nodes = filled([1.0, 2.0, 3.0])
    nodes = np.asarray(put(tree, nodes, np.array([1, 1]), np.array([5.0, 5.0], np.float32)))
    check_sums(tree, nodes, np.array([1.0, 5.0, 3.0], np.float32))


@pytest.mark.parametrize("size", SIZES)
def test_draws_come_in_proportion_to_priority(size):
    priorities = np.random.default_rng(size).uniform(0.0, 3.0, size).astype(np.float32)
    tree, nodes = filled(priorities)
    places, probabilities = draw(tree, nodes, jax.random.key(0), 2048)
    shares = priorities / priorities.sum()
    np.testing.assert_allclose(probabilities, shares[np.asarray(places)], rtol=1e-5)
    # One draw from each of 2048 equal slices: no count is further than two slices from its share.
    counts = np.bincount(places, minlength=size)
    assert np.all(np.abs(counts - 2048 * shares) <= 2)


def test_single_draws_come_in_proportion_to_priority():
    priorities = np.array([1.0, 0.0, 4.0, 0.5, 2.5], np.float32)
    tree, nodes = filled(priorities)
    places = jax.vmap(lambda key: tree.sample(nodes, key, 1)[0][0])(jax.random.split(jax.random.key(1), 8000))
    counts = np.bincount(places, minlength=5)
    assert counts[1] == 0
    drawn = [0, 2, 3, 4]
    assert stats.chisquare(counts[drawn], 8000 * priorities[drawn] / 8).pvalue > 0.01


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    size=st.sampled_from(SIZES),
    exponents=st.lists(st.integers(-6, 6), min_size=33, max_size=33),
    seed=st.integers(0, 99),
)
def test_places_without_priority_are_never_drawn(size, exponents, seed):
    rng = np.random.default_rng(seed)
    priorities = np.float32(10.0) ** np.array(exponents[:size], np.float32) * rng.uniform(0.5, 1.0, size)
    priorities[rng.random(size) < 0.5] = 0.0
    priorities[rng.integers(size)] = 1.0
    tree, nodes = filled(priorities)
    places, probabilities = draw(tree, nodes, jax.random.key(seed), 256)
    assert np.all(np.asarray(places) < size)
    assert np.all(priorities[np.asarray(places)] > 0)
    assert np.all(np.asarray(probabilities) > 0)


def test_an_empty_tree_draws_a_place_that_exists():
    tree = SumTree(3)
    places, probabilities = draw(tree, tree.init(), jax.random.key(0), 16)
    assert np.all(np.asarray(places) == 0)
    assert np.all(np.asarray(probabilities) == 0)
