"""Optimisers over memory that others read and write: each step is taken in place, without a lock.

They take the steps of the elementwise optimisers of `steppe.agents.core.optimizers`. Each statistic that one of those
keeps shrinks by a decay and grows by an increment, so a step can be told apart from the place where it is taken:
threads have compiled programs compute it (`Rule`) and only add it up (`SharedOptimizer.move`), parameter servers do
both (`SharedOptimizer.step`) and need no JAX. Whoever calls has clipped the gradient by its norm already, since a shard
does not know the norm of the whole.
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
"""How many parameters are worked on at once: what several passes go over stays in a core's cache."""

Schedule = float | Callable[[Any], Any]
"""A learning rate, or one by the number of steps taken before."""


class Told(NamedTuple):
    """One step, before it is taken."""

    change: Any
    """What comes off the parameters."""
    increments: list[Any]
    """What is added to each statistic after its decay."""
    after: list[Any]
    """What each statistic becomes by that, where nobody else has moved it meanwhile."""


class Rule:
    """How an elementwise optimiser turns gradients into changes: pure, of NumPy's arrays or of JAX's."""

    def __init__(self, spec: OptimizerSpec, schedule: Schedule) -> None:
        """`spec` is elementwise (adam, rmsprop, ...), or a clipped_step of one that is."""
        self._schedule = schedule
        self._clipping_value: float | None = None
        if isinstance(spec, ClippedStep):
            self._clipping_value, spec = spec.clipping_value, spec.optimizer
        self._kind: _Kind = _KINDS[type(spec)](spec)
        self.decays = self._kind.decays
        """Of each statistic, by its name: how much of it stays when a step is taken."""
        self.initial = self._kind.initial

    def tell(self, gradient: Any, statistics: Any, taken: Any, xp: Any) -> Told:
        """The next step against a gradient, after `taken` others; xp is numpy or jax.numpy."""
        rate = self._schedule(taken) if callable(self._schedule) else self._schedule
        told = self._kind.tell(gradient, statistics, taken, rate, xp)
        if self._clipping_value is None:
            return told
        return told._replace(change=xp.clip(told.change, -self._clipping_value, self._clipping_value))


class SharedOptimizer:
    """One optimiser's statistics of `size` parameters, and its steps: by one owner, or told, and moved by many."""

    def __init__(self, rule: Rule, size: int) -> None:
        self.rule, self.size = rule, size
        self.statistics = np.full((len(rule.decays), size), rule.initial, np.float32)
        self.taken = 0
        """How many steps were taken."""
        self._decays = np.array([*rule.decays.values()], np.float32)[:, None]
        self._counting = threading.Lock()

    def step(self, params: np.ndarray, gradient: np.ndarray) -> None:
        """Moves params [size] one step against the gradient [size]; for an owner that nobody else interferes with."""
        taken = self._count()
        for start in range(0, self.size, BLOCK):
            block = slice(start, start + BLOCK)
            statistics = self.statistics[:, block]
            told = self.rule.tell(gradient[block], statistics, taken, np)
            for statistic, after in zip(statistics, told.after, strict=True):
                np.copyto(statistic, after)
            params[block] -= told.change

    def move(self, params: np.ndarray, change: np.ndarray, increments: np.ndarray) -> None:
        """Takes a step that its rule has told, [size] and [statistics, size]; any number of threads may at once."""
        self._count()
        if increments.size:
            # Of what they are by now: what others have added since stays.
            self.statistics *= self._decays
            self.statistics += increments
        params -= change

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of all that the next step depends on: statistics [size], and "count"."""
        named = zip(self.rule.decays, self.statistics, strict=True)
        return {name: values.copy() for name, values in named} | {"count": np.array(self.taken)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Goes on where `arrays` left off."""
        for name, values in zip(self.rule.decays, self.statistics, strict=True):
            if name not in arrays or arrays[name].shape != values.shape:
                raise CheckpointError(
                    f'the checkpoint has no "{name}" of {self.size} parameters for the optimizer; it was made by an '
                    "experiment with other settings"
                )
            np.copyto(values, arrays[name])
        self.taken = int(arrays["count"])

    def _count(self) -> int:
        """How many steps were taken before this one."""
        with self._counting:
            self.taken += 1
            return self.taken - 1


@dataclass(frozen=True)
class Steps:
    """How one batch becomes steps of a shared optimiser."""

    optimizer: OptimizerSpec
    """Elementwise, or a clipped_step of one that is: what `Rule` takes."""
    repeats: int = 1
    """How many steps are taken on the batch (multi_step)."""
    fraction: float = 1.0
    """How large a part of the batch each step is taken on (subsampling_step)."""


def shared_steps(spec: OptimizerSpec, run_mode: str) -> Steps:
    """What an optimiser comes down to where the model is shared; a UserError where it needs a model of its own."""
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
    """One kind of optimiser. What is written in place here is written by NumPy only, and into what is made here."""

    initial: float = 0.0

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @property
    def decays(self) -> dict[str, float]:
        """As `Rule` has them."""
        return {}

    @abstractmethod
    def tell(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> Told:
        """As `Rule` does, at a learning rate."""


class _Plain(_Kind):
    def tell(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> Told:
        return Told(rate * gradient, [], [])


class _Momentum(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"trace": self.spec.momentum}

    def tell(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> Told:
        momentum = self.spec.momentum
        trace = _grown(statistics[0], momentum, gradient)
        ahead = _grown(trace, momentum, gradient) if self.spec.use_nesterov else trace
        return Told(rate * ahead, [gradient], [trace])


class _RMSProp(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"nu": self.spec.decay} | ({"trace": self.spec.momentum} if self.spec.momentum else {})

    def tell(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> Told:
        squares = _share_of_squares(gradient, self.spec.decay)
        nu = _grown(statistics[0], self.spec.decay, squares)
        change = gradient / xp.sqrt(nu + self.spec.epsilon)
        change *= rate
        if not self.spec.momentum:
            return Told(change, [squares], [nu])
        trace = _grown(statistics[1], self.spec.momentum, change)
        return Told(trace, [squares, change], [nu, trace])


class _Adam(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"mu": self.spec.beta1, "nu": self.spec.beta2}

    def tell(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> Told:
        beta1, beta2 = self.spec.beta1, self.spec.beta2
        share, squares = (1.0 - beta1) * gradient, _share_of_squares(gradient, beta2)
        mu, nu = _grown(statistics[0], beta1, share), _grown(statistics[1], beta2, squares)
        deviation = xp.sqrt(nu * (1.0 / _weight(beta2, taken + 1)))
        deviation += self.spec.epsilon
        change = self._direction(mu, gradient, taken, rate)
        change /= deviation
        return Told(change, [share, squares], [mu, nu])

    def _direction(self, mu: Any, gradient: Any, taken: Any, rate: Any) -> Any:
        """The mean of the gradients, as if it had not begun at zero, times the rate."""
        return rate / _weight(self.spec.beta1, taken + 1) * mu


class _Nadam(_Adam):
    def _direction(self, mu: Any, gradient: Any, taken: Any, rate: Any) -> Any:
        beta1 = self.spec.beta1
        ahead = rate * beta1 / _weight(beta1, taken + 2) * mu
        ahead += rate * (1.0 - beta1) / _weight(beta1, taken + 1) * gradient
        return ahead


class _Adagrad(_Kind):
    def __init__(self, spec: Adagrad) -> None:
        super().__init__(spec)
        self.initial = spec.initial_accumulator_value

    @property
    def decays(self) -> dict[str, float]:
        return {"sum_of_squares": 1.0}

    def tell(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> Told:
        squares = gradient * gradient
        sums = statistics[0] + squares
        return Told(rate * gradient / xp.sqrt(sums + 1e-7), [squares], [sums])


class _Adadelta(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"squared_gradients": self.spec.rho, "squared_changes": self.spec.rho}

    def tell(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> Told:
        rho, epsilon = self.spec.rho, self.spec.epsilon
        squares = _share_of_squares(gradient, rho)
        gradients = _grown(statistics[0], rho, squares)
        change = gradient * xp.sqrt((statistics[1] + epsilon) / (gradients + epsilon))
        moved = _share_of_squares(change, rho)
        return Told(rate * change, [squares, moved], [gradients, _grown(statistics[1], rho, moved)])


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


def _share_of_squares(values: Any, decay: float) -> Any:
    """What a running mean of squares grows by."""
    squares = values * values
    squares *= 1.0 - decay
    return squares


def _grown(statistic: Any, decay: float, increment: Any) -> Any:
    """A statistic after a step."""
    after = decay * statistic
    after += increment
    return after


def _weight(decay: float, steps: Any) -> Any:
    """How much all that a running mean has seen weighs in it after so many steps, when it began at zero."""
    # Nothing weighs anything at a decay of 1, and then there is nothing to scale either.
    return 1.0 - decay**steps if decay < 1.0 else 1.0
