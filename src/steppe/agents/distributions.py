"""Probabilities of actions: categorical for discrete choices, Gaussian for continuous ones.

Written for the update of many samples at once; drawing and choosing the best action are in `steppe.records.heads`,
where NumPy can do them too. `outputs` is what the policy's last layer put out.
"""

from __future__ import annotations

import math
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from steppe.errors import UserError
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space


class Distribution(Protocol):
    """A family of distributions over one action space."""

    kind: str
    outputs: int
    noise_size: int

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """[*shape, noise_size]."""

    def log_prob(self, outputs: Array, log_std: Array | None, actions: Array) -> Array:
        """outputs [..., outputs], actions [..., *shape] -> [...]."""

    def entropy(self, outputs: Array, log_std: Array | None) -> Array:
        """outputs [..., outputs] -> [...]."""


class Categorical:
    """One or several independent discrete choices; outputs are all their logits side by side."""

    kind = "categorical"

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        self.choices = (space.n,) if isinstance(space, Discrete) else space.nvec
        self.is_single = isinstance(space, Discrete)
        self.outputs = self.noise_size = sum(self.choices)

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Gumbel noise: the best logit after adding it is a sample of the softmax."""
        return jax.random.gumbel(key, (*shape, self.noise_size))

    def log_prob(self, outputs: Array, log_std: Array | None, actions: Array) -> Array:
        """Sum of the choices' log-probabilities."""
        columns = [actions] if self.is_single else [actions[..., i] for i in range(len(self.choices))]
        # A comparison with every index instead of a lookup: its gradient is a product, not a slow scatter.
        return sum(  # type: ignore[return-value]
            jnp.where(column[..., None] == jnp.arange(n), log_softmax, 0.0).sum(-1)
            for column, n, log_softmax in zip(columns, self.choices, self._log_softmax(outputs), strict=True)
        )

    def entropy(self, outputs: Array, log_std: Array | None) -> Array:
        """Sum of the choices' entropies."""
        return sum(-(jnp.exp(p) * p).sum(-1) for p in self._log_softmax(outputs))  # type: ignore[return-value]

    def _log_softmax(self, outputs: Array) -> list[Array]:
        start, parts = 0, []
        for n in self.choices:
            parts.append(jax.nn.log_softmax(outputs[..., start : start + n]))
            start += n
        return parts


class Gaussian:
    """Independent normal distributions; outputs are the means, the spreads are parameters of their own."""

    kind = "gaussian"

    def __init__(self, space: Box) -> None:
        self.outputs = self.noise_size = space.size

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Standard normal noise."""
        return jax.random.normal(key, (*shape, self.noise_size))

    def log_prob(self, outputs: Array, log_std: Array | None, actions: Array) -> Array:
        """Log-density of actions [..., A] as drawn, before they are clipped to the environment's bounds."""
        assert log_std is not None
        z = (actions - outputs) * jnp.exp(-log_std)
        return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, outputs: Array, log_std: Array | None) -> Array:
        """Entropy of the spreads: the means do not matter."""
        assert log_std is not None
        each = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return jnp.broadcast_to(each, outputs.shape[:-1])


def distribution_for(space: Space, agent: str) -> Categorical | Gaussian:
    """The natural family for an action space."""
    match space:
        case Discrete() | MultiDiscrete():
            return Categorical(space)
        case Box():
            if not space.dtype.startswith("float"):
                raise UserError(f'agent "{agent}" needs continuous or discrete actions, not whole numbers in a box')
            return Gaussian(space)
