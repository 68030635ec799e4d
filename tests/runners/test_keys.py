"""Keys with numbers drawn in one pass give the numbers of JAX's keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.runners import keys

DRAWS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "shorts": lambda key: jax.random.bits(key, (7,), jnp.uint16),
    "one number": lambda key: jax.random.uniform(key),
    "nothing": lambda key: jax.random.uniform(key, (0, 3)),
    "uniform": lambda key: jax.random.uniform(key, (4, 2), minval=-2.0),
    "normal": lambda key: jax.random.normal(key, (33,)),
    "gumbel": lambda key: jax.random.gumbel(key, (2, 3, 4)),
    "integers": lambda key: jax.random.randint(key, (100,), 0, 7),
    "permutation": lambda key: jax.random.permutation(key, 50),
    "categorical": lambda key: jax.random.categorical(key, jnp.log(jnp.arange(1.0, 5.0)), shape=(20,)),
    "split": lambda key: jax.random.key_data(jax.random.split(key)),
    "split many": lambda key: jax.random.key_data(jax.random.split(key, (5, 3))),
    "fold in": lambda key: jax.random.key_data(jax.random.fold_in(key, 12)),
    "of each": lambda key: jax.vmap(lambda one: jax.random.uniform(one, (2,)))(jax.random.split(key, 6)),
}


@pytest.mark.parametrize("name", DRAWS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31 - 1))
def test_every_draw_is_that_of_a_plain_key(name: str, seed: int) -> None:
    draw = DRAWS[name]
    drawn, plain = np.asarray(draw(keys.make(seed))), np.asarray(draw(jax.random.key(seed)))
    # Numbers computed from the bits may be rounded differently, as in any other program.
    np.testing.assert_allclose(drawn, plain, rtol=1e-6 if drawn.dtype == np.float32 else 0)


def test_a_compiled_draw_is_the_same_and_has_no_loop() -> None:
    draw = jax.jit(DRAWS["of each"])
    np.testing.assert_array_equal(draw(keys.make(3)), DRAWS["of each"](jax.random.key(3)))
    assert " while(" not in draw.lower(keys.make(3)).compile().as_text()


def test_a_key_comes_back_from_its_words() -> None:
    key = jax.random.split(keys.make(1), (2, 3))
    again = keys.wrap(np.asarray(jax.random.key_data(key)))
    assert keys.is_key(again)
    assert again.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(key))


def test_only_keys_are_keys() -> None:
    assert [keys.is_key(each) for each in (keys.make(0), jnp.zeros(2, jnp.uint32), np.zeros(2), 1)] == [True] + [
        False
    ] * 3
