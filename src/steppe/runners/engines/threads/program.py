"""The compiled programs of a worker: a rollout and its gradients, compiled once and run by every thread."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from steppe.agents._base import Agent, TrainState, Trajectory, Transitions
from steppe.agents.core import normalizers
from steppe.agents.core.kernels import has_small_products, in_one_kernel, unfit_operation
from steppe.agents.core.wrapped_steps import subsample
from steppe.runners.compilation import jit_for_threads
from steppe.runners.engines.compiled.packing import Packing
from steppe.runners.engines.compiled.rollout import Finished, Rollout
from steppe.runners.engines.learning import timesteps_of
from steppe.runners.engines.shared_optimizers import UpdateRule
from steppe.runners.engines.threads.exploration import with_final_epsilon
from steppe.runners.engines.threads.model import ModelSnapshot
from steppe.runners.engines.threads.optimizer_plan import Phase, UpdatePlan, plan_for

log = logging.getLogger(__name__)


class WorkerState(NamedTuple):
    """A worker's state between two rollouts."""

    envs: Any
    """Its compiled environments; () for host environments."""
    key: Array
    """The random key of learning."""
    memory: Any
    """Its replay memory, () if the agent has none."""
    batches: Array
    """The number of batches learned from the memory."""


class PreparedRollout(NamedTuple):
    """A rollout prepared for learning in several batches; it stays inside compiled programs."""

    batch: Any
    order: Any
    """The samples of each batch [batches, size]; () if there is one batch of all."""
    state: Any
    """The (key, observations, returns) of the first batch."""


Packed = tuple[Any, ...]


class Program:
    """Compiled functions over packed arrays; `reports` unpack their results on the host."""

    def __init__(
        self, agent: Agent[Any], plan: UpdatePlan, rollout: Rollout | None, example: ModelSnapshot, explores_apart: bool
    ) -> None:
        self.agent = agent
        self.explores_apart = explores_apart
        self.plan = plan
        self.rollout = rollout
        self.steps = plan.order
        self.reading = Packing(example, largest=None)
        self.reports: dict[str, Packing] = {}
        self.metric_names: list[list[str]] = [[] for _ in plan.phases]
        """Of each phase, known once it is compiled."""
        self.changes = [[f"change {number}" for number in range(len(phase.blocks))] for phase in plan.phases]
        """The names of the changes of each phase's blocks in a report."""
        self.carry: Any = None
        """How a worker's state is packed, known once there is one."""
        # A single batch need not be kept.
        self._has_more = len(self.steps) > 1
        self._waits = any(block.every > 1 for phase in plan.phases for block in phase.blocks)
        self._compiled: set[str] = set()
        self._compiling = threading.Lock()
        self._collects_in_one_kernel = rollout is not None and has_small_products(
            agent.layout.shapes, agent.context.num_envs
        )
        self._first: Any = None
        more = [partial(Program._more_gradient, phase=number) for number in range(len(plan.phases))]
        self._more = [jit_for_threads(self._with_numbers(each)) for each in more]
        self._replay = jit_for_threads(self._with_numbers(Program._replay_more), donate_argnums=0)
        self._cut = jax.jit(self._cut_memory, donate_argnums=0)
        self._key = jax.jit(lambda packed: self._carried(packed).key)

    def begin(self, key: Array, memory: Any) -> Packed:
        """A worker before its first rollout."""
        return self.packed(self.fresh(key, memory))

    def fresh(self, key: Array, memory: Any) -> WorkerState:
        """The same, not packed."""
        env_key, key = jax.random.split(key)
        envs = () if self.rollout is None else self.rollout.begin(env_key, self.agent.context.num_envs, 1)
        return WorkerState(envs, key, memory, jnp.int32(0))

    def packed(self, carry: WorkerState) -> Packed:
        """Packs a state for the functions below."""
        if self.carry is None:
            self.carry = Packing(carry)
            self._pack, self._unpack = jax.jit(self.carry.pack), jax.jit(self.carry.unpack)
        return self._pack(carry)

    def unpacked(self, packed: Packed) -> WorkerState:
        """Unpacks a state for a snapshot."""
        return self._unpack(packed)

    def key_of(self, carry: Packed) -> Array:
        """The random key of a worker's learning."""
        return self._key(carry)

    def first(
        self, carry: Packed, trajectory: Trajectory | None, words: np.ndarray
    ) -> tuple[Packed, PreparedRollout, Any]:
        """Collects in compiled environments, and computes the first gradient: (state, prepared rollout, report)."""
        if self._first is None:
            self._compile_first(carry, words)
        carry, lesson, report = self._run("first", self._first, carry, trajectory, words)
        return carry, lesson, self.reports["first"].named(np.asarray(report))

    def more(self, carry: Packed, lesson: PreparedRollout, words: np.ndarray, phase: int) -> tuple[Packed, Any]:
        """Another gradient at the newest parameters, of the rollout or of the memory: (state, report)."""
        if self.agent.experience == "transitions":
            carry, report = self._run("replay", self._replay, carry, words)
            return carry, self.reports["replay"].named(np.asarray(report))
        name = f"more {phase}"
        report = self._run(name, self._more[phase], lesson, words)
        return carry, self.reports[name].named(np.asarray(report))

    def cut(self, carry: Packed) -> Packed:
        """Marks the ends of episodes in the memory: the next timestep does not continue them."""
        return self._cut(carry)

    def _compile_first(self, carry: Packed, words: np.ndarray) -> None:
        with self._compiling:
            if self._first is not None:
                return
            unfit = unfit_operation(self._collect, carry, words) if self._collects_in_one_kernel else None
            if unfit is not None:
                log.debug('the environment\'s "%s" does not fit into one kernel', unfit)
                self._collects_in_one_kernel = False
            self._first = jit_for_threads(
                self._with_numbers(Program._rollout_and_first),
                plain_products=self._collects_in_one_kernel,
                donate_argnums=0,
            )

    def _run(self, name: str, function: Any, *arguments: Any) -> Any:
        """Calls a compiled function; the others wait while the first thread compiles it."""
        if name in self._compiled:
            return function(*arguments)
        with self._compiling:
            results = function(*arguments)
            self._compiled.add(name)
        return results

    def _with_numbers(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of this program whose agent has the hyper-parameters in the words, the last argument."""

        def traced(*arguments: Any) -> Any:
            reading: ModelSnapshot = self.reading.unpack((arguments[-1],))
            program = copy.copy(self)
            program.agent = self.agent.with_numbers(reading.numbers)
            program.plan = plan_for(program.agent)
            program.rollout = self.rollout and self.rollout.with_agent(program.agent)
            return method(program, *arguments)

        return traced

    def _rollout_and_first(self, packed: Packed, trajectory: Trajectory | None, words: Array) -> Any:
        told: dict[str, Any] = {}
        if self.rollout is not None:
            collect = self._with_numbers(Program._collect)
            collect = in_one_kernel(collect) if self._collects_in_one_kernel else collect
            packed, trajectory, finished = collect(packed, words)
            told |= _episodes(finished)
        carry = self._carried(packed)
        reading: ModelSnapshot = self.reading.unpack((words,))
        state = self._state(reading, carry.key)
        assert trajectory is not None
        told |= self._statistics(trajectory)
        lesson: Any = ()
        if self.agent.experience == "trajectories":
            state, lesson = self._prepare(state, trajectory)
            carry = carry._replace(key=state.key)
            told |= self._gradient(0, state, lesson, reading.batch, jnp.bool_(True))
        elif self.agent.experience == "transitions":
            memory: Any = self.agent.memory
            carry = carry._replace(memory=memory.add(carry.memory, timesteps_of(trajectory)))
            carry, drawn = self._draw_and_learn(carry, self.agent.update_stats(state, trajectory))
            told |= drawn
        return self.carry.pack(carry), lesson if self._has_more else (), self._report("first", told)

    def _collect(self, packed: Packed, words: Array) -> tuple[Packed, Trajectory, Finished]:
        """A rollout of compiled environments."""
        carry = self._carried(packed)
        reading: ModelSnapshot = self.reading.unpack((words,))
        acting = self.agent.actor_params(self._state(reading, carry.key))
        envs, trajectory, finished = self._exploring(reading).collect(carry.envs, acting, reading.timestep)
        return self.carry.pack(carry._replace(envs=envs)), trajectory, finished

    def _more_gradient(self, lesson: PreparedRollout, words: Array, phase: int) -> Array:
        reading: ModelSnapshot = self.reading.unpack((words,))
        key, observations, returns = lesson.state
        state = self._state(reading, key)._replace(observations=observations, returns=returns)
        return self._report(f"more {phase}", self._gradient(phase, state, lesson, reading.batch, jnp.bool_(True)))

    def _replay_more(self, packed: Packed, words: Array) -> tuple[Packed, Array]:
        carry = self._carried(packed)
        reading: ModelSnapshot = self.reading.unpack((words,))
        carry, told = self._draw_and_learn(carry, self._state(reading, carry.key))
        return self.carry.pack(carry), self._report("replay", told)

    def _cut_memory(self, packed: Packed) -> Packed:
        carry = self._carried(packed)
        memory: Any = self.agent.memory
        return self.carry.pack(carry._replace(memory=memory.cut(carry.memory)))

    def _carried(self, packed: Packed) -> WorkerState:
        return self.carry.unpack(packed)

    def _state(self, reading: ModelSnapshot, key: Array) -> TrainState:
        nothing = normalizers.empty(())
        return TrainState(
            reading.params,
            reading.target,
            reading.optimizers,
            reading.observations or nothing,
            reading.returns or nothing,
            key,
            reading.updates,
        )

    def _exploring(self, reading: ModelSnapshot) -> Rollout:
        """The rollout of a worker with the final epsilon of its snapshot."""
        assert self.rollout is not None
        if not self.explores_apart:
            return self.rollout
        rollout = copy.copy(self.rollout)
        rollout.agent = with_final_epsilon(self.agent, reading.final_epsilon)
        return rollout

    def _prepare(self, state: TrainState, trajectory: Trajectory) -> tuple[TrainState, PreparedRollout]:
        """Prepares a trajectory as `update` does before its first step."""
        agent: Any = self.agent
        if agent.reward_preprocessing is not None and agent.reward_preprocessing.spans_rollout:
            trajectory = trajectory._replace(rewards=agent.reward_preprocessing(trajectory.rewards, jnp))
        state, (batch, order) = agent.rollout_batches(state, trajectory)
        return state, PreparedRollout(batch, order, (state.key, state.observations, state.returns))

    def _gradient(
        self, number: int, state: TrainState, lesson: PreparedRollout, index: Array, when: Array
    ) -> dict[str, Any]:
        """The gradient of one phase, on one batch of the rollout."""
        batch = lesson.batch
        if not isinstance(lesson.order, tuple):
            batch = jax.tree.map(lambda leaf: leaf[lesson.order[index]], batch)
        told, _ = self._learn(number, state, batch, when)
        return told

    def _draw_and_learn(self, carry: WorkerState, state: TrainState) -> tuple[WorkerState, dict[str, Any]]:
        """A batch of the memory, and its gradient if the memory holds enough."""
        agent: Any = self.agent
        memory, kept = agent.memory, carry.memory
        enough = (kept.filled * memory.num_envs >= self.plan.first_update) & (kept.filled >= memory.n_step)
        sample_key, key = jax.random.split(carry.key)
        drawn = memory.sample(kept, sample_key, agent.settings.batch_size)
        batch = Transitions(**{name: value for name, value in drawn._asdict().items() if name != "places"})
        state = state._replace(key=key)
        batch = agent.prepare(state, batch)
        if self._waits:
            # Counts the worker's own updates: with the count of all workers, two in lockstep could both miss every
            # second one.
            state = state._replace(updates=carry.batches)
        told, errors = self._learn(0, state, batch, enough)
        if memory.prioritized:
            kept = memory.reprioritize(kept, drawn.places, errors, when=enough)
        return WorkerState(carry.envs, key, kept, carry.batches + enough.astype(jnp.int32)), told

    def _learn(self, number: int, state: TrainState, batch: Any, when: Array) -> tuple[dict[str, Any], Any]:
        """(the changes of a phase's blocks, with metrics; each transition's priority)."""
        phase = self.plan.phases[number]
        if phase.fraction < 1.0:
            key = jax.random.fold_in(jax.random.fold_in(state.key, state.updates), 1)
            batch = subsample(batch, key, phase.fraction)
        compute = lambda: phase.gradients(state, batch)  # noqa: E731
        shapes = jax.eval_shape(compute)
        nothing = lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
        is_certain = self.agent.experience == "trajectories"
        gradients, metrics = compute() if is_certain else jax.lax.cond(when, compute, nothing)
        metrics = dict(metrics)
        errors = metrics.pop("priorities", None)
        parts = self._clipped(gradients, phase)
        metrics = {name: jnp.float32(jnp.mean(value)) for name, value in metrics.items()}
        self.metric_names[number] = list(metrics)
        healthy = jnp.isfinite(metrics.get("loss", jnp.float32(0.0)))
        for part in parts:
            healthy &= jnp.isfinite(jnp.vdot(part, part))
        told = {
            **self._changes(number, parts, state.optimizer),
            "metrics": jnp.stack(list(metrics.values())),
            "turn": state.updates,
            "learned": when.astype(jnp.int32),
            "healthy": healthy.astype(jnp.int32),
        }
        return told, errors

    def _changes(self, number: int, parts: list[Array], optimizers: Any) -> dict[str, Array]:
        """[1 + statistics, size] of each block of a phase, by name: as `SharedModel.step` takes them."""
        named = zip(self.changes[number], self.plan.phases[number].blocks, parts, optimizers[number], strict=True)
        # Without the barrier XLA would fuse this with the gradient's many steps, which would take longer.
        return {name: in_one_kernel(_change_by(block.rule))(part, *optimizer) for name, block, part, optimizer in named}

    def _clipped(self, gradients: Array, phase: Phase) -> list[Array]:
        """The part of the gradient of each block, clipped to max_gradient_norm."""
        limit = self.agent.settings.max_gradient_norm
        parts = [gradients[block.start : block.stop] for block in phase.blocks]
        if limit is not None:
            clip = optax.clip_by_global_norm(limit)
            parts = [clip.update(part, clip.init(part))[0] for part in parts]
        return parts

    def _statistics(self, trajectory: Trajectory) -> dict[str, Any]:
        """The rollout's own mean and variance, for the normalisers that all workers share."""
        told: dict[str, Any] = {}
        weights = trajectory.weights
        if self.agent.normalizes_observations:
            empty = normalizers.empty(trajectory.observations.shape[2:])
            told["observations"] = normalizers.merge(empty, trajectory.observations, weights=weights)[:2]
        if self.agent.context.normalize_rewards:
            returns = trajectory.running_returns
            told["returns"] = normalizers.merge(normalizers.empty(()), returns, weights=weights)[:2]
        return told

    def _report(self, name: str, told: dict[str, Any]) -> Array:
        """Packs all results for the host into one vector."""
        self.reports[name] = Packing(told, largest=None)
        return self.reports[name].pack(told)[0]


def _change_by(rule: UpdateRule) -> Callable[[Array, Array, Array], Array]:
    def change(gradient: Array, statistics: Array, taken: Array) -> Array:
        told = rule.compute(gradient, statistics, taken, jnp)
        return jnp.stack([told.change, *told.increments])

    return change


def _episodes(finished: Finished) -> dict[str, Any]:
    return {
        "ended": finished.ended.astype(jnp.int32).reshape(-1),
        "ended_returns": finished.returns.reshape(-1),
        "ended_lengths": finished.lengths.reshape(-1),
    }
