"""What an agent's optimisers come down to where many threads step one model: gradients, and whom they move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array

from steppe.agents._base import Agent, Metrics, TrainState
from steppe.agents.core.loss_optimizer import LossOptimizer
from steppe.errors import UserError
from steppe.runners.engines.shared_optimizers import Rule, Schedule, shared_steps

MODE = "multi-threaded"


@dataclass(frozen=True)
class Block:
    """Parameters that one optimiser moves."""

    start: int
    stop: int
    optimizer: Any
    rate: Schedule
    every: int = 1
    """It is moved by each so many'th step of a worker only (td3's actor)."""

    @property
    def rule(self) -> Rule:
        """How its gradients become changes."""
        return Rule(self.optimizer, self.rate)


@dataclass(frozen=True)
class Phase:
    """One gradient of a batch, and the blocks that it moves."""

    gradients: Callable[[TrainState, Any], tuple[Array, Metrics]]
    """As in the agent's contract: [P], of which only the blocks' parts count."""
    blocks: tuple[Block, ...]
    repeats: int = 1
    """How many times it is taken on each batch."""
    fraction: float = 1.0
    """How large a part of the batch it is taken on."""


@dataclass(frozen=True)
class Plan:
    """How one rollout becomes steps of the shared model."""

    phases: tuple[Phase, ...]
    batches: int
    """How many batches a rollout is cut into, or how many are drawn from the memory."""
    first_update: int = 0
    """How many timesteps a worker's memory must hold before it learns from it."""

    @property
    def order(self) -> list[tuple[int, int]]:
        """(phase, batch) of each step, one after the other."""
        return [
            (number, batch)
            for batch in range(self.batches)
            for number, phase in enumerate(self.phases)
            for _ in range(phase.repeats)
        ]


def plan_for(agent: Agent[Any]) -> Plan:
    """The plan of an agent that is made for its workers; a UserError for what needs a model that nobody else moves."""
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
    return Plan(phases, agent.batches_per_rollout, agent.first_update)


def _phase(optimizer: LossOptimizer) -> Phase:
    steps = shared_steps(optimizer.spec, MODE)
    blocks = tuple(
        Block(slot.start, slot.stop, shared_steps(slot.spec, MODE).optimizer, slot.rate.schedule(), slot.every)
        for slot in optimizer.slots
    )
    return Phase(optimizer.gradients, blocks, steps.repeats, steps.fraction)
