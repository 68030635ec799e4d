"""Custom layers as a user would write them."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp


class Gated(nn.Module):
    """A dense layer times a gate, with dropout in between."""

    size: int
    widths: tuple[int, ...] = ()
    rate: float = 0.0

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        x = nn.Dropout(self.rate, deterministic=not self.has_rng("dropout"))(x)
        return nn.Dense(self.size, name="value")(x) * nn.sigmoid(nn.Dense(self.size, name="gate")(x))


class Counting(nn.Module):
    """Keeps more than parameters."""

    @nn.compact
    def __call__(self, x):
        self.variable("seen", "count", lambda: jnp.zeros(()))
        return x


class Summing(nn.Module):
    """Drops the batch axis."""

    @nn.compact
    def __call__(self, x):
        return x.sum()


def not_a_module(**arguments):
    raise AssertionError("only flax modules may be called")
