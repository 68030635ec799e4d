"""How much better an action was than expected: generalised advantage estimation (arXiv:1506.02438)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def generalized_advantages(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    discount: float,
    gae_lambda: float,
) -> Array:
    """All [T, N] -> advantages [T, N] (eq. 16).

    `next_values` are the values of the true successors. A terminated episode has no future; a truncated one has,
    so its successor's value still counts, but nothing flows back from the episode that follows it in the array.
    """
    errors = rewards + discount * next_values * (1.0 - terminated) - values
    flows = discount * gae_lambda * (1.0 - jnp.maximum(terminated, truncated))

    def backwards(advantage: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        error, flow = at
        advantage = error + flow * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backwards, jnp.zeros_like(errors[0]), (errors, flows), reverse=True)
    return advantages
