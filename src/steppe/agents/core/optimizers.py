"""Settings of optimisers, and optax's elementwise ones. `wrapped_steps` has those that wrap others."""

from __future__ import annotations

from typing import Any

import optax
from pydantic import model_validator

from steppe.agents.core.learning_rate import Decay
from steppe.specs._base import NonNegative, Positive
from steppe.specs.learning.agent_settings import AgentSettings
from steppe.specs.learning.optimizer import (
    Adadelta,
    Adagrad,
    Adam,
    Evolutionary,
    GradientDescent,
    Momentum,
    MultiStep,
    Nadam,
    NaturalGradient,
    OptimizerSpec,
    RMSProp,
)


class OptimizerSettings(AgentSettings):
    """Settings of every agent that follows gradients."""

    learning_rate: Positive = 3e-4
    """The optimiser's step size; may also be written inside `optimizer`."""
    learning_rate_decay: Decay = "none"
    """How the learning rate falls until total_timesteps: "linear", "exponential" or "cosine"."""
    final_learning_rate: NonNegative = 0.0
    """The final value of a falling learning rate."""
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


def make_transform(
    spec: OptimizerSpec, rate: optax.ScalarOrSchedule, max_gradient_norm: float | None
) -> optax.GradientTransformation:
    """Gradient clipping by norm, then the innermost optimiser."""
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
            # The direction has its length, given by learning_rate, already.
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
    """Whether an optimiser is of this kind, or wraps one that is."""
    return isinstance(spec, kind) or (hasattr(spec, "optimizer") and has_part(spec.optimizer, kind))


def steps_of(spec: Any) -> int:
    """The number of updates in one step."""
    if isinstance(spec, MultiStep):
        return spec.num_steps * steps_of(spec.optimizer)
    return steps_of(spec.optimizer) if hasattr(spec, "optimizer") else 1
