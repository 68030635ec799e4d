"""Computing in chunks gives the same results as computing at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.agents.core.kernels import CHUNK, map_chunks, mean_over_chunks
from steppe.agents.core.policy_value_networks import PolicyBatch
from steppe.specs.spaces import Discrete


@pytest.mark.parametrize("samples", [8, CHUNK, 2 * CHUNK, 5 * CHUNK, 5 * CHUNK + 1])
def test_the_mean_over_chunks_is_the_mean_over_all(samples):
    values = np.random.default_rng(0).standard_normal((samples, 3)).astype(np.float32)
    mean = jax.jit(lambda v: mean_over_chunks(lambda chunk, _: chunk["a"].mean(0), {"a": v}))(values)
    np.testing.assert_allclose(mean, values.mean(0), atol=1e-5)


@pytest.mark.parametrize("samples", [8, 3 * CHUNK, 3 * CHUNK - 1])
def test_mapping_chunks_keeps_the_order(samples):
    values = np.arange(samples, dtype=np.float32)
    np.testing.assert_array_equal(jax.jit(lambda v: map_chunks(lambda c: c * 2, v))(values), values * 2)


def test_a_large_batch_is_worked_on_in_several_chunks():
    seen = jax.jit(lambda v: mean_over_chunks(lambda chunk, index: index.astype(jnp.float32), v))(np.zeros(4 * CHUNK))
    assert seen == pytest.approx((0 + 1 + 2 + 3) / 4)


def test_the_gradient_of_a_large_batch_is_the_mean_of_its_parts(make_agent, shaken):
    agent = make_agent("ppo", Discrete(2), horizon=8, normalize_advantages=False)
    state, rng, samples = shaken(agent), np.random.default_rng(1), 3 * CHUNK

    def draw(*shape):
        return rng.standard_normal((samples, *shape)).astype(np.float32)

    batch = PolicyBatch(draw(3), rng.integers(0, 2, samples), draw(2), draw(), draw(), draw(), {}, ())
    gradients = jax.jit(agent.gradients)
    whole, metrics = gradients(state, batch)
    parts = [
        gradients(state, jax.tree.map(lambda leaf, start=start: leaf[start : start + CHUNK], batch))
        for start in range(0, samples, CHUNK)
    ]
    np.testing.assert_allclose(whole, np.mean([part[0] for part in parts], axis=0), atol=1e-5)
    assert metrics["loss"] == pytest.approx(np.mean([part[1]["loss"] for part in parts]), rel=1e-4)
