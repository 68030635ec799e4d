"""Agents that learn from trajectories of older policies: those of many workers are stacked into one batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steppe.agents._base import Trajectory
from steppe.runners import keys
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.compilation import jit_for_learning
from steppe.runners.engines.asynchronous.cores._base import Learned
from steppe.runners.engines.asynchronous.cores.agent_core import AgentCore
from steppe.runners.engines.asynchronous.wire.batches import BatchFormat, WorkerBatch
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.learning import Learner, LearnStep, begin


class StackingCore(AgentCore):
    """An agent, and the trajectories [T, N, ...] that do not yet fill a batch."""

    def __init__(self, agent: Any, task: Task, spaces: Spaces) -> None:
        """`agent.context.num_envs` trajectories are one update."""
        super().__init__(agent, task, spaces)
        self._width = agent.context.num_envs
        form = BatchFormat(task, *spaces)
        self._has_log_std = form.has_log_std
        self._stack = _room(form, agent.horizon, self._width)
        self._columns = self._batches = 0
        """How many trajectories are in the stack, and from how many workers' batches."""
        self._rest: WorkerBatch | None = None
        """The worker's batch whose trajectories did not all fit, and how many did."""
        self._used = 0
        self._step = LearnStep(agent)
        self._learn = jit_for_learning(self._step.learn, donate_argnums=0)

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters."""
        self._start(begin(self.agent, keys.make(seed)))

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Restores the agent; waiting trajectories would be too old by now."""
        self._start(from_arrays(begin(self.agent, keys.make(seed), pretrains=False), arrays))

    def snapshot(self) -> dict[str, np.ndarray]:
        """The agent's state."""
        return to_arrays(self._learner)

    @property
    def unsaved(self) -> int:
        """All batches with waiting trajectories, which would be too old for a resumed run."""
        return self._batches + (self._rest is not None and self._used == 0)

    @property
    def wants_data(self) -> bool:
        """False while a full batch waits to be learned from."""
        return self._rest is None

    @property
    def can_learn(self) -> bool:
        """True once the stack is full."""
        return self._columns == self._width

    def take_in(self, batch: WorkerBatch) -> None:
        """Copies its trajectories into the stack."""
        self._rest, self._used = batch, 0
        self._fill()

    def learn(self, seconds: float) -> Learned:
        """Takes one update."""
        self._learner, values = self._learn(self._learner, self._numbers, self._stack)
        metrics = self._step.named(values)
        healthy, updates = bool(metrics.pop("is_healthy")), round(metrics.pop("updates"))
        self.updates += updates
        self._columns = self._batches = 0
        self._fill()
        return Learned(updates, metrics, healthy)

    def _start(self, learner: Learner) -> None:
        # Compiles before the first worker connects, with parameters that are discarded.
        self._learn(begin(self.agent, keys.make(0)), self._numbers, self._stack)
        self._learner = jax.tree.map(jnp.asarray, learner)
        self._columns, self._batches, self._rest = 0, 0, None
        self.updates = int(learner.agent.updates)

    def _fill(self) -> None:
        """Moves as many remaining trajectories into the stack as fit."""
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

    def _leaves(self, batch: WorkerBatch) -> list[np.ndarray]:
        """The arrays of a batch in the order of the stack's."""
        log_std = None
        if self._has_log_std:
            assert batch.log_std is not None
            assert batch.outputs is not None
            log_std = np.broadcast_to(batch.log_std, batch.outputs.shape)
        return jax.tree.leaves(_trajectory(batch, log_std))


def _room(form: BatchFormat, rows: int, width: int) -> Trajectory:
    """Room for one batch, [T, N, ...]."""
    room = form.allocate(rows, width)
    log_std = np.zeros((rows, width, *form.extras["outputs"][0]), np.float32) if form.has_log_std else None
    return _trajectory(room, log_std)


def _trajectory(batch: WorkerBatch, log_std: np.ndarray | None) -> Trajectory:
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
