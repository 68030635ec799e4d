"""Normalised advantage functions: Q-learning for continuous actions (Gu et al. 2016, arXiv:1603.00748)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from steppe.agents._base import (
    ActorParams,
    AgentContext,
    Internals,
    Metrics,
    TrainState,
    Transitions,
    normalizer_tensors,
)
from steppe.agents.core.continuous import bounded_actions, dense_layers
from steppe.agents.core.noise import ActsWithNoise
from steppe.agents.core.off_policy import MemorySettings, OffPolicy, OffPolicySettings
from steppe.networks import Network, apply_head, head
from steppe.specs._base import Flag, Positive
from steppe.specs.learning.exploration import GaussianNoise, Noise
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Space


class NAFSettings(OffPolicySettings):
    """Settings of `naf`."""

    learning_rate: Positive = 3e-4
    """The optimiser's step size; may also be written inside `optimizer`."""
    max_gradient_norm: Positive | None = 10.0
    """Longer gradients are shortened to this length; null leaves them as they are."""
    double: Flag = False
    """Whether the target network values the online network's best action instead of its own; also double_q_model."""
    huber: Flag | Positive = False
    """Whether large errors count linearly instead of squared; a number says from which error on. Also huber_loss."""
    exploration: Noise = GaussianNoise()
    """The noise on actions while learning; also spelled actions_exploration."""
    memory: MemorySettings = MemorySettings(capacity=250_000)
    """The replay memory."""


class NAF(ActsWithNoise, OffPolicy[NAFSettings]):
    """A value that falls off quadratically around one best action, all three put out by one network."""

    type = "naf"
    kind = "deterministic"
    Settings: ClassVar = NAFSettings

    def __init__(self, settings: NAFSettings, context: AgentContext) -> None:
        self.action_size = bounded_actions(context, self.type).size
        self.layers = context.network or self.default_network(context.observation)
        self.network = Network(self.layers, context.observation, "lecun", {"regularization"})
        super().__init__(settings, context)

    @classmethod
    def default_network(cls, observation: Space) -> NetworkSpec:
        """Two wide layers for vectors."""
        return dense_layers(observation)

    def draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        """Draws a torso and heads for mu, V and the lower triangle L of the advantage."""
        features, size = self.network.features, self.action_size
        return {
            "torso": self.network.init(rng),
            "head": head(rng, features, size, scale=0.01),
            "value": head(rng, features, 1, scale=1.0),
            "triangle": head(rng, features, size * (size + 1) // 2, scale=0.1),
        }

    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """The best action before the tanh."""
        params = self.layout.split(actor_params.params)
        observations = self.normalized(actor_params.observations, observations)
        return apply_head(params["head"], self.network.apply(params["torso"], observations)), internals

    def loss(self, params: Array, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The error against the reward and the target network's value of the next state (algorithm 1)."""
        batch = self.normalized_batch(state, batch)
        target = self.layout.split(state.target)
        targets = batch.rewards + batch.discounts * self._next_values(target, state, batch)
        key = jax.random.fold_in(state.key, state.updates) if self.network.has_dropout else None
        errors = self.values(self.layout.split(params), batch.observations, batch.actions, key) - targets
        huber = self.settings.huber
        each = 0.5 * errors**2 if huber is False else optax.huber_loss(errors, delta=float(huber))
        loss = (batch.weights * each).mean()
        return loss + self.network.penalty(self.layout.split(params)["torso"]), {
            "td_error": jnp.abs(errors).mean(),
            "priorities": jnp.abs(errors),
        }

    def values(self, params: dict[str, Any], observations: Array, actions: Array, key: Array | None = None) -> Array:
        """The values [B] of actions [B, A] within +-1: eq. 10."""
        features = self.network.apply(params["torso"], observations, key)
        away = actions - jnp.tanh(apply_head(params["head"], features))
        lower = _triangle(apply_head(params["triangle"], features), self.action_size)
        lengths = jnp.einsum("bij,bi->bj", lower, away)
        return apply_head(params["value"], features)[..., 0] - 0.5 * (lengths**2).sum(-1)

    def _next_values(self, target: dict[str, Any], state: TrainState, batch: Transitions) -> Array:
        """The target network's value [B] of the next states or, with `double`, of the online network's actions
        there."""
        observations = batch.next_observations
        if not self.settings.double:
            return apply_head(target["value"], self.network.apply(target["torso"], observations))[..., 0]
        online = self.layout.split(state.params)
        chosen = jnp.tanh(apply_head(online["head"], self.network.apply(online["torso"], observations)))
        return self.values(target, observations, chosen)

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors for the best action, and the normaliser."""
        named = self.layout.named(np.array(state.params))
        tensors = {name: t for name, t in named.items() if name.startswith(("torso/", "head/"))}
        return tensors | normalizer_tensors(self, state)


def _triangle(entries: Array, size: int) -> Array:
    """[B, A (A + 1) / 2] -> lower triangles [B, A, A] with a positive diagonal."""
    rows, columns = np.tril_indices(size)
    entries = jnp.where(rows == columns, jnp.exp(jnp.clip(entries, -10.0, 5.0)), entries)
    return jnp.zeros((entries.shape[0], size, size)).at[:, rows, columns].set(entries)
