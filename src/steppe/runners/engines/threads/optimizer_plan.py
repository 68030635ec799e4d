"""How an agent's optimisers update a model shared by many threads: gradients, and the parameters that they move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array

from steppe.agents._base import Agent, Metrics, TrainState
from steppe.agents.core.actor_critic import ActorCritic
from steppe.agents.core.continuous import ActorAndCritics
from steppe.agents.core.off_policy import OffPolicy
from steppe.agents.core.optimizers import learning_rate_schedule, steps_of
from steppe.errors import UserError
from steppe.runners.engines.shared_optimizers import Schedule, Steps, UpdateRule, shared_steps

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


def plan_for(agent: Agent[Any], num_workers: int) -> UpdatePlan:
    """The plan of an agent; a UserError for agents and optimisers that cannot share their model."""
    if agent.experience == "none":
        return UpdatePlan((), 0)
    if agent.type == "trpo":
        raise UserError(
            'agent "trpo" keeps each step within a divergence of one policy, but in run_mode "multi-threaded" other '
            'workers move it meanwhile; use "ppo", or run_mode "single"'
        )
    if isinstance(agent, ActorCritic):
        return _actor_critic(agent)
    if isinstance(agent, OffPolicy):
        return _off_policy(agent, num_workers)
    settings: Any = agent.settings
    steps = shared_steps(settings.optimizer, MODE)
    batches = agent.updates_per_experience // steps_of(settings.optimizer)
    rate = learning_rate_schedule(settings, _of_all(_rollouts(agent), batches * steps.repeats), settings.learning_rate)
    return UpdatePlan((_whole(agent, steps, rate),), batches)


def _actor_critic(agent: ActorCritic[Any]) -> UpdatePlan:
    settings, size = agent.settings, agent.layout.size
    border = agent.layout.start_of("value") if agent.learns_values else size
    phases = []
    for part in agent.parts:
        steps = shared_steps(part.spec, MODE)
        start = settings.baseline_learning_rate if part.part == "value" else settings.learning_rate
        total = _of_all(_rollouts(agent), agent.batches_per_experience * steps.repeats)
        bounds = {"all": (0, size), "policy": (0, border), "value": (border, size)}[part.part]
        block = Block(*bounds, steps.optimizer, learning_rate_schedule(settings, total, start))
        phases.append(Phase(part.gradients, (block,), steps.repeats, steps.fraction))
    return UpdatePlan(tuple(phases), agent.batches_per_experience)


def _off_policy(agent: OffPolicy[Any], num_workers: int) -> UpdatePlan:
    settings = agent.settings
    steps = shared_steps(settings.optimizer, MODE)
    if steps.repeats > 1:
        raise UserError(
            f'in run_mode "{MODE}" agent "{agent.type}" draws a batch for every step, so "multi_step" has no meaning; '
            "set agent.updates"
        )
    first = _first_update(agent, num_workers)
    total = _rollouts(agent)
    if total is not None:
        waiting = num_workers * (-(-first // (agent.horizon * agent.context.num_envs)) - 1)
        total = max(total - waiting, 1) * settings.updates
    rate = learning_rate_schedule(settings, total, settings.learning_rate)
    if not isinstance(agent, ActorAndCritics):
        return UpdatePlan((_whole(agent, steps, rate),), settings.updates, first)
    # Of the actor's steps only each second or third may count.
    critics = shared_steps(settings.critic_optimizer or settings.optimizer, MODE).optimizer
    critic_rate = learning_rate_schedule(settings, total, settings.critic_learning_rate or settings.learning_rate)
    border, delay = agent.first_of_critics, getattr(settings, "policy_delay", 1)
    own = None if total is None else max(1, total // delay)
    actor_rate = learning_rate_schedule(settings, own, settings.learning_rate)
    actor = Block(0, border, steps.optimizer, actor_rate, delay)
    blocks = (actor, Block(border, agent.layout.size, critics, critic_rate))
    return UpdatePlan((Phase(agent.gradients, blocks, 1, steps.fraction),), settings.updates, first)


def _whole(agent: Any, steps: Steps, rate: Schedule) -> Phase:
    """One optimiser for all parameters."""
    return Phase(agent.gradients, (Block(0, agent.layout.size, steps.optimizer, rate),), steps.repeats, steps.fraction)


def _first_update(agent: OffPolicy[Any], num_workers: int) -> int:
    """Each worker waits for its share of learning_starts; a batch it must have anyway."""
    settings, memory = agent.settings, agent.memory
    own_part = settings.batch_size - getattr(settings, "demonstrated", 0)
    return min(max(-(-settings.learning_starts // num_workers), own_part), memory.rows * memory.num_envs)


def _rollouts(agent: Agent[Any]) -> int | None:
    """The rollouts of the whole experiment, of all workers, if that is known."""
    total = agent.context.total_timesteps
    return None if total is None else -(-total // (agent.horizon * agent.context.num_envs))


def _of_all(rollouts: int | None, each: int) -> int | None:
    return None if rollouts is None else rollouts * each
