"""How gradients become steps: elementwise optimisers, and those that wrap others, over the one parameter vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array
from pydantic import model_validator

from steppe.agents._base import Metrics, TrainState
from steppe.errors import UserError
from steppe.specs._base import NonNegative, Positive
from steppe.specs.learning.agent_settings import AgentSettings
from steppe.specs.learning.optimizer import (
    Adadelta,
    Adagrad,
    Adam,
    ClippedStep,
    Evolutionary,
    GradientDescent,
    Momentum,
    MultiStep,
    Nadam,
    NaturalGradient,
    OptimizedStep,
    OptimizerSpec,
    RMSProp,
    SubsamplingStep,
)

Decay = Literal["none", "linear", "exponential", "cosine"]


class OptimizerSettings(AgentSettings):
    """What every agent that follows gradients can be told about its steps."""

    learning_rate: Positive = 3e-4
    """The optimiser's step size; may also be written inside `optimizer`."""
    learning_rate_decay: Decay = "none"
    """How the learning rate falls until total_timesteps: "linear", "exponential" or "cosine"."""
    final_learning_rate: NonNegative = 0.0
    """Where a falling learning rate ends."""
    optimizer: OptimizerSpec = Adam()
    """How gradients become steps: a word such as "adam", or an object with its options."""
    max_gradient_norm: Positive | None = 0.5
    """Longer gradients are shortened to this length; null leaves them as they are."""

    @model_validator(mode="after")
    def _decays_to_something(self) -> OptimizerSettings:
        if self.learning_rate_decay == "exponential" and not self.final_learning_rate:
            raise ValueError('learning_rate_decay "exponential" never reaches zero: give final_learning_rate')
        if self.learning_rate_decay == "none" and self.final_learning_rate:
            raise ValueError("final_learning_rate is where a falling learning rate ends: give learning_rate_decay too")
        return self


def learning_rate_schedule(
    settings: OptimizerSettings, total_updates: int | None, start: float
) -> optax.ScalarOrSchedule:
    """A learning rate by the number of updates taken; one that starts elsewhere falls in the same proportion."""
    end = settings.final_learning_rate * start / settings.learning_rate
    if settings.learning_rate_decay == "none":
        return start
    if total_updates is None:
        raise UserError(
            f'learning_rate_decay "{settings.learning_rate_decay}" needs total_timesteps, to know when it ends'
        )
    match settings.learning_rate_decay:
        case "linear":
            return optax.linear_schedule(start, end, total_updates)
        case "exponential":
            return optax.exponential_decay(start, total_updates, end / start, end_value=end)
        case _:
            return optax.cosine_decay_schedule(start, total_updates, alpha=end / start)


def make_transform(
    spec: OptimizerSpec, rate: optax.ScalarOrSchedule, max_gradient_norm: float | None
) -> optax.GradientTransformation:
    """Gradient clipping by norm, then the innermost optimiser: what `Agent.apply` does with one gradient."""
    match innermost(spec):
        case Adam(beta1=b1, beta2=b2, epsilon=epsilon):
            transform = optax.adam(rate, b1, b2, epsilon)
        case Nadam(beta1=b1, beta2=b2, epsilon=epsilon):
            transform = optax.nadam(rate, b1, b2, epsilon)
        case Adagrad(initial_accumulator_value=initial):
            transform = optax.adagrad(rate, initial)
        case Adadelta(rho=rho, epsilon=epsilon):
            transform = optax.adadelta(rate, rho, epsilon)
        case RMSProp(decay=decay, momentum=momentum, epsilon=epsilon):
            transform = optax.rmsprop(rate, decay, epsilon, momentum=momentum or None)
        case Momentum(momentum=momentum, use_nesterov=nesterov):
            transform = optax.sgd(rate, momentum, nesterov)
        case GradientDescent() | Evolutionary():
            transform = optax.sgd(rate)
        case NaturalGradient():
            # The direction already has the length that learning_rate asks for.
            return optax.sgd(1.0)
        case other:
            raise AssertionError(other)
    if max_gradient_norm is None:
        return transform
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), transform)


def innermost(spec: Any) -> Any:
    """The optimiser inside all wrappers."""
    while hasattr(spec, "optimizer"):
        spec = spec.optimizer
    return spec


def has_part(spec: Any, kind: type) -> bool:
    """Whether an optimiser is of a kind, or wraps one that is."""
    return isinstance(spec, kind) or (hasattr(spec, "optimizer") and has_part(spec.optimizer, kind))


class Stepping(Protocol):
    """What a wrapped optimiser asks of an agent."""

    def gradients(self, state: TrainState, batch: Any) -> tuple[Array, Metrics]:
        """As in the agent's contract."""

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """As in the agent's contract."""

    def loss(self, params: Array, state: TrainState, batch: Any) -> Array:
        """The scalar that the gradients are of."""

    def pmean(self, values: Array) -> Array:
        """The mean over all devices, so that they take the same decisions."""

    def after_step(self, before: TrainState, moved: TrainState) -> TrainState:
        """What follows from parameters, such as a target network, after a wrapper has changed where a step led."""

    def in_trust_region(self, params: Array, state: TrainState, batch: Any) -> Any:
        """Whether one step may lead from the state to `params`, as far as the optimiser sets bounds."""


def step(spec: OptimizerSpec, agent: Stepping, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
    """One step of an optimiser, whatever it wraps, on a batch whose leaves are [B, ...]."""
    match spec:
        case MultiStep():
            return _repeated(spec, agent, state, batch)
        case SubsamplingStep():
            key, state = _next_key(state)
            return step(spec.optimizer, agent, state, subsample(batch, key, spec.fraction))
        case ClippedStep():
            moved, metrics = step(spec.optimizer, agent, state, batch)
            change = jnp.clip(moved.params - state.params, -spec.clipping_value, spec.clipping_value)
            return agent.after_step(state, moved._replace(params=state.params + change)), metrics
        case OptimizedStep():
            moved, metrics = step(spec.optimizer, agent, state, batch)
            return agent.after_step(state, _searched(spec, agent, state, moved, batch)), metrics
        case _:
            gradients, metrics = agent.gradients(state, batch)
            return agent.apply(state, gradients), metrics


def steps_of(spec: Any) -> int:
    """How many updates one step counts as."""
    if isinstance(spec, MultiStep):
        return spec.num_steps * steps_of(spec.optimizer)
    return steps_of(spec.optimizer) if hasattr(spec, "optimizer") else 1


def gradient_of(
    spec: OptimizerSpec, loss: Callable[[Array], tuple[Array, Any]], params: Array, key: Array
) -> tuple[Array, Any]:
    """(gradient, auxiliary values) of a loss at `params`: exact, or estimated where the optimiser is evolutionary."""
    kind = innermost(spec)
    if not isinstance(kind, Evolutionary):
        return jax.grad(loss, has_aux=True)(params)
    _, auxiliary = loss(params)

    def along(key: Array) -> Array:
        direction = jax.random.normal(key, params.shape)
        reach = kind.deviation * direction
        return direction * (loss(params + reach)[0] - loss(params - reach)[0]) / (2 * kind.deviation)

    return jax.lax.map(along, jax.random.split(key, kind.num_samples)).mean(0), auxiliary


def _repeated(spec: MultiStep, agent: Stepping, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
    def once(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
        return step(spec.optimizer, agent, state, batch)

    state, metrics = jax.lax.scan(once, state, None, length=spec.num_steps)
    return state, jax.tree.map(lambda leaf: leaf.mean(0), metrics)


def subsample(batch: Any, key: Array, fraction: float) -> Any:
    """A random part of a batch, whose leaves are [B, ...]."""
    samples = jax.tree.leaves(batch)[0].shape[0]
    chosen = jax.random.permutation(key, samples)[: max(1, round(samples * fraction))]
    return jax.tree.map(lambda leaf: leaf[chosen], batch)


def _searched(spec: OptimizedStep, agent: Stepping, state: TrainState, moved: TrainState, batch: Any) -> TrainState:
    """Back along the step until the loss has fallen by enough, within reach; not at all where it never does."""
    change = moved.params - state.params
    before, gradient = jax.value_and_grad(agent.loss)(state.params, state, batch)
    expected = -agent.pmean(jnp.vdot(gradient, change))

    def is_refused(carry: tuple[Array, Array]) -> Array:
        scale, tries = carry
        reached = state.params + scale * change
        improvement = before - agent.loss(reached, state, batch)
        enough = (improvement > 0) & (improvement >= spec.ls_accept_ratio * scale * expected)
        enough &= agent.in_trust_region(reached, state, batch)
        return ~enough & (tries < spec.ls_max_iterations)

    def shortened(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return carry[0] * spec.ls_parameter, carry[1] + 1

    scale, tries = jax.lax.while_loop(is_refused, shortened, (jnp.float32(1.0), jnp.int32(0)))
    scale = jnp.where(tries < spec.ls_max_iterations, scale, 0.0)
    return moved._replace(params=state.params + scale * change)


def _next_key(state: TrainState) -> tuple[Array, TrainState]:
    used, kept = jax.random.split(state.key)
    return used, state._replace(key=kept)
