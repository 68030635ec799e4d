"""Agents that learn from a replay memory: settings, the schedule of updates, and target networks."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import model_validator

from steppe.agents._base import (
    Agent,
    AgentContext,
    Metrics,
    TargetSync,
    TrainState,
    Transitions,
    fresh_state,
    host_generator,
    normalizer_tensors,
)
from steppe.agents.core import normalizers
from steppe.agents.core.layout import Layout
from steppe.agents.core.loss_optimizer import LossOptimizer, Terms, slot_of
from steppe.agents.core.optimizers import OptimizerSettings, has_part, innermost
from steppe.errors import UserError
from steppe.memories import Replay, frames_for, stored_dtype
from steppe.specs._base import Count, Flag, Natural, Spec, Unit
from steppe.specs.learning.optimizer import NaturalGradient, SubsamplingStep


class MemorySettings(Spec):
    """The replay memory."""

    type: Literal["replay", "prioritized_replay", "naive_prioritized_replay"] = "replay"
    """Whether batches are drawn uniformly or by priority, the last error of each transition."""
    capacity: Count = 50_000
    """How many timesteps are kept."""
    include_next_states: Flag = True
    """TensorForce's option; these agents cannot learn without the next states."""
    priority_exponent: Unit = 0.6
    """How much errors count in prioritised drawing: 0 is uniform; TensorForce called it prioritization_weight."""
    importance_exponent: Unit = 0.4
    """How much of the bias of prioritised drawing is undone: 1 is all."""
    final_importance_exponent: Unit | None = None
    """The value to which importance_exponent grows until total_timesteps; null keeps it constant."""

    @model_validator(mode="before")
    @classmethod
    def _old_words(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"type": data}
        if isinstance(data, dict) and data.get("type") == "latest":
            raise ValueError('memory "latest" keeps what was just seen, as ppo and vpg do; use "replay" here')
        if isinstance(data, dict) and "prioritization_weight" in data:
            if "priority_exponent" in data:
                raise ValueError("priority_exponent and prioritization_weight say the same thing; give one of them")
            data = data | {"priority_exponent": data["prioritization_weight"]}
            data.pop("prioritization_weight")
        return data

    @model_validator(mode="after")
    def _next_states_are_needed(self) -> MemorySettings:
        if not self.include_next_states:
            raise ValueError("include_next_states must be true: the value of what follows is what is learned from")
        if self.type == "replay":
            for name in ("priority_exponent", "importance_exponent", "final_importance_exponent"):
                if name in self.model_fields_set and getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f'{name} is for memory "prioritized_replay"; this one draws uniformly')
        if self.final_importance_exponent is not None and not self.importance_exponent:
            raise ValueError("an importance_exponent that grows to final_importance_exponent must begin above 0")
        return self


class OffPolicySettings(OptimizerSettings):
    """Settings of every agent with a replay memory."""

    discount: Unit = 0.99
    """How much the future counts: a reward k timesteps away weighs discount ** k."""
    batch_size: Count = 256
    """How many transitions each update learns from; also update_mode.batch_size."""
    update_frequency: Count = 1
    """How many timesteps each environment takes between two updates; also update_mode.frequency."""
    updates: Count = 1
    """How many optimiser steps are taken every update_frequency timesteps."""
    learning_starts: Natural = 1_000
    """How many timesteps are collected before the first update."""
    n_step: Count = 1
    """How many rewards are summed before the target network's estimate."""
    target_sync_frequency: Count = 1
    """How many updates pass between two moves of the target network."""
    target_update_weight: Unit = 0.005
    """How far the target network moves each time: 1 is a copy."""
    memory: MemorySettings = MemorySettings()
    """The replay memory."""

    def horizon_for(self, num_envs: int) -> int:
        """The agent's setting."""
        return self.update_frequency

    @property
    def timesteps_before_learning(self) -> int:
        """The setting learning_starts, but at most the memory's capacity."""
        return min(self.learning_starts, self.memory.capacity)

    @model_validator(mode="after")
    def _fits_together(self) -> OffPolicySettings:
        if self.memory.capacity < self.batch_size:
            raise ValueError(f"memory.capacity {self.memory.capacity} is less than batch_size {self.batch_size}")
        if isinstance(innermost(self.optimizer), NaturalGradient):
            raise ValueError("natural_gradient measures steps of a policy's probabilities, which this agent has not")
        if self.memory.type != "replay" and has_part(self.optimizer, SubsamplingStep):
            raise ValueError("subsampling_step leaves transitions without an error, which a prioritised memory needs")
        return self


S = TypeVar("S", bound=OffPolicySettings)


class OffPolicy(Agent[S], Generic[S]):
    """An agent that learns from batches of its memory, with targets from a slowly moving target network."""

    experience: ClassVar[Literal["trajectories", "transitions", "none"]] = "transitions"
    default_num_envs = 1
    workers = 1
    """How many workers, each with its own memory, collect for one model; each waits for a share of learning_starts."""
    waiting_workers = 1
    """How many workers delay updates by that; 1 if they make each update jointly."""

    def __init__(self, settings: S, context: AgentContext) -> None:
        super().__init__(settings, context)
        self.horizon = settings.update_frequency
        self.memory: Any = Replay(
            capacity=settings.memory.capacity,
            num_envs=context.num_envs,
            horizon=self.horizon,
            discount=settings.discount,
            n_step=settings.n_step,
            prioritized=settings.memory.type != "replay",
            priority_exponent=settings.memory.priority_exponent,
            importance_exponent=settings.memory.importance_exponent,
            frames=frames_for(context.observation.shape, stored_dtype(context.observation), context.stacked_frames),
        )
        self.layout = Layout(self.draw_params(None))
        # A falling learning rate needs a known end.
        _ = self.slots

    @abstractmethod
    def draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        """Fresh parameters as nested dicts; zeros without a generator."""

    @abstractmethod
    def loss(self, params: Array, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The scalar to minimise, and metrics; "priorities" [B] are the errors that prioritised replay draws by."""

    def loss_terms(
        self, params: Array, state: TrainState, batch: Transitions, terms: Terms, index: Any
    ) -> tuple[Array, Metrics]:
        """The whole loss, whatever `terms` are asked for."""
        return self.loss(params, state, batch)

    def prepare(self, state: TrainState, experience: Transitions) -> Transitions:
        """Applies the schedule of importance weights (final_importance_exponent)."""
        start, end = self.settings.memory.importance_exponent, self.settings.memory.final_importance_exponent
        if end is None:
            return experience
        total = self.total_updates()
        if total is None:
            raise UserError("memory.final_importance_exponent needs total_timesteps, to know when it is reached")
        exponent = start + (end - start) * jnp.minimum(state.updates / total, 1.0)
        # The memory computed the weights with the initial exponent, and they are powers of the same base.
        return experience._replace(weights=experience.weights ** (exponent / start))

    def update(self, state: TrainState, experience: Transitions) -> tuple[TrainState, Metrics]:
        """One step of the optimiser; the metrics contain each transition's priority."""
        return self.step(state, self.prepare(state, experience))

    def after_step(self, before: TrainState, moved: TrainState) -> TrainState:
        """Moves the target network towards the parameters every target_sync_frequency updates."""
        sync = self.target_sync
        weight: Any = sync.weight
        if sync.frequency > 1:
            weight = jnp.where(moved.updates // sync.frequency > before.updates // sync.frequency, weight, 0.0)
        target = before.target + weight * (moved.params - before.target)
        if sync.delay > 1:
            target = jnp.where(moved.updates // sync.delay > before.updates // sync.delay, target, before.target)
        return moved._replace(target=target)

    def init(self, key: Array) -> TrainState:
        """The initial state, whose target network is a copy."""
        params = self.layout.join(self.draw_params(host_generator(key)))
        return fresh_state(self, params, params.copy(), key)

    @property
    def discount(self) -> float:
        """The agent's setting."""
        return self.settings.discount

    @property
    def optimizers(self) -> tuple[LossOptimizer, ...]:
        """One optimiser for all parameters."""
        spec = self.settings.optimizer
        return (LossOptimizer(self, spec, (slot_of(self, spec, self.settings.learning_rate),)),)

    @property
    def target_sync(self) -> TargetSync:
        """The agent's setting."""
        return TargetSync(self.settings.target_sync_frequency, self.settings.target_update_weight)

    @property
    def batches_per_rollout(self) -> int:
        """The agent's setting."""
        return self.settings.updates

    def for_workers(self, count: int, shares_memory: bool = True, updates_together: bool = False) -> Self:
        """The agent of one worker, which waits for its share of learning_starts."""
        memory = self.memory
        if shares_memory:
            memory = memory.with_capacity(max(-(-memory.capacity // count), self.settings.batch_size))
        return self._replaced(memory=memory, workers=count, waiting_workers=1 if updates_together else count)

    def with_numbers(self, numbers: dict[str, Any]) -> Self:
        """Sets the memory's numbers too."""
        agent = super().with_numbers(numbers)
        settings, memory = agent.settings, agent.settings.memory
        return agent._replaced(
            memory=self.memory.with_numbers(settings.discount, memory.priority_exponent, memory.importance_exponent)
        )

    @property
    def first_update(self) -> int:
        """How many timesteps the memory must hold before the first update, at most its capacity."""
        share = -(-self.settings.learning_starts // self.workers)
        return min(max(share, self.own_batch_size), self.memory.rows * self.memory.num_envs)

    @property
    def own_batch_size(self) -> int:
        """How many transitions of each batch are the agent's own."""
        return self.settings.batch_size

    def normalized_batch(self, state: TrainState, batch: Transitions) -> Transitions:
        """The batch with normalised observations and rewards."""
        if self.context.normalize_rewards:
            # These are sums of n rewards, so they are not clipped.
            spread = jnp.sqrt(state.returns.variance + normalizers.EPSILON)
            batch = batch._replace(rewards=batch.rewards / spread)
        if not self.normalizes_observations:
            return batch
        return batch._replace(
            observations=self.normalized(state.observations, batch.observations),
            next_observations=self.normalized(state.observations, batch.next_observations),
        )

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors of the acting network and its normaliser."""
        return self.layout.named(np.array(state.params)) | normalizer_tensors(self, state)

    def total_batches(self) -> int | None:
        """The total number of batches, without the rollouts before learning starts."""
        rollouts = self.total_rollouts()
        if rollouts is None:
            return None
        waiting = self.waiting_workers * (-(-self.first_update // (self.horizon * self.context.num_envs)) - 1)
        return max(rollouts - waiting, 1) * self.batches_per_rollout
