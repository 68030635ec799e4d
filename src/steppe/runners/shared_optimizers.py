"""Optimisers over memory that others read and write: each step is taken in place, without a lock.

They take the steps of the elementwise optimisers of `steppe.agents.optimizers`. Each statistic that one of those keeps
shrinks by a decay and grows by something that does not depend on it, so a step can be told apart from the place where
it is taken: threads have compiled programs compute it (`Rule`) and only add it up (`SharedOptimizer.move`), parameter
servers do both (`SharedOptimizer.step`) and need no JAX. Whoever calls has clipped the gradient by its norm already,
since a shard does not know the norm of the whole.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.errors import CheckpointError, UserError
from steppe.specs.optimizer import (
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

if TYPE_CHECKING:
    # Only its name: a parameter server needs no JAX.
    from steppe.agents.optimizers import OptimizerSettings

BLOCK = 16_384
"""How many parameters are worked on at once: what several passes go over stays in a core's cache."""

Schedule = float | Callable[[Any], Any]
"""A learning rate, or one by the number of steps taken before."""


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

    def change(self, gradient: Any, statistics: Any, taken: Any, xp: Any) -> tuple[Any, list[Any]]:
        """(what comes off the parameters, what is added to each statistic after its decay), after `taken` steps."""
        rate = self._schedule(taken) if callable(self._schedule) else self._schedule
        change, increments = self._kind.change(gradient, statistics, taken, rate, xp)
        if self._clipping_value is not None:
            change = xp.clip(change, -self._clipping_value, self._clipping_value)
        return change, increments


class SharedOptimizer:
    """One optimiser's statistics of `size` parameters, and its steps; any number of threads may take some at once."""

    def __init__(self, rule: Rule, size: int) -> None:
        self.rule, self.size = rule, size
        self.statistics = np.full((len(rule.decays), size), rule.initial, np.float32)
        self.taken = 0
        """How many steps were taken."""
        self._decays = np.array([*rule.decays.values()], np.float32)[:, None]
        self._counting = threading.Lock()

    def step(self, params: np.ndarray, gradient: np.ndarray) -> None:
        """Moves params [size] one step against the gradient [size]; what others write meanwhile is kept or lost."""
        taken = self._count()
        for start in range(0, self.size, BLOCK):
            block = slice(start, start + BLOCK)
            statistics = self.statistics[:, block]
            change, increments = self.rule.change(gradient[block], statistics, taken, np)
            statistics *= self._decays
            for statistic, increment in zip(statistics, increments, strict=True):
                statistic += increment
            params[block] -= change

    def move(self, params: np.ndarray, change: np.ndarray, increments: np.ndarray) -> None:
        """Takes a step that its rule has told already, [size] and [statistics, size], of an older model."""
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


def learning_rate(settings: OptimizerSettings, total_updates: int | None, start: float) -> Schedule:
    """The same as `steppe.agents.optimizers.learning_rate_schedule`, for the host."""
    end = settings.final_learning_rate * start / settings.learning_rate
    if settings.learning_rate_decay == "none":
        return start
    if total_updates is None:
        raise UserError(
            f'learning_rate_decay "{settings.learning_rate_decay}" needs total_timesteps, to know when it ends'
        )
    decay, last = settings.learning_rate_decay, total_updates

    def at(taken: int) -> float:
        passed = min(taken / last, 1.0)
        match decay:
            case "linear":
                return start + passed * (end - start)
            case "exponential":
                return start * (end / start) ** passed
            case _:
                return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * passed))

    return at


class _Kind(ABC):
    """One kind of optimiser: what it keeps, and how that and a gradient become a change."""

    initial: float = 0.0

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @property
    def decays(self) -> dict[str, float]:
        """As `Rule` has them."""
        return {}

    @abstractmethod
    def change(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> tuple[Any, list[Any]]:
        """As `Rule` does, at a learning rate."""


class _Plain(_Kind):
    def change(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> tuple[Any, list[Any]]:
        return rate * gradient, []


class _Momentum(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"trace": self.spec.momentum}

    def change(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> tuple[Any, list[Any]]:
        momentum = self.spec.momentum
        trace = momentum * statistics[0] + gradient
        return rate * (momentum * trace + gradient if self.spec.use_nesterov else trace), [gradient]


class _RMSProp(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"nu": self.spec.decay} | ({"trace": self.spec.momentum} if self.spec.momentum else {})

    def change(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> tuple[Any, list[Any]]:
        decay, momentum = self.spec.decay, self.spec.momentum
        squares = (1.0 - decay) * gradient * gradient
        nu = decay * statistics[0] + squares
        change = rate * gradient / xp.sqrt(nu + self.spec.epsilon)
        if not momentum:
            return change, [squares]
        return momentum * statistics[1] + change, [squares, change]


class _Adam(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"mu": self.spec.beta1, "nu": self.spec.beta2}

    def change(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> tuple[Any, list[Any]]:
        beta1, beta2 = self.spec.beta1, self.spec.beta2
        grown, squares = (1.0 - beta1) * gradient, (1.0 - beta2) * gradient * gradient
        mu, nu = beta1 * statistics[0] + grown, beta2 * statistics[1] + squares
        deviation = xp.sqrt(nu / _weight(beta2, taken + 1)) + self.spec.epsilon
        return rate * self._direction(mu, gradient, taken) / deviation, [grown, squares]

    def _direction(self, mu: Any, gradient: Any, taken: Any) -> Any:
        """The mean of the gradients, as if it had not begun at zero."""
        return mu / _weight(self.spec.beta1, taken + 1)


class _Nadam(_Adam):
    def _direction(self, mu: Any, gradient: Any, taken: Any) -> Any:
        beta1 = self.spec.beta1
        ahead = beta1 / _weight(beta1, taken + 2) * mu
        return ahead + (1.0 - beta1) / _weight(beta1, taken + 1) * gradient


class _Adagrad(_Kind):
    def __init__(self, spec: Adagrad) -> None:
        super().__init__(spec)
        self.initial = spec.initial_accumulator_value

    @property
    def decays(self) -> dict[str, float]:
        return {"sum_of_squares": 1.0}

    def change(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> tuple[Any, list[Any]]:
        squares = gradient * gradient
        return rate * gradient / xp.sqrt(statistics[0] + squares + 1e-7), [squares]


class _Adadelta(_Kind):
    @property
    def decays(self) -> dict[str, float]:
        return {"squared_gradients": self.spec.rho, "squared_changes": self.spec.rho}

    def change(self, gradient: Any, statistics: Any, taken: Any, rate: Any, xp: Any) -> tuple[Any, list[Any]]:
        rho, epsilon = self.spec.rho, self.spec.epsilon
        squares = (1.0 - rho) * gradient * gradient
        gradients = rho * statistics[0] + squares
        change = gradient * xp.sqrt((statistics[1] + epsilon) / (gradients + epsilon))
        return rate * change, [squares, (1.0 - rho) * change * change]


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


def _weight(decay: float, steps: Any) -> Any:
    """How much all that a running mean has seen weighs in it after so many steps, when it began at zero."""
    # Nothing weighs anything at a decay of 1, and then there is nothing to scale either.
    return 1.0 - decay**steps if decay < 1.0 else 1.0
