"""Trust-region policy optimisation (Schulman et al. 2015, arXiv:1502.05477)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from pydantic import Field, model_validator

from steppe.agents._base import Metrics, TrainState
from steppe.agents.core.actor_critic import ActorCritic, ActorCriticSettings
from steppe.agents.core.policy_value_networks import PolicyBatch
from steppe.specs._base import Count, NonNegative, Positive, Unit
from steppe.specs.learning.optimizer import Adam, MultiStep, NaturalGradient, OptimizedStep, OptimizerSpec


class TRPOSettings(ActorCriticSettings):
    """Settings of `trpo`."""

    horizon: Count = 256
    """How many timesteps each environment takes between two updates."""
    learning_rate: Positive = 0.01
    """The divergence between the policies before and after an update; TensorForce's name for the trust region."""
    cg_max_iterations: Count = 10
    """How many conjugate-gradient iterations find the direction."""
    cg_damping: NonNegative = 0.1
    """The damping that is added to the Fisher matrix's diagonal."""
    ls_max_iterations: Count = 10
    """How often a step without improvement is shortened before it is given up."""
    ls_accept_ratio: Unit = 0.1
    """The share of the first-order improvement that the real improvement must reach."""
    optimizer: OptimizerSpec = Field(default=NaturalGradient(), exclude=True)
    """The natural gradient with the settings above."""
    baseline_optimizer: OptimizerSpec | None = MultiStep(num_steps=10, optimizer=Adam())
    """How the value network is fitted after each step of the policy."""

    @model_validator(mode="before")
    @classmethod
    def _has_its_own_optimizer(cls, data: Any) -> Any:
        if isinstance(data, dict) and {"optimizer", "step_optimizer"} & set(data):
            raise ValueError('agent "trpo" has an optimizer of its own; use learning_rate and the cg_ and ls_ settings')
        return data

    @model_validator(mode="after")
    def _build_optimizer(self) -> TRPOSettings:
        step = NaturalGradient(cg_max_iterations=self.cg_max_iterations, cg_damping=self.cg_damping)
        search = OptimizedStep(
            optimizer=step, ls_max_iterations=self.ls_max_iterations, ls_accept_ratio=self.ls_accept_ratio
        )
        # The model is frozen; this completes its construction.
        object.__setattr__(self, "optimizer", search)
        return self


class TRPO(ActorCritic[TRPOSettings]):
    """One step of a given divergence for each trajectory, found by conjugate gradients and a line search."""

    type = "trpo"
    Settings: ClassVar = TRPOSettings

    def policy_loss(self, log_probs: Array, old_log_probs: Array, advantages: Array) -> tuple[Array, Metrics]:
        """The surrogate (eq. 14), negated to be minimised."""
        return -(jnp.exp(log_probs - old_log_probs) * advantages).mean(), {}

    def step(self, state: TrainState, batch: PolicyBatch) -> tuple[TrainState, Metrics]:
        """The policy's step, then the value network's."""
        before = state.params
        state, metrics = super().step(state, batch)
        kl = self.divergence(state.params, state._replace(params=before), batch)
        return state, metrics | {"kl": kl}
