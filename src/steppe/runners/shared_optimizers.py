"""Optimisers over memory that others read and write: each step is taken in place, without a lock, in NumPy.

They take the steps of the elementwise optimisers of `steppe.agents.optimizers`. Whoever calls has clipped the gradient
by its norm already, since a shard does not know the norm of the whole.
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

Schedule = float | Callable[[int], float]
"""A learning rate, or one by the number of steps taken before."""


class SharedOptimizer:
    """One optimiser's statistics of `size` parameters, and its steps; any number of threads may call `step` at once."""

    def __init__(self, spec: OptimizerSpec, size: int, schedule: Schedule) -> None:
        """`spec` is elementwise (adam, rmsprop, ...), or a clipped_step of one that is."""
        self.size = size
        self._schedule = schedule
        self._clipping_value: float | None = None
        if isinstance(spec, ClippedStep):
            self._clipping_value, spec = spec.clipping_value, spec.optimizer
        self._rule = _RULES[type(spec)](spec)
        self._statistics = {name: np.full(size, self._rule.initial, np.float32) for name in self._rule.statistics}
        self._count = 0
        self._counting = threading.Lock()
        # What one thread is in the middle of computing is nothing to another.
        self._own = threading.local()

    def step(self, params: np.ndarray, gradient: np.ndarray) -> None:
        """Moves params [size] one step against the gradient [size]; what others write meanwhile is kept or lost."""
        with self._counting:
            taken = self._count
            self._count += 1
        rate = self._schedule(taken) if callable(self._schedule) else self._schedule
        change, spare = self._scratch()
        statistics = list(self._statistics.values())
        if self.size <= BLOCK:
            self._move(params, gradient, statistics, change[: self.size], spare[: self.size], taken, rate)
            return
        for start in range(0, self.size, BLOCK):
            block = slice(start, min(start + BLOCK, self.size))
            room = slice(0, block.stop - start)
            parts = [values[block] for values in statistics]
            self._move(params[block], gradient[block], parts, change[room], spare[room], taken, rate)

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of all that the next step depends on: statistics [size], and "count"."""
        return {name: values.copy() for name, values in self._statistics.items()} | {"count": np.array(self._count)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Goes on where `arrays` left off."""
        for name, values in self._statistics.items():
            if name not in arrays or arrays[name].shape != values.shape:
                raise CheckpointError(
                    f'the checkpoint has no "{name}" of {self.size} parameters for the optimizer; it was made by an '
                    "experiment with other settings"
                )
            np.copyto(values, arrays[name])
        self._count = int(arrays["count"])

    def _move(
        self,
        params: np.ndarray,
        gradient: np.ndarray,
        statistics: list[np.ndarray],
        change: np.ndarray,
        spare: np.ndarray,
        taken: int,
        rate: float,
    ) -> None:
        self._rule.change(gradient, statistics, change, spare, taken, rate)
        if self._clipping_value is not None:
            np.clip(change, -self._clipping_value, self._clipping_value, out=change)
        params -= change

    def _scratch(self) -> tuple[np.ndarray, np.ndarray]:
        try:
            return self._own.scratch
        except AttributeError:
            room = min(self.size, BLOCK)
            self._own.scratch = (np.empty(room, np.float32), np.empty(room, np.float32))
            return self._own.scratch


@dataclass(frozen=True)
class Steps:
    """How one batch becomes steps of a shared optimiser."""

    optimizer: OptimizerSpec
    """Elementwise, or a clipped_step of one that is: what `SharedOptimizer` takes."""
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
    if type(kind) in _RULES:
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


class _Rule(ABC):
    """How a gradient and the statistics become a change."""

    statistics: tuple[str, ...] = ()
    initial: float = 0.0

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @abstractmethod
    def change(
        self,
        gradient: np.ndarray,
        statistics: list[np.ndarray],
        out: np.ndarray,
        spare: np.ndarray,
        taken: int,
        rate: float,
    ) -> None:
        """Writes into `out` what is to be subtracted from the parameters; `taken` steps were taken before."""


class _Plain(_Rule):
    def change(self, gradient: Any, statistics: Any, out: Any, spare: Any, taken: int, rate: float) -> None:
        np.multiply(gradient, rate, out=out)


class _Momentum(_Rule):
    statistics = ("trace",)

    def change(self, gradient: Any, statistics: Any, out: Any, spare: Any, taken: int, rate: float) -> None:
        (trace,) = statistics
        trace *= self.spec.momentum
        trace += gradient
        if not self.spec.use_nesterov:
            np.multiply(trace, rate, out=out)
            return
        np.multiply(trace, self.spec.momentum, out=out)
        out += gradient
        out *= rate


class _RMSProp(_Rule):
    def __init__(self, spec: RMSProp) -> None:
        super().__init__(spec)
        self.statistics = ("nu", "trace") if spec.momentum else ("nu",)

    def change(self, gradient: Any, statistics: Any, out: Any, spare: Any, taken: int, rate: float) -> None:
        nu = statistics[0]
        _track_squares(nu, gradient, self.spec.decay, out)
        np.add(nu, self.spec.epsilon, out=out)
        np.sqrt(out, out=out)
        np.divide(gradient, out, out=out)
        out *= rate
        if self.spec.momentum:
            trace = statistics[1]
            trace *= self.spec.momentum
            trace += out
            np.copyto(out, trace)


class _Adam(_Rule):
    statistics = ("mu", "nu")

    def change(self, gradient: Any, statistics: Any, out: Any, spare: Any, taken: int, rate: float) -> None:
        (mu, nu), beta1 = statistics, self.spec.beta1
        mu *= beta1
        np.multiply(gradient, 1.0 - beta1, out=out)
        mu += out
        self._direction(mu, gradient, spare, out, taken)
        _track_squares(nu, gradient, self.spec.beta2, out)
        np.multiply(nu, 1.0 / _weight(self.spec.beta2, taken + 1), out=out)
        np.sqrt(out, out=out)
        out += self.spec.epsilon
        np.divide(spare, out, out=out)
        out *= rate

    def _direction(self, mu: Any, gradient: Any, out: Any, spare: Any, taken: int) -> None:
        """Writes the mean of the gradients, as if it had not begun at zero, into `out`."""
        np.multiply(mu, 1.0 / _weight(self.spec.beta1, taken + 1), out=out)


class _Nadam(_Adam):
    def _direction(self, mu: Any, gradient: Any, out: Any, spare: Any, taken: int) -> None:
        beta1 = self.spec.beta1
        np.multiply(mu, beta1 / _weight(beta1, taken + 2), out=out)
        np.multiply(gradient, (1.0 - beta1) / _weight(beta1, taken + 1), out=spare)
        out += spare


class _Adagrad(_Rule):
    statistics = ("sum_of_squares",)

    def __init__(self, spec: Adagrad) -> None:
        super().__init__(spec)
        self.initial = spec.initial_accumulator_value

    def change(self, gradient: Any, statistics: Any, out: Any, spare: Any, taken: int, rate: float) -> None:
        (sums,) = statistics
        np.multiply(gradient, gradient, out=out)
        sums += out
        np.add(sums, 1e-7, out=out)
        np.sqrt(out, out=out)
        np.divide(gradient, out, out=out)
        out *= rate


class _Adadelta(_Rule):
    statistics = ("squared_gradients", "squared_changes")

    def change(self, gradient: Any, statistics: Any, out: Any, spare: Any, taken: int, rate: float) -> None:
        (gradients, changes), spec = statistics, self.spec
        _track_squares(gradients, gradient, spec.rho, out)
        np.add(changes, spec.epsilon, out=out)
        np.add(gradients, spec.epsilon, out=spare)
        out /= spare
        np.sqrt(out, out=out)
        out *= gradient
        _track_squares(changes, out, spec.rho, spare)
        out *= rate


_RULES: dict[type, type[Any]] = {
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


def _track_squares(mean: np.ndarray, values: np.ndarray, decay: float, spare: np.ndarray) -> None:
    """A running mean of squares, in place."""
    np.multiply(values, values, out=spare)
    spare *= 1.0 - decay
    mean *= decay
    mean += spare


def _weight(decay: float, steps: int) -> float:
    """How much all that a running mean has seen weighs in it after so many steps, when it began at zero."""
    # Nothing weighs anything at a decay of 1, and then there is nothing to scale either.
    return 1.0 - decay**steps or 1.0
