"""Twin delayed deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from steppe.agents._base import TargetSync, TrainState, Transitions
from steppe.agents.ddpg import DDPG, DDPGSettings
from steppe.specs._base import Count, NonNegative, Positive
from steppe.specs.learning.exploration import GaussianNoise, Noise


class TD3Settings(DDPGSettings):
    """Settings of `td3`."""

    learning_rate: Positive = 1e-3
    """The actor's step size; may also be written inside `optimizer`."""
    critic_learning_rate: Positive | None = None
    """The critics' step size if it differs; may also be written inside `critic_optimizer`."""
    exploration: Noise = GaussianNoise()
    """The noise on actions while learning; also spelled actions_exploration."""
    policy_delay: Count = 2
    """How many updates of the critics there are for each update of the actor and the targets."""
    target_noise: NonNegative = 0.2
    """The deviation of noise on the target actor's actions."""
    target_noise_clip: NonNegative = 0.5
    """The largest change of an action by this noise."""


class TD3(DDPG[TD3Settings]):
    """Two critics of which the lower counts, smoothed targets, and an actor that waits for them."""

    type = "td3"
    Settings: ClassVar = TD3Settings
    critics = 2

    def next_values(self, state: TrainState, batch: Transitions) -> Array:
        """The lower value [B] of the target actor's next actions, which are smoothed by noise (eq. 14)."""
        settings, target = self.settings, self.layout.split(state.target)
        actions = jnp.tanh(self.act_on(target, batch.next_observations))
        key = jax.random.fold_in(state.key, state.updates)
        noise = settings.target_noise * jax.random.normal(key, actions.shape)
        noise = jnp.clip(noise, -settings.target_noise_clip, settings.target_noise_clip)
        return jnp.minimum(*self.values(target, batch.next_observations, jnp.clip(actions + noise, -1.0, 1.0)))

    def actor_loss(
        self, params: dict[str, Any], frozen: dict[str, Any], state: TrainState, batch: Transitions
    ) -> Array:
        """The actor's loss in every policy_delay-th update, else zero."""

        def loss(params: dict[str, Any]) -> Array:
            return super(TD3, self).actor_loss(params, frozen, state, batch)

        return jax.lax.cond(self._is_due(state.updates), loss, lambda params: jnp.float32(0.0), params)

    @property
    def target_sync(self) -> TargetSync:
        """The targets move only every policy_delay-th update."""
        return super().target_sync._replace(delay=self.settings.policy_delay)

    def _is_due(self, updates: Any) -> Array:
        return (updates + 1) % self.settings.policy_delay == 0
