"""Policy-gradient agents: settings, loss, and the targets computed from a trajectory.

The networks are in `policy_value_networks`; gradient and step, which all agents share, in `loss_optimizer`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from pydantic import model_validator

from steppe.agents._base import Metrics, TrainState, Trajectory
from steppe.agents.core import normalizers
from steppe.agents.core.advantages import generalized_advantages
from steppe.agents.core.distributions import DistributionName
from steppe.agents.core.loss_optimizer import LossOptimizer, Terms, slot_of
from steppe.agents.core.optimizers import OptimizerSettings, innermost
from steppe.agents.core.policy_value_networks import PolicyAndValue, PolicyBatch
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
    """The timesteps of all environments together between two updates, instead of horizon; also
    update_mode.batch_size."""
    rollout_episodes: Count | None = None
    """The episodes that end between two updates, instead of horizon; also update_mode.batch_size in episodes."""
    value_coefficient: NonNegative = 0.5
    """The weight of the value error in the loss."""
    entropy_coefficient: NonNegative = 0.0
    """The weight of the entropy bonus, which favours exploration; also spelled entropy_regularization."""
    normalize_advantages: Flag = True
    """Whether advantages are shifted and scaled to mean 0 and variance 1 in each minibatch."""
    share_network: Flag | None = None
    """Whether policy and value share all layers but the last; null: only for images."""
    baseline: BaselineSpec | None = None
    """The value network if its layers differ from the policy's; "none" learns no values at all."""
    baseline_optimizer: OptimizerSpec | None = None
    """A separate optimiser for the value network."""
    baseline_learning_rate: Positive = 1e-3
    """That optimiser's step size; may also be written inside it."""
    distribution: DistributionName = "auto"
    """How actions are drawn: "categorical" or "bernoulli", "gaussian" or "beta"; also spelled distributions."""
    initial_log_std: Number = 0.0
    """The logarithm of the initial standard deviation of Gaussian actions."""
    variable_noise: NonNegative = 0.0
    """The deviation of noise that is added to all parameters while acting, drawn anew for each rollout."""

    @property
    def learns_values(self) -> bool:
        """Whether there is a value network at all."""
        return self.baseline is None or self.baseline.type != "none"

    @property
    def counts_episodes(self) -> bool:
        """Whether rollouts end with episodes."""
        return self.rollout_episodes is not None

    def horizon_for(self, num_envs: int) -> int:
        """How many timesteps each environment takes between two updates, if rollouts are counted in timesteps."""
        return self.horizon if self.rollout_timesteps is None else -(-self.rollout_timesteps // num_envs)

    @property
    def notices(self) -> tuple[str, ...]:
        """Adds notices of settings that have less effect than expected."""
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


S = TypeVar("S", bound=ActorCriticSettings)


class ActorCritic(PolicyAndValue[S], Generic[S]):
    """A policy trained on advantages, and a value function trained on returns."""

    cuts_batches = True
    lists_optimizers = True

    def policy_loss(self, log_probs: Array, old_log_probs: Array, advantages: Array) -> tuple[Array, Metrics]:
        """The policy's loss, in which policy-gradient agents differ: [B] each -> the scalar to minimise, and
        metrics."""
        raise NotImplementedError

    def loss_terms(
        self, params: Array, state: TrainState, batch: PolicyBatch, terms: Terms, index: Any
    ) -> tuple[Array, Metrics]:
        """The policy's loss, minus the entropy bonus, plus the values' squared error."""
        split, settings = self.layout.split(params), self.settings
        key = None
        if self.network.has_dropout or self.value_network.has_dropout:
            key = jax.random.fold_in(jax.random.fold_in(state.key, state.updates), index)
        observations = self.normalized(state.observations, batch.observations)
        outputs, values = self.outputs_and_values(split, observations, batch, key, terms)
        total: Any = jnp.float32(0.0)
        metrics: Metrics = {}
        if terms != "value":
            log_std = split["policy"]["head"].get("log_std")
            log_probs = self.distribution.log_prob(outputs, log_std, batch.actions)
            # Every policy loss is linear in the advantages.
            advantages = weighted(batch.advantages, batch.weights)
            policy_loss, metrics = self.policy_loss(log_probs, batch.log_probs, advantages)
            entropy = weighted(self.distribution.entropy(outputs, log_std), batch.weights).mean()
            total += policy_loss - settings.entropy_coefficient * entropy
            total += self.network.penalty(split["policy"]["torso"])
            metrics |= {"policy_loss": policy_loss, "entropy": entropy}
        if terms != "policy":
            value_loss = weighted((values - batch.returns) ** 2, batch.weights).mean()
            total += settings.value_coefficient * value_loss
            if not self.shares_network:
                total += self.value_network.penalty(split["value"]["torso"])
            metrics |= {"value_loss": value_loss}
        return total, metrics | {"loss": total}

    def prepare(self, state: TrainState, trajectory: Trajectory) -> PolicyBatch:
        """[T, N, ...] -> advantages and value targets, flattened to [T * N, ...] or as sequences [N, T, ...]."""
        values, next_values = self.trajectory_values(state, trajectory)
        rewards = trajectory.rewards
        if self.context.normalize_rewards:
            rewards = normalizers.scale(state.returns, rewards)
        advantages = generalized_advantages(
            rewards,
            values,
            next_values,
            trajectory.terminated.astype(jnp.float32),
            trajectory.truncated.astype(jnp.float32),
            self.settings.discount,
            self.gae_lambda,
        )
        return self.batch_of(trajectory, self.behaviour_log_probs(state, trajectory), advantages, advantages + values)

    def standardized(self, batch: PolicyBatch) -> PolicyBatch:
        """Normalises advantages to mean 0 and variance 1 over all devices, if `normalize_advantages` is set."""
        if not self.settings.normalize_advantages:
            return batch
        centred = batch.advantages - self.pmean(weighted(batch.advantages, batch.weights).mean())
        deviation = jnp.sqrt(self.pmean(weighted(centred**2, batch.weights).mean()))
        return batch._replace(advantages=centred / (deviation + 1e-8))

    def divergence(self, params: Array, state: TrainState, batch: PolicyBatch) -> Array:
        """KL(policy at `state.params` || policy at `params`)."""
        observations = self.normalized(state.observations, batch.observations)
        policies = []
        for vector in (jax.lax.stop_gradient(state.params), params):
            split = self.layout.split(vector)
            outputs, _ = self.outputs_and_values(split, observations, batch, None, "policy")
            policies += [outputs, split["policy"]["head"].get("log_std")]
        return weighted(self.distribution.kl(*policies), batch.weights).mean()

    @property
    def discount(self) -> float:
        """The agent's setting."""
        return self.settings.discount

    @property
    def gae_lambda(self) -> float:
        """The agent's setting; 1 without values, so that advantages are the discounted rewards to come."""
        return self.settings.gae_lambda if self.learns_values else 1.0

    @property
    def resolved_settings(self) -> dict[str, Any]:
        """Adds `distribution` and `share_network`."""
        return super().resolved_settings | {"distribution": self.kind, "share_network": self.shares_network}

    @property
    def optimizers(self) -> tuple[LossOptimizer, ...]:
        """One optimiser for all parameters, or one each for policy and value network."""
        settings = self.settings
        spec, baseline, rate = settings.optimizer, settings.baseline_optimizer, settings.learning_rate
        if baseline is None or not self.learns_values:
            terms: Terms = "all" if self.learns_values else "policy"
            return (LossOptimizer(self, spec, (slot_of(self, spec, rate),), terms),)
        border = self.layout.start_of("value")
        value_slot = slot_of(self, baseline, settings.baseline_learning_rate, border)
        return (
            LossOptimizer(self, spec, (slot_of(self, spec, rate, 0, border),), "policy"),
            LossOptimizer(self, baseline, (value_slot,), "value", 1),
        )


def weighted(values: Array, weights: Any) -> Array:
    """Values times their weights, so that their mean is the weighted mean."""
    return values if isinstance(weights, tuple) else values * weights
