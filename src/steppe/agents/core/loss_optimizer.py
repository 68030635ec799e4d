"""The gradient of a loss, and the optimiser that follows it.

Most agents have one loss and one optimiser for all parameters. A value network may have its own loss and optimiser.
Actor and critics have one loss, and each its own optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array

from steppe.agents.core.kernels import mean_over_chunks
from steppe.agents.core.learning_rate import LearningRate
from steppe.agents.core.optimizers import innermost, make_transform, steps_of
from steppe.agents.core.wrapped_steps import gradient_of, natural_gradient_of, wrapped_step
from steppe.specs.learning.optimizer import Evolutionary, NaturalGradient, OptimizerSpec

if TYPE_CHECKING:
    from steppe.agents._base import Agent, Metrics, TrainState

Terms = Literal["all", "policy", "value"]
"""The terms of the loss that an optimiser follows."""
SLACK = 1.5
"""The factor by which a natural step may exceed the requested divergence."""


@dataclass(frozen=True)
class OptimizerSlot:
    """A part of the parameter vector, and the optimiser that moves it."""

    start: int
    stop: int
    spec: OptimizerSpec
    """The optimiser as written, which may wrap another one."""
    rate: LearningRate
    max_gradient_norm: float | None
    every: int = 1
    """This part moves in every `every`-th update (the actor of td3)."""

    def transform(self) -> optax.GradientTransformation:
        """Clips a gradient by its norm and turns it into a step."""
        return make_transform(self.spec, self.rate.schedule(), self.max_gradient_norm)


def slot_of(
    agent: Agent[Any],
    spec: OptimizerSpec,
    learning_rate: float,
    start: int = 0,
    stop: int | None = None,
    steps: int | None = None,
    every: int = 1,
) -> OptimizerSlot:
    """A slot with the experiment's learning-rate schedule; `steps` are taken on each batch."""
    batches, settings = agent.total_batches(), agent.settings
    total = None if batches is None else max(1, batches * (steps_of(spec) if steps is None else steps) // every)
    rate = LearningRate.of(settings, total, learning_rate)
    end = agent.layout.size if stop is None else stop
    return OptimizerSlot(start, end, spec, rate, settings.max_gradient_norm, every)


class LossOptimizer:
    """One loss, and the slots that step along its gradient."""

    def __init__(
        self,
        agent: Agent[Any],
        spec: OptimizerSpec,
        slots: tuple[OptimizerSlot, ...],
        terms: Terms = "all",
        first: int = 0,
    ) -> None:
        """`first` is the index of its first slot among those of the agent."""
        self.first = first
        self.agent, self.spec, self.slots, self.terms = agent, spec, slots, terms

    @property
    def steps(self) -> int:
        """How many updates are taken on one batch."""
        return steps_of(self.spec)

    def init(self, params: Any) -> list[Any]:
        """The state of each slot's optimiser."""
        parts = zip(self._transforms, self._parts(params), strict=True)
        return [jax.jit(transform.init)(part) for transform, part in parts]

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        """One step on a batch whose leaves are [B, ...]."""
        if hasattr(self.spec, "optimizer"):
            return wrapped_step(self.spec, self, state, batch)
        gradients, metrics = self.gradients(state, batch)
        return self.apply(state, gradients), metrics

    def gradients(self, state: TrainState, batch: Any) -> tuple[Array, Metrics]:
        """The gradient [P] of the loss, averaged over devices."""
        agent, kind = self.agent, innermost(self.spec)
        batch = agent.standardized(batch)
        key = jax.random.fold_in(state.key, state.updates)

        def gradient(chunk: Any, index: Array) -> tuple[Array, Metrics]:
            def loss(params: Array) -> tuple[Array, Metrics]:
                value, metrics = agent.loss_terms(params, state, chunk, self.terms, index)
                return value, {"loss": value, **metrics}

            own_key = jax.random.fold_in(key, index) if agent.cuts_batches else key
            return gradient_of(self.spec, loss, state.params, own_key)

        cuts = agent.cuts_batches and not isinstance(kind, Evolutionary)
        gradients, metrics = mean_over_chunks(gradient, batch) if cuts else gradient(batch, jnp.int32(0))
        gradients = agent.pmean(gradients)
        if isinstance(kind, Evolutionary) and self.terms != "all":
            # Evolutionary directions span all parameters, but this optimiser must only move its own.
            gradients = jnp.where(self.is_own(), gradients, 0.0)
        if isinstance(kind, NaturalGradient):
            gradients = natural_gradient_of(kind, agent, state, batch, gradients)
        return gradients, metrics

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """Moves the parameters of the slots."""
        agent = self.agent
        optimizers = list(state.optimizer) if agent.lists_optimizers else [state.optimizer]
        moved = []
        parts = zip(self._parts(state.params), self._parts(gradients), strict=True)
        for index, (slot, transform, (params, gradient)) in enumerate(
            zip(self.slots, self._transforms, parts, strict=True), self.first
        ):
            steps, optimizer = transform.update(gradient, optimizers[index], params)
            stepped = optax.apply_updates(params, steps), optimizer
            if slot.every > 1:
                waits = (state.updates + 1) % slot.every != 0
                before = params, optimizers[index]
                stepped = jax.tree.map(lambda old, new, waits=waits: jnp.where(waits, old, new), before, stepped)
            moved.append(stepped[0])
            optimizers[index] = stepped[1]
        after = state._replace(
            params=jnp.concatenate(moved) if moved[1:] else moved[0],
            optimizer=optimizers if agent.lists_optimizers else optimizers[0],
            updates=state.updates + 1,
        )
        return agent.after_step(state, after)

    def loss(self, params: Array, state: TrainState, batch: Any) -> Array:
        """The loss alone, averaged over devices."""
        return self.pmean(self.agent.loss_terms(params, state, self.agent.standardized(batch), self.terms, 0)[0])

    def pmean(self, values: Array) -> Array:
        """The mean over all devices, so that all take the same decisions."""
        return self.agent.pmean(values)

    def after_step(self, before: TrainState, moved: TrainState) -> TrainState:
        """Moves target networks towards the parameters that a wrapper has finally reached."""
        return self.agent.after_step(before, moved)

    def in_trust_region(self, params: Array, state: TrainState, batch: Any) -> Any:
        """Whether one step may lead to `params`; a natural step bounds its divergence to second order only."""
        if not isinstance(innermost(self.spec), NaturalGradient):
            return True
        divergence = self.pmean(self.agent.divergence(params, state, batch))
        return divergence <= SLACK * self.agent.settings.learning_rate

    def is_own(self) -> Array:
        """A mask [P] of the parameters that the slots move."""
        where = jnp.arange(self.agent.layout.size)
        return (where >= self.slots[0].start) & (where < self.slots[-1].stop)

    @property
    def _transforms(self) -> list[optax.GradientTransformation]:
        return [self.agent.transform_of(slot) for slot in self.slots]

    def _parts(self, vector: Any) -> list[Any]:
        """The input of each slot's optimiser: its part of the vector, or the whole vector for a single slot, with zeros
        for parameters that others move."""
        return [vector[slot.start : slot.stop] for slot in self.slots] if self.slots[1:] else [vector]
