"""An optimiser that takes its usual steps and records every gradient on a tape.

A worker learns from a rollout with the agent's own `update`: one step, epochs of minibatches, or several batches of a
memory. It sends the tape to the parameter servers: the gradients in their order, each computed after the steps before
it. So every agent runs here unchanged, and one worker alone learns exactly as in run mode single.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from steppe.agents._base import Agent, TrainState
from steppe.agents.core.optimizers import make_transform
from steppe.errors import UserError
from steppe.runners.engines.shared_optimizers import Schedule, shared_steps
from steppe.specs.learning.optimizer import OptimizerSpec

RUN_MODE = "distributed"
REFUSED = {
    "random": 'agent "random" learns nothing that workers could share; use run_mode "single"',
    "constant": 'agent "constant" learns nothing that workers could share; use run_mode "single"',
    "td3": (
        'the actor of agent "td3" waits for its critics, but parameter servers step all parameters alike; use "sac" or '
        '"ddpg", or run_mode "async"'
    ),
    "trpo": (
        'agent "trpo" keeps each step within a divergence of one policy, but parameter servers step with the gradients '
        'of many workers; use "ppo", or run_mode "single"'
    ),
}
"""Agents that parameter servers cannot train, and why."""


@dataclass(frozen=True)
class OptimizerRange:
    """An optimiser, and which of the parameters it moves."""

    start: int
    stop: int
    optimizer: OptimizerSpec
    """An elementwise optimiser, or a clipped_step of one."""
    rate: Schedule


class Tape(NamedTuple):
    """The state of an optimiser that remembers its gradients."""

    inner: Any
    """The state of the optimiser itself, with a learning rate of 1."""
    gradients: Array
    """[rows, size], the first `count` of them written."""
    count: Any
    rates: Any
    """The learning rates by which the optimiser's steps are multiplied [rows]."""


def parts_of(agent: Agent[Any]) -> list[OptimizerRange]:
    """The optimisers of the parameter servers; a UserError for agents that these cannot train."""
    if agent.type in REFUSED:
        raise UserError(REFUSED[agent.type])
    if len({shared_steps(each.spec, RUN_MODE).repeats for each in agent.optimizers}) > 1:
        raise UserError(
            "optimizer and baseline_optimizer take different numbers of steps on each batch (multi_step), but "
            f'in run_mode "{RUN_MODE}" all parameters are stepped together; give both the same, or use one'
        )
    return [
        OptimizerRange(slot.start, slot.stop, shared_steps(slot.spec, RUN_MODE).optimizer, slot.rate.on_host())
        for slot in agent.slots
    ]


def steps_per_rollout(agent: Agent[Any]) -> int:
    """How many gradients one rollout gives at most."""
    return agent.batches_per_rollout * agent.optimizers[0].steps


def with_tapes(agent: Agent[Any], rows: int) -> Agent[Any]:
    """The same agent, whose optimisers remember their last `rows` gradients."""
    return agent.with_transforms(lambda slot: taped(slot.spec, slot.max_gradient_norm, rows))


def rates_from(part: OptimizerRange, version: int, rows: int) -> np.ndarray:
    """The learning rates [rows] of the updates that follow a version."""
    if not callable(part.rate):
        return np.full(rows, part.rate, np.float32)
    return np.array([part.rate(version + row) for row in range(rows)], np.float32)


def rewound(state: TrainState, rates: Sequence[np.ndarray]) -> Any:
    """The optimisers of a state with empty tapes, and the learning rates [rows] of the next updates."""
    tapes = [
        tape._replace(count=np.int32(0), rates=each) for tape, each in zip(_tapes(state.optimizer), rates, strict=True)
    ]
    return tapes[0] if isinstance(state.optimizer, Tape) else tapes


def remembered(state: TrainState) -> list[Any]:
    """The states of the optimisers without their tapes."""
    return [tape.inner for tape in _tapes(state.optimizer)]


def reminded(state: TrainState, inner: Sequence[Any]) -> Any:
    """The optimisers of a state, with states returned by `remembered`."""
    tapes = [tape._replace(inner=each) for tape, each in zip(_tapes(state.optimizer), inner, strict=True)]
    return tapes[0] if isinstance(state.optimizer, Tape) else tapes


def recorded(state: TrainState) -> tuple[Array, Any]:
    """(gradients [rows, P] on the tapes, how many rows are written)."""
    tapes = _tapes(state.optimizer)
    size = state.params.shape[0]
    if sum(tape.gradients.shape[1] for tape in tapes) == size:
        return jnp.concatenate([tape.gradients for tape in tapes], 1), tapes[0].count
    # Optimisers of the whole vector get zeros for the parameters of the others.
    return sum(tape.gradients for tape in tapes), tapes[0].count  # type: ignore[return-value]


def taped(spec: OptimizerSpec, max_gradient_norm: float | None, rows: int) -> optax.GradientTransformation:
    """An optimiser that clips gradients, remembers them as they then are, and steps."""
    clip = optax.identity() if max_gradient_norm is None else optax.clip_by_global_norm(max_gradient_norm)
    inner = make_transform(spec, 1.0, None)

    def init(params: Array) -> Tape:
        room = jnp.zeros((rows, params.shape[0]), jnp.float32)
        return Tape(inner.init(params), room, jnp.int32(0), jnp.zeros(rows))

    def update(gradient: Array, tape: Tape, params: Array | None = None) -> tuple[Array, Tape]:
        gradient, _ = clip.update(gradient, clip.init(gradient))
        steps, state = inner.update(gradient, tape.inner, params)
        written = tape.gradients.at[tape.count].set(gradient)
        return tape.rates[tape.count] * steps, Tape(state, written, tape.count + 1, tape.rates)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def _tapes(optimizer: Any) -> list[Tape]:
    return [optimizer] if isinstance(optimizer, Tape) else optimizer
