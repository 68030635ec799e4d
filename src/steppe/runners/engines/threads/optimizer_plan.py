"""What an agent's optimisers come down to where many threads step one model: gradients, and whom they move."""

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
    """Parameters that one optimiser moves."""

    start: int
    stop: int
    optimizer: Any
    rate: Schedule
    every: int = 1
    """It is moved by each so many'th step of a worker only (td3's actor)."""

    @property
    def rule(self) -> UpdateRule:
        """How its gradients become changes."""
        return UpdateRule(self.optimizer, self.rate)


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
class UpdatePlan:
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


def plan_for(agent: Agent[Any], num_workers: int) -> UpdatePlan:
    """The plan of an agent; a UserError for what needs a model that nobody else moves."""
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
    """How many the whole experiment has, over all workers, where that is known."""
    total = agent.context.total_timesteps
    return None if total is None else -(-total // (agent.horizon * agent.context.num_envs))


def _of_all(rollouts: int | None, each: int) -> int | None:
    return None if rollouts is None else rollouts * each
