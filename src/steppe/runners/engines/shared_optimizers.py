"""Optimisers over memory that others read and write: each step is taken in place, without a lock.

They take the same steps as the elementwise optimisers of `steppe.agents.core.optimizers`. Each statistic of such an
optimiser shrinks by a decay and grows by an increment, so computing a step and applying it can be separated. Threads
compute it in compiled programs (`UpdateRule`) and only add it up (`SharedOptimizer.move`); parameter servers do both
(`SharedOptimizer.step`) and need no JAX. The caller has already clipped the gradient by its norm, since a shard does
not know the norm of the whole gradient.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steppe.errors import CheckpointError, UserError
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

BLOCK = 16_384
"""The parameters of one pass: they stay in a core's cache over several operations."""

Schedule = float | Callable[[Any], Any]
"""A learning rate, or a function of the number of steps before."""


class ComputedStep(NamedTuple):
    """One step, before it is applied."""

    change: Any
    """Subtracted from the parameters."""
    increments: list[Any]
    """Added to each statistic after its decay."""
    after: list[Any]
    """Each statistic after the step, if no other thread has changed it meanwhile."""


class UpdateRule:
    """How an elementwise optimiser turns gradients into changes: a pure function of NumPy or JAX arrays."""

    def __init__(self, spec: OptimizerSpec, schedule: Schedule) -> None:
        """`spec` is elementwise (adam, rmsprop, ...), or a clipped_step of one that is."""
        self._schedule = schedule
        self._clipping_value: float | None = None
        if isinstance(spec, ClippedStep):
            self._clipping_value, spec = spec.clipping_value, spec.optimizer
        self._kind: _Kind = _KINDS[type(spec)](spec)
        self.decays = self._kind.decays
        """The decay of each statistic, by its name."""
        self.initial = self._kind.initial

    def compute(self, gradient: Any, statistics: Any, taken: Any, xp: Any) -> ComputedStep:
        """The next step against a gradient, after `taken` others; xp is numpy or jax.numpy."""
        rate = self._schedule(taken) if callable(self._schedule) else self._schedule
        computed = self._kind.compute(gradient, statistics, taken, rate, xp)
        if self._clipping_value is None:
            return computed
        return computed._replace(change=xp.clip(computed.change, -self._clipping_value, self._clipping_value))


class SharedOptimizer:
    """One optimiser's statistics of `size` parameters. One owner may `step`, or many threads may `move`."""

    def __init__(self, rule: UpdateRule, size: int) -> None:
        self.rule, self.size = rule, size
        self.statistics = np.full((len(rule.decays), size), rule.initial, np.float32)
        self.taken = 0
        """How many steps were taken."""
        self._decays = np.array([*rule.decays.values()], np.float32)[:, None]
        self._counting = threading.Lock()

    def step(self, params: np.ndarray, gradient: np.ndarray) -> None:
        """Computes and applies one step against the gradient [size], for a single owner."""
        taken = self._count()
        for start in range(0, self.size, BLOCK):
            block = slice(start, start + BLOCK)
            statistics = self.statistics[:, block]
            computed = self.rule.compute(gradient[block], statistics, taken, np)
            for statistic, after in zip(statistics, computed.after, strict=True):
                np.copyto(statistic, after)
            params[block] -= computed.change

    def move(self, params: np.ndarray, change: np.ndarray, increments: np.ndarray) -> None:
        """Applies a step computed by its rule, [size] and [statistics, size]; many threads may call this at once."""
        self._count()
        if increments.size:
            # Decays the current statistics rather than the ones read earlier, so concurrent updates survive.
            self.statistics *= self._decays
            self.statistics += increments
        params -= change

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of everything that the next step depends on: statistics [size], and "count"."""
        named = zip(self.rule.decays, self.statistics, strict=True)
        return {name: values.copy() for name, values in named} | {"count": np.array(self.taken)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores the arrays of `arrays`."""
        for name, values in zip(self.rule.decays, self.statistics, strict=True):
            if name not in arrays or arrays[name].shape != values.shape:
                raise CheckpointError(
                    f'the checkpoint has no "{name}" of {self.size} parameters for the optimizer; it was made by an '
                    "experiment with other settings"
                )
            np.copyto(values, arrays[name])
        self.taken = int(arrays["count"])

    def _count(self) -> int:
        """Counts a step; returns the number of steps before it."""
        with self._counting:
            self.taken += 1
            return self.taken - 1


@dataclass(frozen=True)
class Steps:
    """How a shared optimiser steps on one batch."""

    optimizer: OptimizerSpec
    """An elementwise optimiser, or a clipped_step of one, for `UpdateRule`."""
    repeats: int = 1
    """The number of steps on the batch (multi_step)."""
    fraction: float = 1.0
    """The fraction of the batch that each step uses (subsampling_step)."""


def shared_steps(spec: OptimizerSpec, run_mode: str) -> Steps:
    """How an optimiser steps on a shared model; a UserError if it needs a model of its own."""
    inner: Any = spec
    repeats, fraction = 1, 1.0
    if isinstance(inner, MultiStep):
        repeats, inner = inner.num_steps, inner.optimizer
    if isinstance(inner, SubsamplingStep):
        fraction, inner = inner.fraction, inner.optimizer
    kind = inner.optimizer if isinstance(inner, ClippedStep) else inner
    if type(kind) in _KINDS:
        return Steps(inner, repeats, fraction)
    refused = _first_refused(spec)
    if refused is not None:
        raise UserError(
            f'optimizer "{refused.type}" {_REASONS[type(refused)]}, but in run_mode "{run_mode}" other workers move '
            'the model meanwhile; use an optimizer such as "adam", or run_mode "single"'
        )
    raise UserError(
        f'in run_mode "{run_mode}" optimizers wrap each other in this order only: multi_step, subsampling_step, '
        f'clipped_step, one that wraps none; "{kind.type}" is out of its place'
    )


class _Kind(ABC):
    """One kind of optimiser. In-place operations only change arrays that were made in the same function."""

    initial: float = 0.0

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @property
    def decays(self) -> dict[str, float]:
        """The decay of each statistic, by its name."""
        return {}

    @abstractmethod
    def compute(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> ComputedStep:
        """The next step against a gradient at a learning rate."""


class _Plain(_Kind):
    def compute(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> ComputedStep:
        return ComputedStep(rate * gradient, [], [])


class _Momentum(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"trace": self.spec.momentum}

    def compute(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> ComputedStep:
        momentum = self.spec.momentum
        trace = _updated(statistics[0], momentum, gradient)
        ahead = _updated(trace, momentum, gradient) if self.spec.use_nesterov else trace
        return ComputedStep(rate * ahead, [gradient], [trace])


class _RMSProp(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"nu": self.spec.decay} | ({"trace": self.spec.momentum} if self.spec.momentum else {})

    def compute(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> ComputedStep:
        squares = _squares_increment(gradient, self.spec.decay)
        nu = _updated(statistics[0], self.spec.decay, squares)
        change = gradient / xp.sqrt(nu + self.spec.epsilon)
        change *= rate
        if not self.spec.momentum:
            return ComputedStep(change, [squares], [nu])
        trace = _updated(statistics[1], self.spec.momentum, change)
        return ComputedStep(trace, [squares, change], [nu, trace])


class _Adam(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"mu": self.spec.beta1, "nu": self.spec.beta2}

    def compute(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> ComputedStep:
        beta1, beta2 = self.spec.beta1, self.spec.beta2
        share, squares = (1.0 - beta1) * gradient, _squares_increment(gradient, beta2)
        mu, nu = _updated(statistics[0], beta1, share), _updated(statistics[1], beta2, squares)
        deviation = xp.sqrt(nu * (1.0 / _bias_correction(beta2, taken + 1)))
        deviation += self.spec.epsilon
        change = self._direction(mu, gradient, taken, rate)
        change /= deviation
        return ComputedStep(change, [share, squares], [mu, nu])

    def _direction(self, mu: Any, gradient: Any, taken: Any, rate: Any) -> Any:
        """The bias-corrected mean of the gradients, times the rate."""
        return rate / _bias_correction(self.spec.beta1, taken + 1) * mu


class _Nadam(_Adam):
    def _direction(self, mu: Any, gradient: Any, taken: Any, rate: Any) -> Any:
        beta1 = self.spec.beta1
        ahead = rate * beta1 / _bias_correction(beta1, taken + 2) * mu
        ahead += rate * (1.0 - beta1) / _bias_correction(beta1, taken + 1) * gradient
        return ahead


class _Adagrad(_Kind):
    def __init__(self, spec: Adagrad) -> None:
        super().__init__(spec)
        self.initial = spec.initial_accumulator_value

    @property
    def decays(self) -> dict[str, float]:
        return {"sum_of_squares": 1.0}

    def compute(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> ComputedStep:
        squares = gradient * gradient
        sums = statistics[0] + squares
        return ComputedStep(rate * gradient / xp.sqrt(sums + 1e-7), [squares], [sums])


class _Adadelta(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"squared_gradients": self.spec.rho, "squared_changes": self.spec.rho}

    def compute(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> ComputedStep:
        rho, epsilon = self.spec.rho, self.spec.epsilon
        squares = _squares_increment(gradient, rho)
        gradients = _updated(statistics[0], rho, squares)
        change = gradient * xp.sqrt((statistics[1] + epsilon) / (gradients + epsilon))
        moved = _squares_increment(change, rho)
        return ComputedStep(rate * change, [squares, moved], [gradients, _updated(statistics[1], rho, moved)])


_KINDS: dict[type, type[Any]] = {
    Adam: _Adam,
    Nadam: _Nadam,
    Adagrad: _Adagrad,
    Adadelta: _Adadelta,
    RMSProp: _RMSProp,
    Momentum: _Momentum,
    GradientDescent: _Plain,
    Evolutionary: _Plain,
}
_REASONS: dict[type, str] = {
    NaturalGradient: "keeps each step within a divergence of one policy",
    OptimizedStep: "searches along each step for a lower loss",
}


def _first_refused(spec: Any) -> Any:
    while type(spec) not in _REASONS:
        if not hasattr(spec, "optimizer"):
            return None
        spec = spec.optimizer
    return spec


def _squares_increment(values: Any, decay: float) -> Any:
    """The increment of a running mean of squares."""
    squares = values * values
    squares *= 1.0 - decay
    return squares


def _updated(statistic: Any, decay: float, increment: Any) -> Any:
    """A statistic after a step."""
    after = decay * statistic
    after += increment
    return after


def _bias_correction(decay: float, steps: Any) -> Any:
    """Adam's bias correction: 1 - decay**steps."""
    # With a decay of 1 the mean stays zero, so the divisor does not matter.
    return 1.0 - decay**steps if decay < 1.0 else 1.0
