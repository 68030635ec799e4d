"""Deep deterministic policy gradient (Lillicrap et al. 2015, arXiv:1509.02971)."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from steppe.agents._base import Metrics, TrainState, Transitions
from steppe.agents.core.continuous import ActorAndCritics, ContinuousSettings
from steppe.agents.core.noise import ActsWithNoise
from steppe.specs._base import Positive
from steppe.specs.learning.exploration import Noise, OrnsteinUhlenbeck


class DDPGSettings(ContinuousSettings):
    """Settings of `ddpg`."""

    learning_rate: Positive = 3e-4
    """The actor's step size; may also be written inside `optimizer`."""
    critic_learning_rate: Positive | None = 1e-3
    """The critics' step size if it differs; may also be written inside `critic_optimizer`."""
    exploration: Noise = OrnsteinUhlenbeck()
    """The noise on actions while learning; also spelled actions_exploration."""


S = TypeVar("S", bound=DDPGSettings)


class DDPG(ActsWithNoise, ActorAndCritics[S]):
    """A deterministic actor that climbs its critic's estimate, and noise to explore with."""

    type = "ddpg"
    kind = "deterministic"
    Settings: ClassVar = DDPGSettings

    def loss(self, params: Array, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The critics' error (eq. 4) and the actor's negated value (eq. 6); each moves only its own part."""
        batch = self.normalized_batch(state, batch)
        split, frozen = self.layout.split(params), self.layout.split(jax.lax.stop_gradient(params))
        targets = batch.rewards + batch.discounts * self.next_values(state, batch)
        errors = [values - targets for values in self.values(split, batch.observations, batch.actions)]
        critic_loss = jnp.stack([0.5 * (batch.weights * error**2).mean() for error in errors]).sum()
        actor_loss = self.actor_loss(split, frozen, state, batch)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "priorities": jnp.abs(errors[0])}
        return critic_loss + actor_loss + self.penalty(split), metrics

    def next_values(self, state: TrainState, batch: Transitions) -> Array:
        """The value [B] of the target actor's next actions."""
        target = self.layout.split(state.target)
        actions = jnp.tanh(self.act_on(target, batch.next_observations))
        return self.values(target, batch.next_observations, actions)[0]

    def actor_loss(
        self, params: dict[str, Any], frozen: dict[str, Any], state: TrainState, batch: Transitions
    ) -> Array:
        """Minus the value of the actor's actions; only the actor moves."""
        actions = jnp.tanh(self.act_on(params, batch.observations))
        return -self.values(frozen, batch.observations, actions)[0].mean()
