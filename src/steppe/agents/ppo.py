"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from pydantic import AliasChoices, Field

from steppe.agents._base import Metrics, Situation, TrainState, Trajectory
from steppe.agents.actor_critic import ActorCritic, ActorCriticSettings, Batch
from steppe.errors import SpecError
from steppe.specs._base import Count, Positive


class PPOSettings(ActorCriticSettings):
    """Settings of `ppo`."""

    clip: Positive = Field(0.2, validation_alias=AliasChoices("clip", "likelihood_ratio_clipping"))
    """The new policy's probability ratio is held within 1 +- clip."""
    epochs: Count = 4
    """How often each trajectory is gone through."""
    minibatches: Count = 4
    """Into how many minibatches each trajectory is cut."""


class PPO(ActorCritic[PPOSettings]):
    """Several epochs of clipped policy gradient over shuffled minibatches of each trajectory."""

    type = "ppo"
    Settings: ClassVar = PPOSettings

    def __init__(self, settings: PPOSettings, situation: Situation) -> None:
        samples = settings.horizon * (situation.num_envs // situation.shards)
        if samples % settings.minibatches:
            raise SpecError(
                f"horizon x num_envs = {samples} timesteps cannot be cut into {settings.minibatches} equal "
                f"minibatches; change agent.horizon, agent.minibatches or num_envs"
            )
        super().__init__(settings, situation)

    @property
    def updates_per_experience(self) -> int:
        """One for each minibatch of each epoch."""
        return self.settings.epochs * self.settings.minibatches

    def policy_loss(self, log_probs: Array, old_log_probs: Array, advantages: Array) -> tuple[Array, Metrics]:
        """The clipped surrogate (eq. 7), negated to be minimised."""
        clip = self.settings.clip
        log_ratio = log_probs - old_log_probs
        ratio = jnp.exp(log_ratio)
        surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages)
        metrics = {
            "approximate_kl": jnp.mean(ratio - 1 - log_ratio),
            "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > clip),
        }
        return -surrogate.mean(), metrics

    def update(self, state: TrainState, experience: Trajectory) -> tuple[TrainState, Metrics]:
        """epochs x minibatches optimiser steps as one compiled scan."""
        state = self.note_rewards(state, experience)
        batch = self.prepare(state, experience)
        shuffle_key, key = jax.random.split(state.key)
        if self.axis is not None:
            shuffle_key = jax.random.fold_in(shuffle_key, jax.lax.axis_index(self.axis))
        state = state._replace(key=key)
        samples = batch.advantages.shape[0]
        order = shuffled(shuffle_key, self.settings.epochs, samples).reshape(self.updates_per_experience, -1)

        def step(state: TrainState, indices: Array) -> tuple[TrainState, Metrics]:
            minibatch = Batch(*(leaf[indices] for leaf in batch))
            gradients, metrics = self.gradients(state, minibatch)
            return self.apply(state, gradients), metrics

        state, metrics = jax.lax.scan(step, state, order)
        return self.note_observations(state, experience), jax.tree.map(jnp.mean, metrics)


def shuffled(key: Array, rows: int, length: int) -> Array:
    """`rows` random orders of 0 .. length - 1, as int32 [rows, length].

    Each number gets random high bits and is sorted with them: one plain sort of 32-bit words is several times faster
    than sorting pairs. Numbers whose random bits agree keep their order, which at 15 random bits and more is harmless.
    """
    index_mask = jnp.uint32((1 << max(1, (length - 1).bit_length())) - 1)
    words = jax.random.bits(key, (rows, length), jnp.uint32)
    words = (words & ~index_mask) | jnp.arange(length, dtype=jnp.uint32)
    return (jax.lax.sort(words, is_stable=False) & index_mask).astype(jnp.int32)
