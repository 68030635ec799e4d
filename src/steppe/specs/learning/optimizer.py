"""Optimisers: `"adam"`, or `{"type": "multi_step", "num_steps": 5, "optimizer": ...}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steppe.specs._base import Count, NonNegative, Positive, Spec, Unit

Fading = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]
"""The decay rate of a running mean."""


class Adam(Spec):
    """Steps scaled by running moments of the gradient (Kingma and Ba 2015)."""

    type: Literal["adam"] = "adam"
    beta1: Fading = 0.9
    """The decay rate of the mean of gradients."""
    beta2: Fading = 0.999
    """The decay rate of the mean of squared gradients."""
    epsilon: Positive = 1e-5
    """Added to the denominator, which bounds steps along tiny gradients."""


class Nadam(Spec):
    """Adam with Nesterov's momentum (Dozat 2016)."""

    type: Literal["nadam"] = "nadam"
    beta1: Fading = 0.9
    """The decay rate of the mean of gradients."""
    beta2: Fading = 0.999
    """The decay rate of the mean of squared gradients."""
    epsilon: Positive = 1e-5
    """Added to the denominator, which bounds steps along tiny gradients."""


class Adagrad(Spec):
    """Steps divided by the root of all squared gradients so far (Duchi et al. 2011)."""

    type: Literal["adagrad"] = "adagrad"
    initial_accumulator_value: Positive = 0.1
    """The initial value of the sum of squares."""


class Adadelta(Spec):
    """Steps scaled by the ratio of running step and gradient sizes (Zeiler 2012)."""

    type: Literal["adadelta"] = "adadelta"
    rho: Fading = 0.95
    """The decay rate of the means of squared steps and gradients."""
    epsilon: Positive = 1e-8
    """Keeps the ratio finite."""


class RMSProp(Spec):
    """Steps divided by the root of a running mean of squared gradients (Tieleman and Hinton 2012)."""

    type: Literal["rmsprop"] = "rmsprop"
    decay: Fading = 0.99
    """The decay rate of the mean of squared gradients."""
    momentum: Unit = 0.0
    """The share of the last step that is kept."""
    epsilon: Positive = 1e-5
    """Added to the denominator, which bounds steps along tiny gradients."""


class Momentum(Spec):
    """Gradient descent that keeps part of its last step."""

    type: Literal["momentum"] = "momentum"
    momentum: Unit = 0.9
    """The share of the last step that is kept."""
    use_nesterov: bool = False
    """Whether the gradient is taken after the momentum step (Nesterov 1983)."""


class GradientDescent(Spec):
    """Plain steps against the gradient."""

    type: Literal["gradient_descent"] = "gradient_descent"


class Evolutionary(Spec):
    """Steps along random directions, weighted by how much each lowers the loss (Salimans et al. 2017)."""

    type: Literal["evolutionary"] = "evolutionary"
    num_samples: Count = 16
    """The number of random directions, each tried both ways."""
    deviation: Positive = 0.02
    """The standard deviation of the directions."""


class NaturalGradient(Spec):
    """Steps of a given length in the space of policies (Kakade 2001); learning_rate is that length."""

    type: Literal["natural_gradient"] = "natural_gradient"
    cg_max_iterations: Count = 10
    """The number of conjugate-gradient iterations."""
    cg_damping: NonNegative = 0.1
    """The damping: a number added to the diagonal of the Fisher matrix."""


class ClippedStep(Spec):
    """Another optimiser, none of whose steps changes a parameter by more than a value."""

    type: Literal["clipped_step"] = "clipped_step"
    clipping_value: Positive
    """The largest change of any parameter."""
    optimizer: OptimizerSpec
    """The optimiser."""


class MultiStep(Spec):
    """Another optimiser, several times on the same batch."""

    type: Literal["multi_step"] = "multi_step"
    num_steps: Count = 10
    """The number of steps."""
    optimizer: OptimizerSpec
    """The optimiser."""


class OptimizedStep(Spec):
    """Another optimiser, whose step is shortened until the loss falls (backtracking line search)."""

    type: Literal["optimized_step"] = "optimized_step"
    ls_max_iterations: Count = 10
    """The largest number of times that the step is shortened; after it, the step is not taken."""
    ls_accept_ratio: Unit = 0.0
    """The share of the first-order improvement that the actual one must reach."""
    ls_parameter: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)] = 0.5
    """The factor by which the step is shortened each time."""
    optimizer: OptimizerSpec
    """The optimiser."""


class SubsamplingStep(Spec):
    """Another optimiser, on a random part of the batch."""

    type: Literal["subsampling_step"] = "subsampling_step"
    fraction: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.1
    """The share of the batch."""
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
