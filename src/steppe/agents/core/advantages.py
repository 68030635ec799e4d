"""Estimates from trajectories: advantages, V-trace targets and lambda-returns.

Arrays are [T, N]. `next_values` are the values of the true successors. At a termination the value of the successor is
0; at a truncation it is bootstrapped. Nothing flows back from the next episode in the array.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from steppe.agents.core.kernels import in_one_kernel


def generalized_advantages(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    discount: float,
    gae_lambda: float,
) -> Array:
    """Generalised advantage estimation (arXiv:1506.02438 eq. 16)."""
    errors = rewards + discount * next_values * (1.0 - terminated) - values
    flows = discount * gae_lambda * (1.0 - jnp.maximum(terminated, truncated))
    return _backwards(errors, flows)


def vtrace(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    log_ratios: Array,
    discount: float,
    trace_lambda: float,
    clip: float,
) -> tuple[Array, Array]:
    """(value targets, advantages) of a policy from the actions of another one (V-trace, arXiv:1802.01561 eq. 1).

    `log_ratios` are the actions' log-probabilities under the learning policy minus those under the one that acted.
    """
    ratios = jnp.exp(log_ratios)
    weights = jnp.minimum(clip, ratios)
    discounts = discount * (1.0 - terminated)
    goes_on = 1.0 - jnp.maximum(terminated, truncated)
    errors = weights * (rewards + discounts * next_values - values)
    corrections = _backwards(errors, discounts * trace_lambda * jnp.minimum(1.0, ratios) * goes_on)
    next_corrections = jnp.concatenate([corrections[1:], jnp.zeros_like(corrections[:1])]) * goes_on
    advantages = weights * (rewards + discounts * (next_values + next_corrections) - values)
    return values + corrections, advantages


def lambda_returns(
    rewards: Array, next_values: Array, terminated: Array, truncated: Array, discount: float, trace_lambda: float
) -> Array:
    """Lambda-returns: one-step targets mixed with longer ones (Q(lambda), Peng and Williams 1996)."""
    goes_on = 1.0 - jnp.maximum(terminated, truncated)
    # The last timestep and the ends of episodes bootstrap from the value alone.
    flows = discount * trace_lambda * goes_on.at[-1].set(0.0)
    errors = rewards + discount * (1.0 - terminated) * next_values - flows * next_values
    return _backwards(errors, flows)


def _backwards(terms: Array, flows: Array) -> Array:
    """x[t] = terms[t] + flows[t] * x[t + 1], from the last row to the first."""

    def add(next_total: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        term, flow = at
        total = term + flow * next_total
        return total, total

    def loop(terms: Array, flows: Array) -> Array:
        return jax.lax.scan(add, jnp.zeros_like(terms[0]), (terms, flows), reverse=True)[1]

    return in_one_kernel(loop)(terms, flows)
