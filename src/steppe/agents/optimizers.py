"""Optimisers by name, over the one parameter vector."""

from __future__ import annotations

from typing import Literal

import optax

from steppe.errors import UserError

OptimizerName = Literal["adam", "rmsprop", "gradient_descent"]
Decay = Literal["none", "linear"]


def make_optimizer(
    name: OptimizerName, learning_rate: float, max_gradient_norm: float | None, decay: Decay, total_updates: int | None
) -> optax.GradientTransformation:
    """Gradient clipping by norm, then the named optimiser with a constant or linearly falling learning rate."""
    rate: optax.ScalarOrSchedule = learning_rate
    if decay == "linear":
        if total_updates is None:
            raise UserError('learning_rate_decay "linear" needs total_timesteps, to know when it reaches zero')
        rate = optax.linear_schedule(learning_rate, 0.0, total_updates)
    match name:
        case "adam":
            optimizer = optax.adam(rate, eps=1e-5)
        case "rmsprop":
            optimizer = optax.rmsprop(rate, decay=0.99, eps=1e-5)
        case "gradient_descent":
            optimizer = optax.sgd(rate)
    if max_gradient_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optimizer)
