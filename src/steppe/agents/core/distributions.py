"""Probabilities of actions: categorical or Bernoulli for discrete choices, Gaussian or Beta for continuous ones.

The functions here serve updates. `steppe.policies.heads` draws actions and chooses the best one, in NumPy or JAX.
`outputs` are those of the policy's last layer; `log_std` are the separate parameters of a Gaussian.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import betaln, digamma

from steppe.errors import UserError
from steppe.policies import heads
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space

DistributionName = Literal["auto", "categorical", "bernoulli", "gaussian", "beta"]


class Distribution(Protocol):
    """A family of distributions over one action space."""

    kind: str
    outputs: int

    def log_prob(self, outputs: Array, log_std: Array | None, actions: Array) -> Array:
        """outputs [..., outputs], actions [..., *shape] -> [...]."""

    def entropy(self, outputs: Array, log_std: Array | None) -> Array:
        """outputs [..., outputs] -> [...]."""

    def kl(self, old: Array, old_log_std: Array | None, new: Array, new_log_std: Array | None) -> Array:
        """KL(old || new), [...]."""


class Categorical:
    """One or several independent discrete choices; outputs are all their logits side by side."""

    kind = "categorical"

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        self.choices = (space.n,) if isinstance(space, Discrete) else space.nvec
        self.is_single = isinstance(space, Discrete)
        self.outputs = sum(self.choices)

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

    def kl(self, old: Array, old_log_std: Array | None, new: Array, new_log_std: Array | None) -> Array:
        """Sum of the choices' divergences."""
        return sum(  # type: ignore[return-value]
            (jnp.exp(p) * (p - q)).sum(-1) for p, q in zip(self._log_softmax(old), self._log_softmax(new), strict=True)
        )

    def _log_softmax(self, outputs: Array) -> list[Array]:
        start, parts = 0, []
        for n in self.choices:
            parts.append(jax.nn.log_softmax(outputs[..., start : start + n]))
            start += n
        return parts


class Bernoulli:
    """Independent yes-or-no choices; outputs are the logits of yes."""

    kind = "bernoulli"

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        self.is_single = isinstance(space, Discrete)
        self.outputs = 1 if isinstance(space, Discrete) else len(space.nvec)

    def log_prob(self, outputs: Array, log_std: Array | None, actions: Array) -> Array:
        """The sum over the choices."""
        signs = 2.0 * (actions[..., None] if self.is_single else actions) - 1.0
        return jax.nn.log_sigmoid(signs * outputs).sum(-1)

    def entropy(self, outputs: Array, log_std: Array | None) -> Array:
        """The sum over the choices."""
        yes = jax.nn.sigmoid(outputs)
        return -(yes * jax.nn.log_sigmoid(outputs) + (1 - yes) * jax.nn.log_sigmoid(-outputs)).sum(-1)

    def kl(self, old: Array, old_log_std: Array | None, new: Array, new_log_std: Array | None) -> Array:
        """The sum over the choices."""
        yes = jax.nn.sigmoid(old)
        agreeing = yes * (jax.nn.log_sigmoid(old) - jax.nn.log_sigmoid(new))
        return (agreeing + (1 - yes) * (jax.nn.log_sigmoid(-old) - jax.nn.log_sigmoid(-new))).sum(-1)


class Gaussian:
    """Independent normal distributions; outputs are the means, and `log_std` is a separate parameter."""

    kind = "gaussian"

    def __init__(self, space: Box) -> None:
        self.outputs = space.size

    def log_prob(self, outputs: Array, log_std: Array | None, actions: Array) -> Array:
        """Log-density of actions [..., A] as drawn, before they are clipped to the environment's bounds."""
        assert log_std is not None
        z = (actions - outputs) * jnp.exp(-log_std)
        return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, outputs: Array, log_std: Array | None) -> Array:
        """The entropy, which depends on `log_std` only."""
        assert log_std is not None
        each = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return jnp.broadcast_to(each, outputs.shape[:-1])

    def kl(self, old: Array, old_log_std: Array | None, new: Array, new_log_std: Array | None) -> Array:
        """The sum over the elements of an action."""
        assert old_log_std is not None
        assert new_log_std is not None
        spread = jnp.exp(2 * (old_log_std - new_log_std)) + (old - new) ** 2 * jnp.exp(-2 * new_log_std)
        return (new_log_std - old_log_std + 0.5 * spread - 0.5).sum(-1)


class Beta:
    """Independent Beta distributions over bounded actions (Chou et al. 2017); outputs are their concentrations."""

    kind = "beta"

    def __init__(self, space: Box) -> None:
        self.outputs = 2 * space.size

    def log_prob(self, outputs: Array, log_std: Array | None, actions: Array) -> Array:
        """Log-density of actions [..., A] within +-1."""
        alpha, beta = heads.concentrations(outputs, jnp)
        share = jnp.clip((actions + 1.0) / 2.0, 1e-6, 1 - 1e-6)
        density = (alpha - 1) * jnp.log(share) + (beta - 1) * jnp.log1p(-share) - betaln(alpha, beta)
        return (density - math.log(2.0)).sum(-1)

    def entropy(self, outputs: Array, log_std: Array | None) -> Array:
        """The sum over the elements of an action."""
        alpha, beta = heads.concentrations(outputs, jnp)
        total = alpha + beta
        each = betaln(alpha, beta) - (alpha - 1) * digamma(alpha) - (beta - 1) * digamma(beta)
        return (each + (total - 2) * digamma(total) + math.log(2.0)).sum(-1)

    def kl(self, old: Array, old_log_std: Array | None, new: Array, new_log_std: Array | None) -> Array:
        """The sum over the elements of an action."""
        alpha, beta = heads.concentrations(old, jnp)
        new_alpha, new_beta = heads.concentrations(new, jnp)
        change = (alpha - new_alpha) * digamma(alpha) + (beta - new_beta) * digamma(beta)
        change += (new_alpha - alpha + new_beta - beta) * digamma(alpha + beta)
        return (betaln(new_alpha, new_beta) - betaln(alpha, beta) + change).sum(-1)


def distribution_for(space: Space, agent: str, name: DistributionName = "auto") -> Distribution:
    """The distribution named `name`; "auto" takes the usual one for the action space."""
    match space:
        case Discrete() | MultiDiscrete():
            if name in ("auto", "categorical"):
                return Categorical(space)
            is_binary = set(space.nvec if isinstance(space, MultiDiscrete) else (space.n,)) == {2}
            if name == "bernoulli" and is_binary:
                return Bernoulli(space)
            needed = "choices between two" if name == "bernoulli" else "continuous actions"
            raise UserError(f'distribution "{name}" is for {needed}, which this environment does not have; use "auto"')
        case Box():
            if not space.dtype.startswith("float"):
                raise UserError(f'agent "{agent}" needs continuous or discrete actions, not whole numbers in a box')
            if name in ("auto", "gaussian"):
                return Gaussian(space)
            if name == "beta" and space.is_bounded:
                return Beta(space)
            needed = "actions with bounds" if name == "beta" else "discrete choices"
            raise UserError(f'distribution "{name}" is for {needed}, which this environment does not have; use "auto"')
