"""The model that all threads share: one vector of parameters in host memory, moved in place without a lock.

Threads read while others write, so a thread may see half of another's step, and of two simultaneous steps of the same
parameter one may be lost. That is Hogwild (Recht et al. 2011, arXiv:1106.5730): gradients are noisy anyway, and locking
would cost more than it gains.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from steppe.agents._base import Agent, TrainState
from steppe.agents.core.normalizers import Statistics
from steppe.errors import CheckpointError
from steppe.runners.arrays import below
from steppe.runners.engines.shared_optimizers import SharedOptimizer
from steppe.runners.engines.threads.optimizer_plan import UpdatePlan


class ModelSnapshot(NamedTuple):
    """The model as a thread has read it, with the other inputs of its program."""

    params: Any
    target: Any
    observations: Any
    """Statistics, () if observations are not normalised."""
    returns: Any
    """Statistics, () if rewards are not normalised."""
    updates: Any
    """The number of steps of the model: int32."""
    timestep: Any
    """The number of timesteps of all workers: int32."""
    batch: Any
    """The index of the rollout's batch to learn from: int32."""
    final_epsilon: Any
    """The final epsilon of this worker's exploration."""
    optimizers: Any
    """An `OptimizerSnapshot` for each block of each phase."""
    numbers: Any = None
    """The numeric hyper-parameters; they never change."""


class OptimizerSnapshot(NamedTuple):
    """The state of an optimiser."""

    statistics: Any
    """[statistics, size]"""
    taken: Any
    """The number of its steps: int32."""


class SharedModel:
    """Parameters, targets, statistics of optimisers and normalisers, and the number of steps taken."""

    def __init__(self, agent: Agent[Any], plan: UpdatePlan, state: TrainState) -> None:
        """Starts from an agent's state."""
        self.params = np.array(state.params, np.float32)
        self.target = np.array(state.target, np.float32)
        self.updates = int(state.updates)
        self.observations = SharedStatistics(state.observations) if agent.normalizes_observations else None
        self.returns = SharedStatistics(state.returns) if agent.context.normalize_rewards else None
        self._state = state._replace(optimizer=())
        self._counting = threading.Lock()
        self._phases = [
            [
                (self.params[block.start : block.stop], block, SharedOptimizer(block.rule, block.stop - block.start))
                for block in phase.blocks
            ]
            for phase in plan.phases
        ]
        self._target_sync = agent.target_sync
        self.numbers: Any = jax.tree.map(np.array, agent.numbers)

    def example(self) -> ModelSnapshot:
        """A snapshot with the right shapes and dtypes."""
        count = np.int32(0)
        observations: Any = () if self.observations is None else self.observations.value
        returns: Any = () if self.returns is None else self.returns.value
        optimizers = [
            [OptimizerSnapshot(optimizer.statistics, count) for _, _, optimizer in blocks] for blocks in self._phases
        ]
        return ModelSnapshot(
            self.params,
            self.target,
            observations,
            returns,
            count,
            count,
            count,
            np.float32(0.0),
            optimizers,
            self.numbers,
        )

    def read(self, into: ModelSnapshot) -> None:
        """Copies the model, without waiting for threads that write."""
        np.copyto(into.params, self.params)
        if self.target.size:
            np.copyto(into.target, self.target)
        if self.observations is not None:
            self.observations.read(into.observations)
        if self.returns is not None:
            self.returns.read(into.returns)
        into.updates[...] = self.updates
        for blocks, readings in zip(self._phases, into.optimizers, strict=True):
            for (_, _, optimizer), reading in zip(blocks, readings, strict=True):
                np.copyto(reading.statistics, optimizer.statistics)
                reading.taken[...] = optimizer.taken

    def step(self, phase: int, changes: Sequence[np.ndarray], turn: int) -> int:
        """Updates the blocks of one phase; returns the number of updates of all workers before.

        Each change is [1 + statistics, size]: the first row is subtracted from the parameters, the others are added to
        the optimiser's statistics. `turn` counts steps for blocks that only move every few steps (td3's actor and
        targets).
        """
        for (params, block, optimizer), change in zip(self._phases[phase], changes, strict=True):
            if (turn + 1) % block.every == 0:
                optimizer.move(params, change[0], change[1:])
        with self._counting:
            before = self.updates
            self.updates += 1
        sync = self._target_sync
        if self.target.size and (before + 1) % sync.frequency == 0 and (turn + 1) % sync.delay == 0:
            self._move_target()
        return before

    def is_finite(self) -> bool:
        """Whether no parameter is NaN or infinite."""
        return bool(np.isfinite(self.params).all())

    def state(self) -> TrainState:
        """A copy of the model as the agent's state, without the optimisers."""
        params: Any = self.params.copy()
        target: Any = self.target.copy()
        return self._state._replace(
            params=params,
            target=target,
            observations=self._state.observations if self.observations is None else self.observations.copied(),
            returns=self._state.returns if self.returns is None else self.returns.copied(),
            updates=np.int32(self.updates),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of everything that learning depends on, by name."""
        arrays = {"params": self.params.copy(), "target": self.target.copy(), "updates": np.array(self.updates)}
        for name, statistics in (("observations", self.observations), ("returns", self.returns)):
            if statistics is not None:
                arrays |= {f"{name}/{part}": value for part, value in statistics.copied()._asdict().items()}
        for number, optimizer in enumerate(self._optimizers):
            arrays |= {f"optimizers/{number}/{name}": value for name, value in optimizer.arrays().items()}
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores the arrays of `arrays`."""
        np.copyto(self.params, _fitting(arrays, "params", self.params))
        np.copyto(self.target, _fitting(arrays, "target", self.target))
        self.updates = int(_fitting(arrays, "updates", np.array(0)))
        for name, statistics in (("observations", self.observations), ("returns", self.returns)):
            if statistics is not None:
                saved = {
                    part: _fitting(arrays, f"{name}/{part}", value)
                    for part, value in statistics.value._asdict().items()
                }
                statistics.restore(Statistics(**saved))
        for number, optimizer in enumerate(self._optimizers):
            optimizer.restore(below(f"optimizers/{number}/", arrays))

    @property
    def _optimizers(self) -> list[Any]:
        return [optimizer for blocks in self._phases for _, _, optimizer in blocks]

    def _move_target(self) -> None:
        weight = self._target_sync.weight
        if weight == 1.0:
            np.copyto(self.target, self.params)
        else:
            self.target += weight * (self.params - self.target)


class SharedStatistics:
    """Running mean and variance that many threads update, under a lock: a half-written merge would be wrong."""

    def __init__(self, start: Statistics) -> None:
        self.value = Statistics(*(np.array(part, np.float32) for part in start))
        self._lock = threading.Lock()

    def read(self, into: Statistics) -> None:
        """Copies all three numbers consistently."""
        with self._lock:
            for target, part in zip(into, self.value, strict=True):
                target[...] = part

    def merge(self, mean: np.ndarray, variance: np.ndarray, samples: int) -> None:
        """Merges the mean and variance of a batch (Chan et al. 1979)."""
        with self._lock:
            own = self.value
            total = own.samples + samples
            # Weighted by the share of the batch, which stays right when the count exceeds the precision of float32.
            share, shift = np.float32(samples) / total, mean - own.mean
            own.mean[...] += share * shift
            own.variance[...] += share * (variance - own.variance + (1.0 - share) * shift**2)
            own.samples[...] = total

    def copied(self) -> Statistics:
        """A consistent copy."""
        with self._lock:
            return Statistics(*(part.copy() for part in self.value))

    def restore(self, saved: Statistics) -> None:
        """Restores saved statistics."""
        for part, value in zip(self.value, saved, strict=True):
            part[...] = value


def _fitting(arrays: dict[str, np.ndarray], name: str, like: np.ndarray) -> np.ndarray:
    if name not in arrays or arrays[name].shape != like.shape:
        raise CheckpointError(
            f'the checkpoint has no fitting "{name}"; it was made by an experiment with other settings'
        )
    return arrays[name]
