"""Vanilla policy gradient with a learned baseline, as in A2C and A3C (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from steppe.agents._base import Metrics
from steppe.agents.core.actor_critic import ActorCritic, ActorCriticSettings
from steppe.specs._base import Count, Flag, NonNegative, Positive, Unit
from steppe.specs.learning.optimizer import OptimizerSpec, RMSProp


class VPGSettings(ActorCriticSettings):
    """Settings of `vpg`."""

    gae_lambda: Unit = 0.95
    """How far advantages look ahead: 0 is one step, 1 is the whole episode."""
    horizon: Count = 16
    """How many timesteps each environment takes between two updates."""
    learning_rate: Positive = 2e-3
    """The optimiser's step size; may also be written inside `optimizer`."""
    optimizer: OptimizerSpec = RMSProp()
    """How gradients become steps: a word such as "adam", or an object with its options."""
    normalize_advantages: Flag = False
    """Whether advantages are shifted and scaled to mean 0 and variance 1 in each minibatch."""
    entropy_coefficient: NonNegative = 0.01
    """The weight of the entropy bonus, which favours exploration."""


class VPG(ActorCritic[VPGSettings]):
    """One optimiser step for each trajectory."""

    type = "vpg"
    Settings: ClassVar = VPGSettings
    default_num_envs = 16

    def policy_loss(self, log_probs: Array, old_log_probs: Array, advantages: Array) -> tuple[Array, Metrics]:
        """Log-probabilities weighted by advantages: the policy gradient theorem, negated to be minimised."""
        return -(log_probs * advantages).mean(), {}
