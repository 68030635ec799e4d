"""Soft actor-critic with automatic temperature (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import model_validator

from steppe.agents._base import Metrics, TrainState, Transitions
from steppe.agents.core.continuous import ActorAndCritics, ContinuousSettings
from steppe.agents.core.noise import DriftingNoise
from steppe.policies.heads import LOG_STD_RANGE
from steppe.specs._base import NonNegative, Number, Positive
from steppe.specs.learning.exploration import DriftingNoiseSpec, Noise


class SACSettings(ContinuousSettings):
    """Settings of `sac`."""

    temperature: Literal["auto"] | NonNegative = "auto"
    """How much entropy counts against reward; "auto" learns it."""
    initial_temperature: Positive = 1.0
    """The initial value of a learned temperature."""
    target_entropy: Literal["auto"] | Number = "auto"
    """The target entropy of a learned temperature; "auto" is minus the number of elements of an action."""
    drifting_noise: DriftingNoiseSpec | None = None
    """The process of noise that is correlated over time, for goals that independent noise hardly ever reaches; null:
    none."""

    @model_validator(mode="after")
    def _learned_or_fixed(self) -> SACSettings:
        for name in ("initial_temperature", "target_entropy"):
            is_default = getattr(self, name) == type(self).model_fields[name].default
            if self.temperature != "auto" and not is_default:
                raise ValueError(f'{name} is for a learned temperature; leave it out, or set temperature "auto"')
        return self


class SAC(DriftingNoise, ActorAndCritics[SACSettings]):
    """A stochastic actor that is rewarded for its entropy, and two critics of which the lower counts."""

    type = "sac"
    kind = "squashed_gaussian"
    Settings: ClassVar = SACSettings
    critics = 2

    @property
    def noise_process(self) -> Noise | None:
        """The agent's setting."""
        return self.settings.drifting_noise

    @property
    def resolved_settings(self) -> dict[str, Any]:
        """Adds the target entropy."""
        return super().resolved_settings | {"target_entropy": self.target_entropy}

    def draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        """Adds the logarithm of the temperature as a parameter."""
        initial = np.full(1, math.log(self.settings.initial_temperature), np.float32)
        # The name sorts it after the critics.
        return super().draw_params(rng) | {"temperature": {"log": initial}}

    def loss(self, params: Array, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The critics' errors (eq. 5), the actor's loss (eq. 7) and the temperature's (eq. 18); each moves only its own
        part."""
        batch = self.normalized_batch(state, batch)
        split, frozen = self.layout.split(params), self.layout.split(jax.lax.stop_gradient(params))
        own_key, next_key = jax.random.split(jax.random.fold_in(state.key, state.updates))
        temperature = self._temperature(frozen)

        next_actions, next_log_probs = self._draw(frozen, batch.next_observations, next_key)
        next_values = _lowest(self.values(self.layout.split(state.target), batch.next_observations, next_actions))
        targets = batch.rewards + batch.discounts * (next_values - temperature * next_log_probs)
        errors = [values - targets for values in self.values(split, batch.observations, batch.actions)]
        critic_loss = jnp.stack([0.5 * (batch.weights * error**2).mean() for error in errors]).sum()

        actions, log_probs = self._draw(split, batch.observations, own_key)
        lowest = _lowest(self.values(frozen, batch.observations, actions))
        actor_loss = (temperature * log_probs - lowest).mean()
        entropy = -jax.lax.stop_gradient(log_probs).mean()
        temperature_loss = jnp.float32(0.0)
        if self.settings.temperature == "auto":
            temperature_loss = split["temperature"]["log"][0] * (entropy - self.target_entropy)
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "entropy": entropy,
            "temperature": temperature,
            "priorities": jnp.abs(errors[0]),
        }
        return critic_loss + actor_loss + temperature_loss + self.penalty(split), metrics

    def _draw(self, params: dict[str, Any], observations: Array, key: Array) -> tuple[Array, Array]:
        """(actions [B, A] within +-1, their log-probabilities [B])."""
        outputs = self.act_on(params, observations)
        means, log_stds = jnp.split(outputs, 2, -1)
        log_stds = jnp.clip(log_stds, *LOG_STD_RANGE)
        noise = jax.random.normal(key, means.shape)
        before = means + jnp.exp(log_stds) * noise
        # log(1 - tanh(x)^2), written so that it stays finite for large x.
        stretch = 2.0 * (math.log(2.0) - before - jax.nn.softplus(-2.0 * before))
        log_probs = -0.5 * noise**2 - log_stds - 0.5 * math.log(2 * math.pi) - stretch
        return jnp.tanh(before), log_probs.sum(-1)

    def _temperature(self, params: dict[str, Any]) -> Any:
        if self.settings.temperature == "auto":
            return jnp.exp(params["temperature"]["log"][0])
        return jnp.float32(self.settings.temperature)

    @property
    def target_entropy(self) -> float:
        """The target entropy of a learned temperature."""
        given = self.settings.target_entropy
        return -float(self.action_size) if given == "auto" else given


def _lowest(values: list[Array]) -> Array:
    return jnp.minimum(*values) if len(values) == 2 else values[0]
