"""What every policy-gradient agent can be told."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from steppe.agents import old_words
from steppe.agents.distributions import DistributionName
from steppe.agents.optimizers import OptimizerSettings, innermost, lift_learning_rate
from steppe.specs._base import Count, Flag, NonNegative, Number, Positive, Unit
from steppe.specs.baseline import BaselineSpec
from steppe.specs.optimizer import NaturalGradient, OptimizerSpec


class ActorCriticSettings(OptimizerSettings):
    """Settings of every policy-gradient agent."""

    discount: Unit = 0.99
    """How much the future counts: a reward k timesteps away weighs discount ** k."""
    gae_lambda: Unit = 0.95
    """How far advantages look ahead: 0 is one step, 1 is the whole episode."""
    horizon: Count = 128
    """How many timesteps each environment takes between two updates."""
    rollout_timesteps: Count | None = None
    """How many timesteps all environments together take instead; also update_mode.batch_size."""
    rollout_episodes: Count | None = None
    """How many episodes end between two updates instead; also update_mode.batch_size in episodes."""
    value_coefficient: NonNegative = 0.5
    """The weight of the value error in the loss."""
    entropy_coefficient: NonNegative = 0.0
    """The weight of the entropy bonus that keeps the policy exploring; also spelled entropy_regularization."""
    normalize_advantages: Flag = True
    """Whether advantages are shifted and scaled to mean 0 and variance 1 in each minibatch."""
    share_network: Flag | None = None
    """Whether policy and value share all layers but the last; null: only for images."""
    baseline: BaselineSpec | None = None
    """The value network, where it has other layers than the policy's."""
    baseline_optimizer: OptimizerSpec | None = None
    """An optimiser of its own for the value network."""
    baseline_learning_rate: Positive = 1e-3
    """That optimiser's step size; may also be written inside it."""
    distribution: DistributionName = "auto"
    """How actions are drawn: "categorical" or "bernoulli", "gaussian" or "beta"; also spelled distributions."""
    initial_log_std: Number = 0.0
    """The logarithm of the first spread of Gaussian actions."""
    variable_noise: NonNegative = 0.0
    """The deviation of noise that is added to all parameters while acting, drawn anew for each rollout."""

    @model_validator(mode="before")
    @classmethod
    def _old_words(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = old_words.understand(data, set(cls.model_fields))
        return lift_learning_rate(data, "baseline_optimizer", "baseline_learning_rate")

    @model_validator(mode="after")
    def _parts_are_apart(self) -> ActorCriticSettings:
        for name in ("rollout_timesteps", "rollout_episodes"):
            if "horizon" in self.model_fields_set and getattr(self, name) is not None:
                raise ValueError(f"horizon and {name} (update_mode.batch_size) say the same; give one of them")
        if self.rollout_episodes is not None and self.learning_rate_decay != "none":
            raise ValueError(
                "learning_rate_decay needs to know how many updates there will be, which rollout_episodes leaves open; "
                "give rollout_timesteps"
            )
        if self.share_network and (self.baseline is not None or self.baseline_optimizer is not None):
            raise ValueError("a baseline or baseline_optimizer needs a value network of its own: share_network false")
        if isinstance(innermost(self.optimizer), NaturalGradient) and self.baseline_optimizer is None:
            raise ValueError("natural_gradient moves the policy only: give a baseline_optimizer for the value network")
        usual = type(self).model_fields["baseline_learning_rate"].default
        if self.baseline_optimizer is None and self.baseline_learning_rate != usual:
            raise ValueError("baseline_learning_rate is the step size of a baseline_optimizer, which is not given")
        if isinstance(innermost(self.optimizer), NaturalGradient) and self.learning_rate_decay != "none":
            raise ValueError(
                "learning_rate_decay is for step sizes; natural_gradient has a divergence as learning_rate"
            )
        if self.baseline_optimizer is not None and isinstance(innermost(self.baseline_optimizer), NaturalGradient):
            raise ValueError("natural_gradient measures steps of a policy, so it cannot be the baseline_optimizer")
        return self
