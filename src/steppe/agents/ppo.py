"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

Read on in core/actor_critic.py: advantages, the whole loss (policy, value, entropy) and the settings that all
policy-gradient agents share.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from pydantic import Field, model_validator

from steppe.agents._base import AgentContext, Metrics
from steppe.agents.core.actor_critic import ActorCritic, ActorCriticSettings
from steppe.errors import SpecError
from steppe.specs._base import Count, Positive

MOST_MINIBATCHES = 16
"""The default number of minibatches of a trajectory that is long enough."""
MOST_OF_SEQUENCES = 4
"""The same for a recurrent network, whose minibatches hold whole sequences, one for each environment."""
SMALLEST_MINIBATCH = 32
"""The fewest timesteps of a minibatch with the default number."""


class PPOSettings(ActorCriticSettings):
    """Settings of `ppo`."""

    clip: Positive = 0.2
    """The new policy's probability ratio is held within 1 +- clip; also spelled likelihood_ratio_clipping."""
    epochs: Count = 10
    """The number of passes over each trajectory."""
    minibatches: Count | None = None
    """The number of minibatches of each trajectory; null: 16, for recurrent networks 4, or fewer if it is short."""
    optimization_steps: Count | None = None
    """The number of steps on random parts of each trajectory, instead of epochs; as in TensorForce."""
    subsampling_fraction: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.1
    """The share of the trajectory in each of these steps."""

    @property
    def minibatch_count(self) -> int:
        """The number of minibatches if it is set, else 1."""
        return self.minibatches or 1

    def minibatch_size(self, timesteps: int) -> int:
        """The size of a minibatch of a trajectory of `timesteps`, as far as the settings define it."""
        if self.optimization_steps is not None:
            return round(timesteps * self.subsampling_fraction)
        return timesteps // (self.minibatches or MOST_MINIBATCHES)

    @model_validator(mode="after")
    def _one_way_to_cut(self) -> PPOSettings:
        given = self.model_fields_set
        if self.optimization_steps is None and "subsampling_fraction" in given:
            raise ValueError("subsampling_fraction belongs to optimization_steps, which is not given")
        if self.optimization_steps is not None and given & {"epochs", "minibatches"}:
            raise ValueError("give either optimization_steps or epochs and minibatches")
        return self


class PPO(ActorCritic[PPOSettings]):
    """Several epochs of clipped policy gradient over shuffled minibatches of each trajectory."""

    type = "ppo"
    Settings: ClassVar = PPOSettings

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

    def minibatches(self, key: Array, samples: int) -> Array:
        """Which samples each step learns from: indices [steps, size]."""
        settings = self.settings
        if settings.optimization_steps is None:
            return shuffled(key, settings.epochs, samples).reshape(self.batches_per_rollout, -1)
        size = max(1, round(samples * settings.subsampling_fraction))
        return shuffled(key, settings.optimization_steps, samples)[:, :size]

    def __init__(self, settings: PPOSettings, context: AgentContext) -> None:
        super().__init__(settings, context)
        samples, parts = self.samples, self.minibatches_per_epoch
        if settings.optimization_steps is None and samples % parts:
            length, what = "horizon", f"horizon x num_envs = {samples} timesteps"
            if settings.rollout_timesteps is not None:
                length, what = "rollout_timesteps (update_mode.batch_size)", f"{samples} timesteps"
            if self.is_recurrent:
                what = f"{samples} sequences"
            raise SpecError(
                f"{what} cannot be cut into {parts} equal minibatches; change agent.{length}, agent.minibatches or "
                "num_envs"
            )

    @property
    def samples(self) -> int:
        """The number of timesteps, or of sequences for a recurrent network, on each device."""
        envs = self.context.num_envs // self.context.shards
        return envs if self.is_recurrent else self.horizon * envs

    @property
    def minibatches_per_epoch(self) -> int:
        """The setting, or the default number that fits the trajectory."""
        if self.settings.optimization_steps is not None:
            return 1
        if self.settings.minibatches is not None:
            return self.settings.minibatches
        most, length = (MOST_OF_SEQUENCES, self.horizon) if self.is_recurrent else (MOST_MINIBATCHES, 1)
        return _equal_parts(self.samples, min(most, max(1, self.samples * length // SMALLEST_MINIBATCH)))

    @property
    def resolved_settings(self) -> dict[str, Any]:
        """Adds the number of minibatches, unless optimization_steps replaces them."""
        own = {"minibatches": self.minibatches_per_epoch} if self.settings.optimization_steps is None else {}
        return super().resolved_settings | own

    @property
    def batches_per_rollout(self) -> int:
        """One batch for each minibatch of each epoch."""
        return self.settings.optimization_steps or self.settings.epochs * self.minibatches_per_epoch


def _equal_parts(samples: int, most: int) -> int:
    """The largest number of equal parts, at most `most`, into which the samples can be divided."""
    return next(parts for parts in range(most, 0, -1) if samples % parts == 0)


def shuffled(key: Array, rows: int, length: int) -> Array:
    """`rows` random orders of 0 .. length - 1, as int32 [rows, length].

    Each number gets random high bits and is sorted with them: a sort of 32-bit words is several times faster than
    sorting pairs. Numbers whose random bits agree keep their order, which at 15 random bits and more is harmless.
    """
    index_mask = jnp.uint32((1 << max(1, (length - 1).bit_length())) - 1)
    words = jax.random.bits(key, (rows, length), jnp.uint32)
    words = (words & ~index_mask) | jnp.arange(length, dtype=jnp.uint32)
    return (jax.lax.sort(words, is_stable=False) & index_mask).astype(jnp.int32)
