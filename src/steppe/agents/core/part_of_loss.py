"""An optimiser, and the terms of an actor-critic's loss that it follows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from steppe.agents._base import Metrics, TrainState
from steppe.agents.core.chunks import mean_over_chunks
from steppe.agents.core.natural_gradient import fisher_product, natural_step
from steppe.agents.core.optimizers import gradient_of, innermost, learning_rate_schedule, make_transform, steps_of
from steppe.specs.learning.optimizer import Evolutionary, NaturalGradient, OptimizerSpec

if TYPE_CHECKING:
    from steppe.agents.core.actor_critic import ActorCritic, Batch, Part

SLACK = 1.5
"""How much more than the divergence that was asked for a natural step may have."""


class PartOfLoss:
    """What `optimizers.step` drives: gradients and steps of one optimiser."""

    def __init__(self, agent: ActorCritic[Any], part: Part) -> None:
        settings = agent.settings
        self.agent, self.part = agent, part
        self.spec: OptimizerSpec = settings.baseline_optimizer if part == "value" else settings.optimizer
        self.index = 1 if part == "value" else 0

    @cached_property
    def transform(self) -> optax.GradientTransformation:
        """What `apply` does with a gradient."""
        settings = self.agent.settings
        return make_transform(self.spec, self._rate(), settings.max_gradient_norm)

    def check(self) -> None:
        """Whether its learning rate can be told: a falling one needs an end."""
        self._rate()

    def gradients(self, state: TrainState, batch: Batch) -> tuple[Array, Metrics]:
        """Of this part of the loss, averaged over devices."""
        agent, kind = self.agent, innermost(self.spec)
        if agent.settings.normalize_advantages:
            batch = agent.standardized(batch)

        def gradient(chunk: Batch, index: Array) -> tuple[Array, Metrics]:
            key = jax.random.fold_in(jax.random.fold_in(state.key, state.updates), index)
            return gradient_of(
                self.spec, lambda params: agent.loss(params, state, chunk, self.part, index), state.params, key
            )

        chunked = mean_over_chunks if not isinstance(kind, Evolutionary) else _whole
        gradients, metrics = chunked(gradient, batch)
        gradients = self.pmean(gradients)
        if isinstance(kind, Evolutionary) and self.part != "all":
            # Random directions reach into the other part, whose parameters this optimiser must not move.
            gradients = jnp.where(agent.is_policy() == (self.part == "policy"), gradients, 0.0)
        if isinstance(kind, NaturalGradient):
            product = fisher_product(lambda params: agent.divergence(params, state, batch), state.params)
            rate = agent.settings.learning_rate
            iterations, damping = kind.cg_max_iterations, kind.cg_damping
            gradients = natural_step(gradients, lambda v: self.pmean(product(v)), rate, iterations, damping)
        return gradients, metrics

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """One step of this optimiser."""
        steps, optimizer = self.transform.update(gradients, state.optimizer[self.index], state.params)
        optimizers = list(state.optimizer)
        optimizers[self.index] = optimizer
        return state._replace(
            params=optax.apply_updates(state.params, steps), optimizer=optimizers, updates=state.updates + 1
        )

    def after_step(self, before: TrainState, moved: TrainState) -> TrainState:
        """Nothing follows from the parameters."""
        return moved

    def in_trust_region(self, params: Array, state: TrainState, batch: Batch) -> Any:
        """A natural step has a divergence, which its length keeps to second order only."""
        if not isinstance(innermost(self.spec), NaturalGradient):
            return True
        divergence = self.pmean(self.agent.divergence(params, state, batch))
        return divergence <= SLACK * self.agent.settings.learning_rate

    def loss(self, params: Array, state: TrainState, batch: Batch) -> Array:
        """This part of the loss, averaged over devices."""
        if self.agent.settings.normalize_advantages:
            batch = self.agent.standardized(batch)
        return self.pmean(self.agent.loss(params, state, batch, self.part)[0])

    def pmean(self, values: Array) -> Array:
        """Over all devices."""
        return values if self.agent.axis is None else jax.lax.pmean(values, self.agent.axis)

    def _rate(self) -> optax.ScalarOrSchedule:
        settings, batches = self.agent.settings, self.agent.total_batches
        start = settings.baseline_learning_rate if self.part == "value" else settings.learning_rate
        return learning_rate_schedule(settings, None if batches is None else batches * steps_of(self.spec), start)


def _whole(function: Any, batch: Any) -> Any:
    return function(batch, jnp.int32(0))
