"""Optimisers that wrap others (multi_step, subsampling_step, clipped_step, optimized_step), and gradient estimates
(evolutionary, natural_gradient). Plain optimisers do not use this module.

The size of a natural step is the change of the policy, not of its parameters (Kakade 2001; Schulman et al. 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from steppe.agents.core.optimizers import innermost
from steppe.specs.learning.optimizer import (
    ClippedStep,
    Evolutionary,
    MultiStep,
    NaturalGradient,
    OptimizedStep,
    OptimizerSpec,
    SubsamplingStep,
)

if TYPE_CHECKING:
    from steppe.agents._base import Agent, Metrics, TrainState

Product = Callable[[Array], Array]


class Stepping(Protocol):
    """The interface that a wrapper needs; `LossOptimizer` has it."""

    def gradients(self, state: TrainState, batch: Any) -> tuple[Array, Metrics]:
        """The gradient [P] of the loss over a batch, and metrics."""

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """Moves the parameters against a gradient."""

    def loss(self, params: Array, state: TrainState, batch: Any) -> Array:
        """The scalar loss."""

    def pmean(self, values: Array) -> Array:
        """The mean over all devices, so that all take the same decisions."""

    def after_step(self, before: TrainState, moved: TrainState) -> TrainState:
        """Updates target networks again after a wrapper has changed a step."""

    def in_trust_region(self, params: Array, state: TrainState, batch: Any) -> Any:
        """Whether one step may lead from the state to `params`."""


def wrapped_step(spec: OptimizerSpec, inner: Stepping, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
    """One step of an optimiser, with all that it wraps, on a batch whose leaves are [B, ...]."""
    match spec:
        case MultiStep():
            return _repeated(spec, inner, state, batch)
        case SubsamplingStep():
            key, state = _next_key(state)
            return wrapped_step(spec.optimizer, inner, state, subsample(batch, key, spec.fraction))
        case ClippedStep():
            moved, metrics = wrapped_step(spec.optimizer, inner, state, batch)
            change = jnp.clip(moved.params - state.params, -spec.clipping_value, spec.clipping_value)
            return inner.after_step(state, moved._replace(params=state.params + change)), metrics
        case OptimizedStep():
            moved, metrics = wrapped_step(spec.optimizer, inner, state, batch)
            return inner.after_step(state, _searched(spec, inner, state, moved, batch)), metrics
        case _:
            gradients, metrics = inner.gradients(state, batch)
            return inner.apply(state, gradients), metrics


def gradient_of(
    spec: OptimizerSpec, loss: Callable[[Array], tuple[Array, Any]], params: Array, key: Array
) -> tuple[Array, Any]:
    """(gradient, auxiliary values) of a loss at `params`: exact, or estimated if the optimiser is evolutionary."""
    kind = innermost(spec)
    if not isinstance(kind, Evolutionary):
        return jax.grad(loss, has_aux=True)(params)
    _, auxiliary = loss(params)

    def along(key: Array) -> Array:
        direction = jax.random.normal(key, params.shape)
        reach = kind.deviation * direction
        return direction * (loss(params + reach)[0] - loss(params - reach)[0]) / (2 * kind.deviation)

    return jax.lax.map(along, jax.random.split(key, kind.num_samples)).mean(0), auxiliary


def _repeated(spec: MultiStep, inner: Stepping, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
    def once(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
        return wrapped_step(spec.optimizer, inner, state, batch)

    state, metrics = jax.lax.scan(once, state, None, length=spec.num_steps)
    return state, jax.tree.map(lambda leaf: leaf.mean(0), metrics)


def subsample(batch: Any, key: Array, fraction: float) -> Any:
    """A random part of a batch, whose leaves are [B, ...]."""
    samples = jax.tree.leaves(batch)[0].shape[0]
    chosen = jax.random.permutation(key, samples)[: max(1, round(samples * fraction))]
    return jax.tree.map(lambda leaf: leaf[chosen], batch)


def _searched(spec: OptimizedStep, inner: Stepping, state: TrainState, moved: TrainState, batch: Any) -> TrainState:
    """Backtracking line search: shortens the step until the loss has fallen enough within the trust region; no step if
    it never does."""
    change = moved.params - state.params
    before, gradient = jax.value_and_grad(inner.loss)(state.params, state, batch)
    expected = -inner.pmean(jnp.vdot(gradient, change))

    def is_refused(carry: tuple[Array, Array]) -> Array:
        scale, tries = carry
        reached = state.params + scale * change
        improvement = before - inner.loss(reached, state, batch)
        enough = (improvement > 0) & (improvement >= spec.ls_accept_ratio * scale * expected)
        enough &= inner.in_trust_region(reached, state, batch)
        return ~enough & (tries < spec.ls_max_iterations)

    def shortened(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return carry[0] * spec.ls_parameter, carry[1] + 1

    scale, tries = jax.lax.while_loop(is_refused, shortened, (jnp.float32(1.0), jnp.int32(0)))
    scale = jnp.where(tries < spec.ls_max_iterations, scale, 0.0)
    return moved._replace(params=state.params + scale * change)


def _next_key(state: TrainState) -> tuple[Array, TrainState]:
    used, kept = jax.random.split(state.key)
    return used, state._replace(key=kept)


def natural_gradient_of(
    kind: NaturalGradient, agent: Agent[Any], state: TrainState, batch: Any, gradient: Array
) -> Array:
    """The natural step [P] against a gradient, whose divergence is the agent's learning rate."""
    product = fisher_product(lambda params: agent.divergence(params, state, batch), state.params)
    rate = agent.settings.learning_rate
    return natural_step(gradient, lambda v: agent.pmean(product(v)), rate, kind.cg_max_iterations, kind.cg_damping)


def natural_step(gradient: Array, fisher_product: Product, max_kl: float, iterations: int, damping: float) -> Array:
    """The step [P] against a gradient [P] whose divergence is max_kl, to second order.

    `fisher_product` multiplies a vector [P] by the Fisher information matrix.
    """

    def product(vector: Array) -> Array:
        return fisher_product(vector) + damping * vector

    direction = conjugate_gradient(product, gradient, iterations)
    curvature = jnp.vdot(direction, product(direction))
    length = jnp.sqrt(2.0 * max_kl / jnp.maximum(curvature, 1e-12))
    return jnp.where(curvature > 0, length, 0.0) * direction


def fisher_product(divergence: Callable[[Array], Array], params: Array) -> Product:
    """Multiplication by the Hessian of a divergence at `params`, its minimum: the Fisher information matrix."""
    gradient = jax.grad(divergence)

    def product(vector: Array) -> Array:
        # Reverse mode twice, since the convolutions have no forward mode.
        return jax.grad(lambda at: jnp.vdot(gradient(at), vector))(params)

    return product


def conjugate_gradient(product: Product, target: Array, iterations: int, tolerance: float = 1e-10) -> Array:
    """x with product(x) = target, for a symmetric positive matrix (Hestenes and Stiefel 1952)."""

    def iteration(_: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, residual, direction, size = carry
        is_going = size > tolerance
        image = product(direction)
        step = jnp.where(is_going, size / jnp.maximum(jnp.vdot(direction, image), 1e-20), 0.0)
        x, residual = x + step * direction, residual - step * image
        new_size = jnp.vdot(residual, residual)
        direction = residual + jnp.where(is_going, new_size / jnp.maximum(size, 1e-20), 0.0) * direction
        return x, residual, direction, jnp.where(is_going, new_size, size)

    start = (jnp.zeros_like(target), target, target, jnp.vdot(target, target))
    return jax.lax.fori_loop(0, iterations, iteration, start)[0]
