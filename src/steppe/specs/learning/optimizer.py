"""Optimisers in TensorForce's words: `"adam"`, or `{"type": "multi_step", "num_steps": 5, "optimizer": ...}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steppe.specs._base import Count, NonNegative, Positive, Spec, Unit

Fading = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]
"""How much of a running mean is kept at each step."""


class Adam(Spec):
    """Steps scaled by running moments of the gradient (Kingma and Ba 2015)."""

    type: Literal["adam"] = "adam"
    beta1: Fading = 0.9
    """How long gradients are remembered."""
    beta2: Fading = 0.999
    """How long squared gradients are remembered."""
    epsilon: Positive = 1e-5
    """Keeps steps small where gradients are tiny."""


class Nadam(Spec):
    """Adam with Nesterov's momentum (Dozat 2016)."""

    type: Literal["nadam"] = "nadam"
    beta1: Fading = 0.9
    """How long gradients are remembered."""
    beta2: Fading = 0.999
    """How long squared gradients are remembered."""
    epsilon: Positive = 1e-5
    """Keeps steps small where gradients are tiny."""


class Adagrad(Spec):
    """Steps divided by the root of all squared gradients so far (Duchi et al. 2011)."""

    type: Literal["adagrad"] = "adagrad"
    initial_accumulator_value: Positive = 0.1
    """What the sum of squares starts with."""


class Adadelta(Spec):
    """Steps scaled by the ratio of running step and gradient sizes (Zeiler 2012)."""

    type: Literal["adadelta"] = "adadelta"
    rho: Fading = 0.95
    """How long squared steps and gradients are remembered."""
    epsilon: Positive = 1e-8
    """Keeps the ratio finite."""


class RMSProp(Spec):
    """Steps divided by the root of a running mean of squared gradients (Tieleman and Hinton 2012)."""

    type: Literal["rmsprop"] = "rmsprop"
    decay: Fading = 0.99
    """How long squared gradients are remembered."""
    momentum: Unit = 0.0
    """How much of the last step is kept."""
    epsilon: Positive = 1e-5
    """Keeps steps small where gradients are tiny."""


class Momentum(Spec):
    """Gradient descent that keeps part of its last step."""

    type: Literal["momentum"] = "momentum"
    momentum: Unit = 0.9
    """How much of the last step is kept."""
    use_nesterov: bool = False
    """Whether the gradient is looked at from where the momentum leads."""


class GradientDescent(Spec):
    """Plain steps against the gradient."""

    type: Literal["gradient_descent"] = "gradient_descent"


class Evolutionary(Spec):
    """Steps along random directions, weighted by how much each lowers the loss (Salimans et al. 2017)."""

    type: Literal["evolutionary"] = "evolutionary"
    num_samples: Count = 16
    """How many directions are tried, each both ways."""
    deviation: Positive = 0.02
    """How far the directions reach."""


class NaturalGradient(Spec):
    """Steps of a given length in the space of policies (Kakade 2001); learning_rate is that length."""

    type: Literal["natural_gradient"] = "natural_gradient"
    cg_max_iterations: Count = 10
    """How many conjugate-gradient iterations find the direction."""
    cg_damping: NonNegative = 0.1
    """What is added to the Fisher matrix's diagonal."""


class ClippedStep(Spec):
    """Another optimiser, none of whose steps changes a parameter by more than a value."""

    type: Literal["clipped_step"] = "clipped_step"
    clipping_value: Positive
    """The most that any parameter changes."""
    optimizer: OptimizerSpec
    """The optimiser."""


class MultiStep(Spec):
    """Another optimiser, several times on the same batch."""

    type: Literal["multi_step"] = "multi_step"
    num_steps: Count = 10
    """How many times."""
    optimizer: OptimizerSpec
    """The optimiser."""


class OptimizedStep(Spec):
    """Another optimiser, whose step is shortened until the loss really falls."""

    type: Literal["optimized_step"] = "optimized_step"
    ls_max_iterations: Count = 10
    """How often the step is shortened at most; then it is not taken."""
    ls_accept_ratio: Unit = 0.0
    """The part of the first-order improvement that the real one must reach."""
    ls_parameter: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)] = 0.5
    """What the step is multiplied by each time."""
    optimizer: OptimizerSpec
    """The optimiser."""


class SubsamplingStep(Spec):
    """Another optimiser, on a random part of the batch."""

    type: Literal["subsampling_step"] = "subsampling_step"
    fraction: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.1
    """How large a part."""
    optimizer: OptimizerSpec
    """The optimiser."""


def _understood(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


_Optimizers = Annotated[
    Adam
    | Nadam
    | Adagrad
    | Adadelta
    | RMSProp
    | Momentum
    | GradientDescent
    | Evolutionary
    | NaturalGradient
    | ClippedStep
    | MultiStep
    | OptimizedStep
    | SubsamplingStep,
    Field(discriminator="type", title="optimizer"),
]
OptimizerSpec = Annotated[_Optimizers, BeforeValidator(_understood)]

for _wrapper in (ClippedStep, MultiStep, OptimizedStep, SubsamplingStep):
    _wrapper.model_rebuild()
