"""From collected timesteps to a better agent: the same step whether they came from a compiled or a host environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import Agent, Metrics, TrainState, Trajectory, Transitions
from steppe.memories import ReplayState, Timesteps
from steppe.specs.spaces import Box, Space


class Learner(NamedTuple):
    """An agent's state and its memory, () where it has none."""

    agent: TrainState
    memory: ReplayState | tuple[()]


def begin(agent: Agent[Any], key: Array) -> Learner:
    """Before the first timestep."""
    memory: Any = ()
    if agent.experience == "transitions":
        memory = agent.memory.init(_example(agent.situation.observation, agent.situation.action))  # type: ignore[attr-defined]
    return Learner(agent.init(key), memory)


def learn(agent: Agent[Any], learner: Learner, trajectory: Trajectory) -> tuple[Learner, Metrics]:
    """Takes in [T, N, ...] timesteps; the metrics are scalars, `updates` says how many optimiser steps were taken."""
    before = learner.agent.updates
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
    """Whether loss and parameters are finite: a finite loss can still have had a gradient that was not."""
    return jnp.isfinite(metrics.get("loss", jnp.float32(0.0))) & jnp.isfinite(learner.agent.params).all()


def _replay(agent: Any, learner: Learner, trajectory: Trajectory) -> tuple[Learner, Metrics]:
    memory, settings = agent.memory, agent.settings
    kept = memory.add(
        learner.memory,
        Timesteps(
            trajectory.observations,
            trajectory.actions,
            trajectory.rewards,
            trajectory.terminated,
            trajectory.truncated,
            trajectory.next_observations,
        ),
    )
    state = agent.observe(learner.agent, trajectory)
    enough = kept.filled * memory.num_envs >= agent.first_update
    enough &= kept.filled >= memory.n_step

    def once(carry: tuple[TrainState, ReplayState], _: None) -> tuple[tuple[TrainState, ReplayState], Metrics]:
        state, kept = carry
        sample_key, key = jax.random.split(state.key)
        state = state._replace(key=key)
        drawn = memory.sample(kept, sample_key, settings.batch_size)
        batch = Transitions(
            drawn.observations,
            drawn.actions,
            drawn.rewards,
            drawn.discounts,
            drawn.next_observations,
            drawn.weights,
        )
        # Only the small state goes through the branch: a memory that did would be copied.
        shapes = jax.eval_shape(agent.update, state, batch)[1]
        skipped = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        state, metrics = jax.lax.cond(enough, agent.update, lambda state, _: (state, skipped), state, batch)
        errors = metrics.pop("priorities")
        if memory.prioritized:
            kept = memory.reprioritize(kept, drawn.places, errors, when=enough)
        return (state, kept), metrics

    if settings.updates == 1:
        (state, kept), metrics = once((state, kept), None)
    else:
        (state, kept), metrics = jax.lax.scan(once, (state, kept), None, length=settings.updates)
        metrics = jax.tree.map(jnp.mean, metrics)
    return Learner(state, kept), metrics


def _example(observation: Space, action: Space) -> Timesteps:
    """Shapes and dtypes of one environment's timestep."""

    def room(space: Space) -> jax.ShapeDtypeStruct:
        shape = (space.size,) if isinstance(space, Box) and space is action else space.shape
        dtype = space.dtype if space.dtype in ("uint8", "int32") else np.float32
        return jax.ShapeDtypeStruct(shape, dtype)

    scalar, flag = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.bool_)
    return Timesteps(room(observation), room(action), scalar, flag, flag, room(observation))
