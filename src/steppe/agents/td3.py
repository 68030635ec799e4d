"""Twin delayed deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from steppe.agents._base import AgentContext, TrainState, Transitions
from steppe.agents.core.optimizers import learning_rate_schedule, make_transform
from steppe.agents.ddpg import DDPG, DDPGSettings
from steppe.specs._base import Count, NonNegative, Positive
from steppe.specs.learning.exploration import GaussianNoise, Noise


class TD3Settings(DDPGSettings):
    """Settings of `td3`."""

    learning_rate: Positive = 1e-3
    """The actor's step size; may also be written inside `optimizer`."""
    critic_learning_rate: Positive | None = None
    """The critics' step size, where it differs; may also be written inside `critic_optimizer`."""
    exploration: Noise = GaussianNoise()
    """What is added to actions while learning; also spelled actions_exploration."""
    policy_delay: Count = 2
    """How many updates of the critics go with one of the actor and the targets."""
    target_noise: NonNegative = 0.2
    """The deviation of noise on the target actor's actions."""
    target_noise_clip: NonNegative = 0.5
    """The most that this noise changes an action."""


class TD3(DDPG[TD3Settings]):
    """Two critics of which the lower counts, smoothed targets, and an actor that waits for them."""

    type = "td3"
    Settings: ClassVar = TD3Settings
    critics = 2

    def __init__(self, settings: TD3Settings, context: AgentContext) -> None:
        super().__init__(settings, context)
        total = self.total_updates()
        # The actor's own updates are fewer, so its learning rate must fall faster.
        own = None if total is None else max(1, total // settings.policy_delay)
        rate = learning_rate_schedule(settings, own, settings.learning_rate)
        self.transform = make_transform(settings.optimizer, rate, settings.max_gradient_norm)

    def following(self, state: TrainState, batch: Transitions) -> Array:
        """The lower value [B] of what the target actor would do next, give or take some noise (eq. 14)."""
        settings, target = self.settings, self.layout.split(state.target)
        actions = jnp.tanh(self.act_on(target, batch.next_observations))
        key = jax.random.fold_in(state.key, state.updates)
        noise = settings.target_noise * jax.random.normal(key, actions.shape)
        noise = jnp.clip(noise, -settings.target_noise_clip, settings.target_noise_clip)
        return jnp.minimum(*self.values(target, batch.next_observations, jnp.clip(actions + noise, -1.0, 1.0)))

    def actor_loss(
        self, params: dict[str, Any], frozen: dict[str, Any], state: TrainState, batch: Transitions
    ) -> Array:
        """Only every policy_delay updates."""

        def loss(params: dict[str, Any]) -> Array:
            return super(TD3, self).actor_loss(params, frozen, state, batch)

        return jax.lax.cond(self._is_due(state.updates), loss, lambda params: jnp.float32(0.0), params)

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """The critics move; the actor only every policy_delay updates."""
        moved = super().apply(state, gradients)
        waits = ~self._is_due(state.updates)
        actor, optimizer = jax.tree.map(
            lambda old, new: jnp.where(waits, old, new),
            (self._parted(state.params)[0], state.optimizer[0]),
            (self._parted(moved.params)[0], moved.optimizer[0]),
        )
        params = jnp.concatenate([actor, self._parted(moved.params)[1]])
        held = moved._replace(params=params, optimizer=[optimizer, moved.optimizer[1]])
        return self.after_step(state, held)

    def moved_target(self, state: TrainState, before: Any) -> TrainState:
        """The targets wait as the actor does."""
        moved, delay = super().moved_target(state, before), self.settings.policy_delay
        is_due = state.updates // delay > before // delay
        return moved._replace(target=jnp.where(is_due, moved.target, state.target))

    def _is_due(self, updates: Any) -> Array:
        return (updates + 1) % self.settings.policy_delay == 0
