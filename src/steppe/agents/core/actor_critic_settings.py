"""What every policy-gradient agent can be told."""

from __future__ import annotations

from pydantic import model_validator

from steppe.agents.core.distributions import DistributionName
from steppe.agents.core.optimizers import OptimizerSettings, innermost
from steppe.specs._base import Count, Flag, NonNegative, Number, Positive, Unit
from steppe.specs.learning.baseline import BaselineSpec
from steppe.specs.learning.optimizer import NaturalGradient, OptimizerSpec


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
    """The value network, where it has other layers than the policy's; "none" learns no values at all."""
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

    @property
    def learns_values(self) -> bool:
        """Whether there is a value network at all."""
        return self.baseline is None or self.baseline.type != "none"

    @property
    def notices(self) -> tuple[str, ...]:
        """Also of what has less effect than it seems."""
        more = []
        if not self.learns_values and self.rollout_episodes is None:
            more.append(
                "without a baseline what follows the end of a rollout counts as nothing; with rollout_episodes they "
                "end where episodes do"
            )
        is_given = "max_gradient_norm" in self.model_fields_set and self.max_gradient_norm is not None
        if is_given and isinstance(innermost(self.optimizer), NaturalGradient):
            more.append("max_gradient_norm is for the value network only: natural steps have a length of their own")
        return tuple(more)

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
        is_natural = isinstance(innermost(self.optimizer), NaturalGradient)
        if is_natural and self.learning_rate_decay != "none":
            raise ValueError(
                "learning_rate_decay is for step sizes; natural_gradient has a divergence as learning_rate"
            )
        if not self.learns_values:
            self._check_nothing_is_said_of_values()
            return self
        if self.share_network and is_natural:
            raise ValueError(
                "natural steps move the policy only, so the value network needs layers of its own: share_network false "
                '(baseline_mode "states")'
            )
        if self.share_network and (self.baseline is not None or self.baseline_optimizer is not None):
            raise ValueError("a baseline or baseline_optimizer needs a value network of its own: share_network false")
        if is_natural and self.baseline_optimizer is None:
            raise ValueError("natural_gradient moves the policy only: give a baseline_optimizer for the value network")
        usual = type(self).model_fields["baseline_learning_rate"].default
        if self.baseline_optimizer is None and self.baseline_learning_rate != usual:
            raise ValueError("baseline_learning_rate is the step size of a baseline_optimizer, which is not given")
        if self.baseline_optimizer is not None and isinstance(innermost(self.baseline_optimizer), NaturalGradient):
            raise ValueError("natural_gradient measures steps of a policy, so it cannot be the baseline_optimizer")
        return self

    def _check_nothing_is_said_of_values(self) -> None:
        names = ("share_network", "value_coefficient", "baseline_optimizer", "baseline_learning_rate", "gae_lambda")
        for name in names:
            nothing = 1.0 if name == "gae_lambda" else type(self).model_fields[name].default
            if name in self.model_fields_set and getattr(self, name) not in (None, False, nothing):
                raise ValueError(f'{name} needs a value network, but baseline is "none" (baseline_mode null)')
        if "max_gradient_norm" in self.model_fields_set and isinstance(innermost(self.optimizer), NaturalGradient):
            raise ValueError("max_gradient_norm has no meaning here: natural steps have a length of their own")
