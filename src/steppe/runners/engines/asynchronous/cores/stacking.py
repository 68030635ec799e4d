"""Agents that learn from trajectories of older policies, stacked from many workers into batches of one shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import Metrics, Trajectory
from steppe.runners import keys
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.compilation import jit_for_learning
from steppe.runners.engines.asynchronous.cores._base import Learned
from steppe.runners.engines.asynchronous.cores.agent_core import AgentCore
from steppe.runners.engines.asynchronous.wire.batches import Batch, Form
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.learning import Learner, begin, is_healthy, learn


class StackingCore(AgentCore):
    """An agent, and the trajectories [T, N, ...] that do not fill a batch yet."""

    def __init__(self, agent: Any, task: Task, spaces: Spaces) -> None:
        """`agent.context.num_envs` trajectories are one update."""
        super().__init__(agent, task, spaces)
        self._width = agent.context.num_envs
        form = Form(task, *spaces)
        self._has_log_std = form.has_log_std
        self._stack = _room(form, agent.horizon, self._width)
        self._columns = self._batches = 0
        """How many trajectories are in the stack, and of how many batches."""
        self._rest: Batch | None = None
        """The batch whose trajectories did not all fit, and how many did."""
        self._used = 0
        self._learn = jit_for_learning(self._learned, donate_argnums=0)

    def begin(self, seed: int) -> None:
        """Fresh parameters."""
        self._start(begin(self.agent, keys.make(seed)))

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """The agent; trajectories that were not learned from yet are too old by now."""
        self._start(from_arrays(begin(self.agent, keys.make(seed), pretrains=False), arrays))

    def snapshot(self) -> dict[str, np.ndarray]:
        """The agent."""
        return to_arrays(self._learner)

    @property
    def unsaved(self) -> int:
        """All whose trajectories wait; when the run goes on they are too old."""
        return self._batches + (self._rest is not None and self._used == 0)

    @property
    def wants_data(self) -> bool:
        """Unless a batch is full."""
        return self._rest is None

    @property
    def can_learn(self) -> bool:
        """Once a batch is full."""
        return self._columns == self._width

    def take_in(self, batch: Batch) -> None:
        """Copies its trajectories beside those that are there."""
        self._rest, self._used = batch, 0
        self._fill()

    def learn(self, seconds: float) -> Learned:
        """One update."""
        self._learner, values = self._learn(self._learner, self._numbers, self._stack)
        metrics = dict(zip(self._names, np.asarray(values).tolist(), strict=True))
        healthy, updates = bool(metrics.pop("is_healthy")), round(metrics.pop("updates"))
        self.updates += updates
        self._columns = self._batches = 0
        self._fill()
        return Learned(updates, metrics, healthy)

    def _start(self, learner: Learner) -> None:
        # Compiled before the first worker comes, with parameters that are thrown away.
        self._learn(begin(self.agent, keys.make(0)), self._numbers, self._stack)
        self._learner = jax.tree.map(jnp.asarray, learner)
        self._columns, self._batches, self._rest = 0, 0, None
        self.updates = int(learner.agent.updates)

    def _fill(self) -> None:
        """Moves as many trajectories of the rest as there is room for."""
        batch = self._rest
        if batch is None:
            return
        count = min(self._width - self._columns, batch.rewards.shape[1] - self._used)
        mine, theirs = slice(self._columns, self._columns + count), slice(self._used, self._used + count)
        for array, column in zip(jax.tree.leaves(self._stack), self._leaves(batch), strict=True):
            array[:, mine] = column[:, theirs]
        self._columns += count
        self._batches += count > 0
        self._used += count
        if self._used == batch.rewards.shape[1]:
            self._rest = None

    def _leaves(self, batch: Batch) -> list[np.ndarray]:
        """The arrays of a batch in the order of the stack's."""
        log_std = None
        if self._has_log_std:
            assert batch.log_std is not None
            assert batch.outputs is not None
            log_std = np.broadcast_to(batch.log_std, batch.outputs.shape)
        return jax.tree.leaves(_trajectory(batch, log_std))

    def _learned(self, learner: Learner, numbers: Any, trajectory: Trajectory) -> tuple[Learner, Array]:
        metrics: Metrics
        learner, metrics = learn(self.agent.with_numbers(numbers), learner, trajectory)
        metrics["is_healthy"] = is_healthy(learner, metrics)
        self._names = list(metrics)
        return learner, jnp.stack([jnp.float32(value) for value in metrics.values()])


def _room(form: Form, rows: int, width: int) -> Trajectory:
    """Room for one batch, [T, N, ...]."""
    room = form.allocate(rows, width)
    log_std = np.zeros((rows, width, *form.extras["outputs"][0]), np.float32) if form.has_log_std else None
    return _trajectory(room, log_std)


def _trajectory(batch: Batch, log_std: np.ndarray | None) -> Trajectory:
    running = np.zeros_like(batch.rewards) if batch.running_returns is None else batch.running_returns
    own = {} if log_std is None else {"log_std": log_std}
    return Trajectory(
        batch.observations,
        batch.actions,
        batch.rewards,
        batch.terminated,
        batch.truncated,
        batch.next_observations,
        outputs=batch.outputs,
        running_returns=running,
        internals=batch.internals,
        next_internals=batch.next_internals,
        **own,
    )
