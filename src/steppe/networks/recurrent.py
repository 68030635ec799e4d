"""Recurrent layers over whole sequences."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from steppe.policies import cells


def unroll(
    kind: str, params: dict[str, Array], x: Array, state: cells.State, resets: Array
) -> tuple[Array, cells.State]:
    """Features [T, N, H] and the last state of inputs [T, N, F].

    `state` is what came before the first timestep, [N, H] each; where `resets` [T, N] holds, the timestep begins an
    episode and what came before it is forgotten.
    """
    # The inputs of all timesteps meet their kernel in one large product; only the small recurrent one is in the loop.
    projected = cells.project(params, x)

    def step(state: cells.State, at: tuple[Array, Array]) -> tuple[cells.State, Array]:
        projected, reset = at
        state = tuple(jnp.where(reset[:, None], 0.0, each) for each in state)
        state = cells.advance(kind, params, projected, state, jnp)
        return state, state[0]

    last, hidden = lax.scan(step, state, (projected, resets))
    return hidden, last
