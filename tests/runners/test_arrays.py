"""Conversion of states to named arrays and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.errors import CheckpointError
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.engines.learning import begin
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete


class Inner(NamedTuple):
    numbers: Any
    flags: Any


class Outer(NamedTuple):
    inner: Inner
    key: Any
    several: Any
    table: dict[str, Any]
    nothing: tuple[()]


def example(seed=0):
    return Outer(
        inner=Inner(jnp.arange(6.0).reshape(2, 3) + seed, jnp.array([True, False])),
        key=jax.random.key(seed),
        several=(jnp.int32(4 + seed), jax.random.split(jax.random.key(seed), 3)),
        table={"bytes": np.full(3, 7 + seed, np.uint8), "scalar": np.float32(0.5)},
        nothing=(),
    )


def test_array_names_are_the_paths_in_the_tree():
    arrays = to_arrays(example())
    assert set(arrays) == {
        "inner/numbers",
        "inner/flags",
        "key",
        "several/0",
        "several/1",
        "table/bytes",
        "table/scalar",
    }
    assert all(type(array) is np.ndarray for array in arrays.values())


def test_a_state_comes_back_bit_for_bit():
    state = example(seed=3)
    restored = from_arrays(example(seed=0), to_arrays(state))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    again = to_arrays(restored)
    for name, array in to_arrays(state).items():
        np.testing.assert_array_equal(again[name], array)
        assert again[name].dtype == array.dtype


def test_random_keys_continue_exactly():
    state = example(seed=3)
    restored = from_arrays(example(seed=0), to_arrays(state))
    assert jax.random.uniform(restored.key) == jax.random.uniform(state.key)
    draws = [jax.vmap(jax.random.uniform)(tree.several[1]) for tree in (restored, state)]
    np.testing.assert_array_equal(*draws)


def test_only_shapes_and_dtypes_of_the_template_matter():
    state = example(seed=5)
    restored = from_arrays(jax.eval_shape(example), to_arrays(state))
    np.testing.assert_array_equal(restored.inner.numbers, state.inner.numbers)
    assert jax.random.uniform(restored.key) == jax.random.uniform(state.key)


def test_the_arrays_are_copies():
    numbers = np.zeros(3, np.float32)
    arrays = to_arrays({"a": numbers})
    numbers += 1
    np.testing.assert_array_equal(arrays["a"], 0.0)


@pytest.mark.parametrize("agent", ["random", "vpg", "ppo", "dqn"])
def test_every_agents_learner_comes_back_bit_for_bit(agent):
    network = NetworkSpec([{"type": "dense", "size": 4}])
    settings = {"batch_size": 8, "memory": {"type": "prioritized_replay", "capacity": 64}} if agent == "dqn" else {}
    spec = AgentSpec.model_validate({"type": agent, **settings})
    made = agents.make(spec, AgentContext(Box((3,)), Discrete(2), network, normalize_observations=True))
    first, other = (begin(made, jax.random.key(seed)) for seed in (1, 2))
    arrays = to_arrays(first)
    assert "agent/params" in arrays
    assert "agent/key" in arrays
    restored = to_arrays(from_arrays(other, arrays))
    assert restored.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(restored[name], array)


def test_a_missing_array_is_named():
    arrays = to_arrays(example())
    del arrays["inner/flags"]
    sentence = '^the checkpoint has no "inner/flags"; it was made by an experiment with other settings$'
    with pytest.raises(CheckpointError, match=sentence):
        from_arrays(example(), arrays)


def test_an_array_of_another_shape_is_named():
    arrays = to_arrays(example())
    arrays["inner/numbers"] = np.zeros((2, 4), np.float32)
    sentence = (
        r'^the checkpoint\'s "inner/numbers" is float32 \[2, 4\], but this experiment needs float32 \[2, 3\]; '
        "it was made by an experiment with other settings$"
    )
    with pytest.raises(CheckpointError, match=sentence):
        from_arrays(example(), arrays)


def test_an_array_of_another_dtype_is_named():
    arrays = to_arrays(example())
    arrays["several/0"] = np.float32(4.0)
    with pytest.raises(CheckpointError, match=r'"several/0" is float32 \[\], but this experiment needs int32 \[\]'):
        from_arrays(example(), arrays)


@pytest.mark.parametrize(
    "words", [np.zeros((2, 2), np.uint32), np.zeros((3, 3), np.uint32), np.zeros((3, 2), np.float32)]
)
def test_random_keys_of_another_shape_are_named(words):
    arrays = to_arrays(example())
    arrays["several/1"] = words
    with pytest.raises(CheckpointError, match='"several/1"'):
        from_arrays(example(), arrays)
