"""One timestep of the recurrent layers, written once for NumPy and JAX (`xp` is numpy or jax.numpy).

| layer | state          | kernel   | recurrent_kernel | gates, side by side                         |
|-------|----------------|----------|------------------|---------------------------------------------|
| lstm  | (hidden, cell) | [F, 4 H] | [H, 4 H]         | input, forget, candidate, output            |
| gru   | (hidden,)      | [F, 3 H] | [H, 3 H]         | reset, update, candidate (recurrent_bias)   |

lstm: Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000; gru: Cho et al. 2014 (arXiv:1406.1078),
with the reset gate after the product, as in today's libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

State = tuple[Any, ...]


def project(params: Mapping[str, Any], x: Any) -> Any:
    """The inputs' [..., F] part of the gates [..., gates * H]; needs no state, so all timesteps go at once."""
    return x @ params["kernel"] + params["bias"]


def advance(kind: str, params: Mapping[str, Any], projected: Any, state: State, xp: Any = np) -> State:
    """The state, [..., H] each, after one timestep of projected inputs; its first part is the layer's output."""
    return (_advance_gru if kind == "gru" else _advance_lstm)(params, projected, state, xp)


def _advance_lstm(params: Mapping[str, Any], projected: Any, state: State, xp: Any) -> State:
    hidden, cell = state
    gates = projected + hidden @ params["recurrent_kernel"]
    size = cell.shape[-1]
    into, forget, out = (_sigmoid(gates[..., at * size : (at + 1) * size], xp) for at in (0, 1, 3))
    cell = forget * cell + into * xp.tanh(gates[..., 2 * size : 3 * size])
    return out * xp.tanh(cell), cell


def _advance_gru(params: Mapping[str, Any], projected: Any, state: State, xp: Any) -> State:
    (hidden,) = state
    size = hidden.shape[-1]
    recurrent = hidden @ params["recurrent_kernel"]
    gates = _sigmoid(projected[..., : 2 * size] + recurrent[..., : 2 * size], xp)
    reset, update = gates[..., :size], gates[..., size:]
    candidate = xp.tanh(projected[..., 2 * size :] + reset * (recurrent[..., 2 * size :] + params["recurrent_bias"]))
    return (candidate + update * (hidden - candidate),)


def _sigmoid(x: Any, xp: Any) -> Any:
    # By tanh, since exp overflows for large negative inputs.
    half = np.float32(0.5)
    return half * xp.tanh(half * x) + half
