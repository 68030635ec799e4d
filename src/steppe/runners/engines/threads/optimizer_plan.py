"""How an agent's optimisers update a model shared by many threads: gradients, and the parameters that they move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array

from steppe.agents._base import Agent, Metrics, TrainState
from steppe.agents.core.loss_optimizer import LossOptimizer
from steppe.errors import UserError
from steppe.runners.engines.shared_optimizers import Schedule, UpdateRule, shared_steps

MODE = "multi-threaded"


@dataclass(frozen=True)
class Block:
    """A range of parameters that one optimiser updates."""

    start: int
    stop: int
    optimizer: Any
    rate: Schedule
    every: int = 1
    """Updated by every `every`-th step of a worker only (td3's actor)."""

    @property
    def rule(self) -> UpdateRule:
        """The optimiser's rule."""
        return UpdateRule(self.optimizer, self.rate)


@dataclass(frozen=True)
class Phase:
    """One gradient of a batch, and the blocks that it updates."""

    gradients: Callable[[TrainState, Any], tuple[Array, Metrics]]
    """The agent's function for a gradient [P], of which only the blocks' parts are used."""
    blocks: tuple[Block, ...]
    repeats: int = 1
    """The number of steps on each batch."""
    fraction: float = 1.0
    """The fraction of the batch that each step uses."""


@dataclass(frozen=True)
class UpdatePlan:
    """How one rollout becomes steps of the shared model."""

    phases: tuple[Phase, ...]
    batches: int
    """The number of batches of a rollout, or drawn from the memory after it."""
    first_update: int = 0
    """The timesteps that a worker's memory must hold before it learns."""

    @property
    def order(self) -> list[tuple[int, int]]:
        """The (phase, batch) of each step, in order."""
        return [
            (number, batch)
            for batch in range(self.batches)
            for number, phase in enumerate(self.phases)
            for _ in range(phase.repeats)
        ]


def plan_for(agent: Agent[Any]) -> UpdatePlan:
    """The plan of an agent for its workers; a UserError for agents and optimisers that cannot share their model."""
    if agent.type == "trpo":
        raise UserError(
            'agent "trpo" keeps each step within a divergence of one policy, but in run_mode "multi-threaded" other '
            'workers move it meanwhile; use "ppo", or run_mode "single"'
        )
    phases = tuple(_phase(optimizer) for optimizer in agent.optimizers)
    if agent.experience == "transitions" and any(phase.repeats > 1 for phase in phases):
        raise UserError(
            f'in run_mode "{MODE}" agent "{agent.type}" draws a batch for every step, so "multi_step" has no meaning; '
            "set agent.updates"
        )
    return UpdatePlan(phases, agent.batches_per_rollout, agent.first_update)


def _phase(optimizer: LossOptimizer) -> Phase:
    steps = shared_steps(optimizer.spec, MODE)
    blocks = tuple(
        Block(slot.start, slot.stop, shared_steps(slot.spec, MODE).optimizer, slot.rate.schedule(), slot.every)
        for slot in optimizer.slots
    )
    return Phase(optimizer.gradients, blocks, steps.repeats, steps.fraction)
