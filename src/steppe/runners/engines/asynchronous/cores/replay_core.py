"""Agents that learn from a replay memory, fed by many workers.

The memory is one long row of timesteps. Each piece of it comes from one environment, in order of time, and its last
timestep is marked as truncated, so that n-step returns stop there and bootstrap. So it does not matter which worker a
piece came from, how long it is, or whether that worker still exists.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import Metrics, TrainState, Trajectory, Transitions
from steppe.memories import Timesteps
from steppe.runners import keys
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.compilation import jit_for_learning
from steppe.runners.engines.asynchronous.cores._base import Clock, Learned, Pace
from steppe.runners.engines.asynchronous.cores.agent_core import AgentCore
from steppe.runners.engines.asynchronous.wire.batches import WorkerBatch
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.learning import Learner, begin, example_of

BLOCK = 64
"""How many timesteps are written into the memory at once."""


class ReplayCore(AgentCore):
    """An agent, its memory, and the timesteps that do not yet fill a block."""

    def __init__(self, agent: Any, task: Task, spaces: Spaces, ratio: float | None) -> None:
        """The agent's memory takes blocks of BLOCK timesteps of one environment; `ratio` None learns all the time."""
        super().__init__(agent, task, spaces)
        self._pace, self._clock = Pace(ratio), Clock()
        self._insert = jit_for_learning(self._inserted, donate_argnums=0)
        self._update = jit_for_learning(self._updated, donate_argnums=0)
        self._stored = self._staged = 0
        self._changes_memory = bool(agent.memory.prioritized)

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters and an empty memory."""
        self._start(begin(self.agent, keys.make(seed)))

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Restores the agent, the memory and the staged timesteps."""
        template = begin(self.agent, keys.make(seed), pretrains=False)
        self._start(from_arrays(template, arrays))
        self._staged = int(arrays["staged/count"])
        self._pace.owed = float(arrays["staged/owed"])
        for name, array in self._staging.items():
            array[: self._staged] = arrays[f"staged/{name}"]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Agent, memory, and the timesteps that are not in it yet."""
        staged = {f"staged/{name}": array[: self._staged].copy() for name, array in self._staging.items()}
        counts = {"staged/count": np.int64(self._staged), "staged/owed": np.float64(self._pace.owed)}
        return to_arrays(self._learner) | staged | {name: np.asarray(value) for name, value in counts.items()}

    @property
    def wants_data(self) -> bool:
        """False while updates are due."""
        return not self._has_enough or self._pace.wants_data

    @property
    def can_learn(self) -> bool:
        """True if the memory holds enough and an update is due."""
        return self._has_enough and self._pace.is_due

    def take_in(self, batch: WorkerBatch) -> None:
        """Appends the columns of a batch to the staged timesteps, and writes all full blocks."""
        truncated = batch.truncated.copy()
        truncated[-1] |= ~batch.terminated[-1]
        running = batch.rewards if batch.running_returns is None else batch.running_returns
        pieces = {
            "observations": batch.observations,
            "actions": batch.actions,
            "rewards": batch.rewards,
            "terminated": batch.terminated,
            "truncated": truncated,
            "next_observations": batch.next_observations,
            "running_returns": running,
        }
        flat = {name: each.swapaxes(0, 1).reshape(-1, *each.shape[2:]) for name, each in pieces.items()}
        done = 0
        while done < batch.timesteps:
            count = min(BLOCK - self._staged, batch.timesteps - done)
            for name, array in self._staging.items():
                array[self._staged : self._staged + count] = flat[name][done : done + count]
            self._staged += count
            done += count
            if self._staged == BLOCK:
                self._write()
        if self._has_enough:
            self._pace.count(batch.timesteps)

    def learn(self, seconds: float) -> Learned:
        """One call of a compiled loop over updates."""
        each = self.agent.updates_per_batch
        count = max(1, self._pace.most(self._clock.fitting(seconds) * each) // each)
        started = time.perf_counter()
        values = np.asarray(self._call_update(count)).tolist()
        self._clock.took(count, time.perf_counter() - started)
        metrics = dict(zip(self._names, values, strict=True))
        is_healthy = bool(metrics.pop("is_healthy"))
        self.updates += count * each
        self._pace.paid(count * each)
        return Learned(count * each, metrics, is_healthy)

    @property
    def _has_enough(self) -> bool:
        return self._stored >= self.agent.first_update and self._stored >= self.agent.memory.n_step

    def _start(self, learner: Learner) -> None:
        memory: Any = learner.memory
        example = example_of(self.agent)
        leaves = example._asdict() | {"running_returns": example.rewards}
        self._staging = {name: np.zeros((BLOCK, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()}
        # Compiles before the first worker connects, with a memory that is discarded.
        self._learner = begin(self.agent, keys.make(0), pretrains=False)
        self._write()
        self._learner = jax.tree.map(jnp.asarray, learner)
        self._call_update(0)
        self._stored, self._staged, self._pace.owed = int(memory.filled), 0, 0.0
        self.updates = int(learner.agent.updates)

    def _write(self) -> None:
        """Writes the staged block over the oldest one in the memory."""
        # Copies: JAX may still read them when the next block is staged.
        block = {name: array[:, None].copy() for name, array in self._staging.items()}
        running = block.pop("running_returns")
        self._learner = self._insert(self._learner, Timesteps(**block), running)
        self._stored = min(self._stored + BLOCK, self.agent.memory.rows)
        self._staged = 0

    def _inserted(self, learner: Learner, block: Timesteps, running_returns: Array) -> Learner:
        """The learner with a block added, whose leaves are [BLOCK, 1, ...]."""
        # The normalisers only need observations and returns.
        seen = Trajectory(*block, outputs=(), running_returns=running_returns, internals={}, next_internals={})
        return Learner(self.agent.update_stats(learner.agent, seen), self.agent.memory.add(learner.memory, block))

    def _call_update(self, count: int) -> Any:
        state, memory = self._learner
        if self._changes_memory:
            (state, memory), values = self._update((state, memory), None, self._numbers, jnp.int32(count))
        else:
            (state,), values = self._update((state,), memory, self._numbers, jnp.int32(count))
        self._learner = Learner(state, memory)
        return values

    def _updated(
        self, changing: tuple[Any, ...], constant: Any, numbers: Any, count: Array
    ) -> tuple[tuple[Any, ...], Array]:
        """Takes `count` updates; returns the changed state, and the means of their metrics.

        A uniform memory does not change: it is passed separately, so that it is neither copied nor returned.
        """
        agent = self.agent.with_numbers(numbers)
        shapes = jax.eval_shape(partial(self._once, agent, constant), changing)[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def once(_: Array, carry: tuple[tuple[Any, ...], Metrics]) -> tuple[tuple[Any, ...], Metrics]:
            changing, metrics = self._once(agent, constant, carry[0])
            return changing, jax.tree.map(jnp.add, carry[1], metrics)

        changing, sums = jax.lax.fori_loop(0, count, once, (changing, nothing))
        metrics = {name: total / jnp.maximum(count, 1) for name, total in sums.items()}
        params = changing[0].params
        metrics["is_healthy"] = jnp.isfinite(metrics["loss"]) & jnp.isfinite(params).all()
        self._names = list(metrics)
        return changing, jnp.stack([jnp.float32(value) for value in metrics.values()])

    def _once(self, agent: Any, constant: Any, changing: tuple[Any, ...]) -> tuple[tuple[Any, ...], Metrics]:
        memory = agent.memory
        state: TrainState = changing[0]
        kept = changing[1] if self._changes_memory else constant
        sample_key, key = jax.random.split(state.key)
        drawn = memory.sample(kept, sample_key, agent.settings.batch_size)
        batch = Transitions(**{name: value for name, value in drawn._asdict().items() if name != "places"})
        state, metrics = agent.update(state._replace(key=key), batch)
        errors = metrics.pop("priorities")
        if self._changes_memory:
            kept = memory.reprioritize(kept, drawn.places, errors, when=True)
            return (state, kept), metrics
        return (state,), metrics
