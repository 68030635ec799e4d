"""One iteration of learning from collected timesteps, for compiled and for host environments."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import Agent, Metrics, TrainState, Trajectory, Transitions
from steppe.memories import DemonstratedState, ReplayState, Sample, Timesteps, stored_dtype
from steppe.policies.preprocessing import RewardPreprocessing
from steppe.runners.compilation import jit_for_learning
from steppe.specs.spaces import Box, Space

LARGEST_TIMESTEP = 2**30
"""The largest timestep in compiled programs, for schedules; the host counts without bound."""
PRETRAINING_CHUNK = 1000
"""The updates of pretraining between two lines of the log."""

log = logging.getLogger(__name__)


class Learner(NamedTuple):
    """An agent's state and its memory, () if it has none."""

    agent: TrainState
    memory: ReplayState | DemonstratedState | tuple[()]


def begin(agent: Agent[Any], key: Array, pretrains: bool = True) -> Learner:
    """The initial learner, after pretraining on demonstrations unless `pretrains` is false."""
    memory: Any = ()
    if agent.experience == "transitions":
        memory = agent.memory.init(example_of(agent))
    learner = Learner(agent.init(key), memory)
    return _pretrained(agent, learner) if pretrains and agent.pretraining_updates else learner


def per_step_rewards(agent: Agent[Any]) -> RewardPreprocessing | None:
    """The preprocessing of each reward as it comes; None without one, or if it needs all rewards of a rollout."""
    stages = agent.reward_preprocessing
    return None if stages is None or stages.spans_rollout else stages


def learn(agent: Agent[Any], learner: Learner, trajectory: Trajectory) -> tuple[Learner, Metrics]:
    """Learns from timesteps [T, N, ...]; the metrics are scalars, and `updates` is the number of optimiser steps."""
    before = learner.agent.updates
    if agent.reward_preprocessing is not None and agent.reward_preprocessing.spans_rollout:
        average = None if agent.axis is None else partial(jax.lax.pmean, axis_name=agent.axis)
        trajectory = trajectory._replace(rewards=agent.reward_preprocessing(trajectory.rewards, jnp, average))
    match agent.experience:
        case "trajectories":
            state, metrics = agent.update(learner.agent, trajectory)
            learner = Learner(state, ())
        case "transitions":
            learner, metrics = _replay(agent, learner, trajectory)
        case _:
            metrics = {}
    return learner, {**metrics, "updates": learner.agent.updates - before}


def is_healthy(learner: Learner, metrics: Metrics) -> Array:
    """Whether loss and parameters are finite: the gradient of a finite loss may not be."""
    params = learner.agent.params
    # One product instead of a test of each parameter: it is not finite if any parameter is not, or is huge.
    return jnp.isfinite(metrics.get("loss", jnp.float32(0.0))) & jnp.isfinite(jnp.vdot(params, params))


class LearnStep:
    """`learn` for a compiled call from Python, with all metrics in one vector for a single transfer."""

    def __init__(self, agent: Agent[Any], average: Callable[[Array], Array] = lambda values: values) -> None:
        """`average` is the mean over devices, if the environments are spread."""
        self._agent, self._average = agent, average
        self._names: list[str] = []

    def learn(self, learner: Learner, numbers: Any, trajectory: Trajectory) -> tuple[Learner, Array]:
        """The function to be compiled; other `numbers` of the agent compile nothing anew."""
        learner, metrics = learn(self._agent.with_numbers(numbers), learner, trajectory)
        metrics["is_healthy"] = is_healthy(learner, metrics)
        self._names = list(metrics)
        return learner, self._average(jnp.stack([jnp.float32(value) for value in metrics.values()]))

    def named(self, values: Any) -> dict[str, float]:
        """The metrics of a call by name, `is_healthy` and `updates` among them."""
        return dict(zip(self._names, np.asarray(values).tolist(), strict=True))


def episodes_cut(agent: Agent[Any], learner: Learner) -> Learner:
    """Marks the ends of episodes in the memory, if there is one: the next timestep does not continue them."""
    if agent.experience != "transitions":
        return learner
    return learner._replace(memory=agent.memory.cut(learner.memory))  # type: ignore[attr-defined]


def timesteps_of(trajectory: Trajectory) -> Timesteps:
    """The part of a trajectory that a replay memory keeps."""
    return Timesteps(
        trajectory.observations,
        trajectory.actions,
        trajectory.rewards,
        trajectory.terminated,
        trajectory.truncated,
        trajectory.next_observations,
    )


def example_of(agent: Agent[Any]) -> Timesteps:
    """Shapes and dtypes of one environment's timestep, as a memory keeps it."""
    observation, action = agent.context.observation, agent.context.action

    def room(space: Space) -> jax.ShapeDtypeStruct:
        shape = (space.size,) if isinstance(space, Box) and space is action else space.shape
        return jax.ShapeDtypeStruct(shape, np.dtype(stored_dtype(space)))

    scalar, flag = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.bool_)
    return Timesteps(room(observation), room(action), scalar, flag, flag, room(observation))


def _replay(agent: Any, learner: Learner, trajectory: Trajectory) -> tuple[Learner, Metrics]:
    memory, settings = agent.memory, agent.settings
    kept = memory.add(learner.memory, timesteps_of(trajectory))
    state = agent.update_stats(learner.agent, trajectory)
    enough = kept.filled * memory.num_envs >= agent.first_update
    enough &= kept.filled >= memory.n_step

    @partial(jax.jit, inline=True)  # traced once, for the shapes and for the loop
    def once(state: TrainState, kept: Any) -> tuple[TrainState, Any, Metrics]:
        sample_key, key = jax.random.split(state.key)
        drawn = memory.sample(kept, sample_key, settings.batch_size)
        state, metrics = agent.update(state._replace(key=key), _batch(drawn))
        errors = metrics.pop("priorities")
        if memory.prioritized:
            kept = memory.reprioritize(kept, drawn.places, errors, when=True)
        return state, kept, metrics

    def again(_: Any, carry: tuple[TrainState, Any, Metrics]) -> tuple[TrainState, Any, Metrics]:
        state, own, total = carry
        state, after, metrics = once(state, own if memory.prioritized else kept)
        return state, after if memory.prioritized else (), jax.tree.map(jnp.add, total, metrics)

    shapes = jax.eval_shape(once, state, kept)[2]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    # A loop of zero rounds instead of a branch: XLA runs it faster on CPUs, and does not copy an unchanged memory.
    rounds = jnp.where(enough, settings.updates, 0)
    start = (state, kept if memory.prioritized else (), zeros)
    state, own, total = jax.lax.fori_loop(0, rounds, again, start)
    metrics = jax.tree.map(lambda leaf: leaf / settings.updates, total)
    kept = own if memory.prioritized else kept
    # Noise in parameters is drawn from the key, and must change even before the first update.
    key = jnp.where(enough, state.key, jax.random.split(state.key)[1])
    return Learner(state._replace(key=key), kept), metrics


def _pretrained(agent: Any, learner: Learner) -> Learner:
    """The learner after all updates on demonstrations."""
    total = agent.pretraining_updates
    pretrain = jit_for_learning(partial(_pretrain, agent), donate_argnums=0)
    numbers = agent.numbers
    for done in range(0, total, PRETRAINING_CHUNK):
        count = min(PRETRAINING_CHUNK, total - done)
        learner, loss = pretrain(learner, numbers, jnp.int32(count))
        log.info("pretraining: %d of %d updates, loss %.4g", done + count, total, float(loss))
    return learner


def _pretrain(agent: Any, learner: Learner, numbers: dict[str, Any], updates: Array) -> tuple[Learner, Array]:
    """Takes `updates` updates on demonstrations; returns the loss of the last one."""
    agent = agent.with_numbers(numbers)
    memory = agent.memory

    def once(_: Array, carry: tuple[TrainState, DemonstratedState, Array]) -> Any:
        state, kept, _ = carry
        sample_key, key = jax.random.split(state.key)
        drawn = memory.sample_demonstrations(kept, sample_key, agent.settings.batch_size)
        state, metrics = agent.update(state._replace(key=key), _batch(drawn))
        if memory.prioritized:
            kept = memory.reprioritize_demonstrations(kept, drawn.places, metrics["priorities"], when=True)
        return state, kept, metrics["loss"]

    state, kept, loss = jax.lax.fori_loop(0, updates, once, (*learner, jnp.float32(0.0)))
    return Learner(state, kept), loss


def _batch(drawn: Sample) -> Transitions:
    """A sample without the places that it was drawn from."""
    return Transitions(**{name: value for name, value in drawn._asdict().items() if name != "places"})
