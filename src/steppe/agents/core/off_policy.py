"""What agents share that learn from a replay memory: when they learn, from how much, and how their targets move."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from pydantic import model_validator

from steppe.agents._base import (
    Agent,
    AgentContext,
    Metrics,
    TrainState,
    Trajectory,
    Transitions,
    fresh_state,
    host_generator,
    normalizer_tensors,
)
from steppe.agents.core import normalizers
from steppe.agents.core.layout import Layout
from steppe.agents.core.optimizers import (
    OptimizerSettings,
    gradient_of,
    has_part,
    innermost,
    learning_rate_schedule,
    make_transform,
    step,
    steps_of,
)
from steppe.errors import UserError
from steppe.memories import Replay, frames_for, stored_dtype
from steppe.specs._base import Count, Flag, Natural, Spec, Unit
from steppe.specs.learning.optimizer import NaturalGradient, SubsamplingStep


class MemorySettings(Spec):
    """The replay memory."""

    type: Literal["replay", "prioritized_replay", "naive_prioritized_replay"] = "replay"
    """Whether batches are drawn uniformly or by their last error."""
    capacity: Count = 50_000
    """How many timesteps are kept."""
    include_next_states: Flag = True
    """TensorForce's option; these agents cannot learn without the next states."""
    priority_exponent: Unit = 0.6
    """How much errors count in prioritised drawing: 0 is uniform; TensorForce called it prioritization_weight."""
    importance_exponent: Unit = 0.4
    """How much of the bias of prioritised drawing is undone: 1 is all."""
    final_importance_exponent: Unit | None = None
    """Where importance_exponent ends, growing until total_timesteps; null keeps it as it is."""

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
    """What every agent with a replay memory can be told."""

    discount: Unit = 0.99
    """How much the future counts: a reward k timesteps away weighs discount ** k."""
    batch_size: Count = 256
    """How many transitions each update learns from; also update_mode.batch_size."""
    update_frequency: Count = 1
    """How many timesteps each environment takes between two updates; also update_mode.frequency."""
    updates: Count = 1
    """How many optimiser steps are taken each time."""
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
    """An agent that draws what it learns from out of a memory, towards targets that follow slowly."""

    experience: ClassVar[Literal["trajectories", "transitions", "none"]] = "transitions"
    default_num_envs = 1
    workers = 1
    """How many, each with a memory of its own, collect for one model; each waits for its share of learning_starts."""
    waits = 1
    """How many of their waits the updates of the experiment are fewer by: all but where workers update together."""

    def __init__(self, settings: S, context: AgentContext) -> None:
        super().__init__(settings, context)
        self.horizon = settings.update_frequency
        self.memory = Replay(
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
        rate = learning_rate_schedule(settings, self.total_updates(), settings.learning_rate)
        self.transform = make_transform(settings.optimizer, rate, settings.max_gradient_norm)

    @abstractmethod
    def draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        """Fresh parameters as nested dicts; without a generator only their shapes count."""

    @abstractmethod
    def losses(self, params: Array, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The scalar to minimise, and metrics, among them "priorities" [B]: what prioritised replay goes by."""

    def init(self, key: Array) -> TrainState:
        """The targets start as copies."""
        params = self.layout.join(self.draw_params(host_generator(key)))
        return fresh_state(self, params, params.copy(), jax.jit(self.transform.init)(params), key)

    @property
    def updates_per_experience(self) -> int:
        """As set."""
        return self.settings.updates * steps_of(self.settings.optimizer)

    @property
    def first_update(self) -> int:
        """How many timesteps the memory must hold before the first update; no more than it has room for."""
        return self._first_update(self.settings.batch_size)

    def _first_update(self, least: int) -> int:
        share = -(-self.settings.learning_starts // self.workers)
        return min(max(share, least), self.memory.rows * self.memory.num_envs)

    def gradients(self, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The gradient [P] of the loss over a batch."""
        key = jax.random.fold_in(state.key, state.updates)

        def loss(params: Array) -> tuple[Array, Metrics]:
            value, metrics = self.losses(params, state, batch)
            return value, {"loss": value, **metrics}

        return gradient_of(self.settings.optimizer, loss, state.params, key)

    def loss(self, params: Array, state: TrainState, batch: Transitions) -> Array:
        """The scalar alone."""
        return self.losses(params, state, batch)[0]

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """One optimiser step, and now and then the targets move."""
        steps, optimizer = self.transform.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, steps)
        moved = state._replace(params=params, optimizer=optimizer, updates=state.updates + 1)
        return self.moved_target(moved, state.updates)

    def pmean(self, values: Array) -> Array:
        """There is one device."""
        return values

    def after_step(self, before: TrainState, moved: TrainState) -> TrainState:
        """The targets move towards the parameters that were really reached."""
        return self.moved_target(moved._replace(target=before.target), before.updates)

    def in_trust_region(self, params: Array, state: TrainState, batch: Any) -> Any:
        """A step may be of any length."""
        return True

    def moved_target(self, state: TrainState, before: Any) -> TrainState:
        """Every target_sync_frequency updates, of which there were `before`, the targets follow the parameters."""
        settings = self.settings
        weight: Any = settings.target_update_weight
        if (frequency := settings.target_sync_frequency) > 1:
            weight = jnp.where(state.updates // frequency > before // frequency, weight, 0.0)
        return state._replace(target=state.target + weight * (state.params - state.target))

    def update(self, state: TrainState, experience: Transitions) -> tuple[TrainState, Metrics]:
        """One step of the optimiser, whatever it wraps; the metrics carry each transition's priority."""
        return step(self.settings.optimizer, self, state, self.corrected(state, experience))

    def corrected(self, state: TrainState, batch: Transitions) -> Transitions:
        """With importance weights as far as the experiment has come."""
        start, end = self.settings.memory.importance_exponent, self.settings.memory.final_importance_exponent
        if end is None:
            return batch
        total = self.total_updates()
        if total is None:
            raise UserError("memory.final_importance_exponent needs total_timesteps, to know when it is reached")
        exponent = start + (end - start) * jnp.minimum(state.updates / total, 1.0)
        # The memory drew its weights with the first exponent; they are powers of the same base.
        return batch._replace(weights=batch.weights ** (exponent / start))

    def observe(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """What the normalisers take from newly collected timesteps [T, N, ...]."""
        if self.normalizes_observations:
            state = state._replace(observations=normalizers.merge(state.observations, trajectory.observations))
        if self.context.normalize_rewards:
            state = state._replace(returns=normalizers.merge(state.returns, trajectory.running_returns))
        return state

    def normalized_batch(self, state: TrainState, batch: Transitions) -> Transitions:
        """Observations and rewards as the losses take them."""
        if self.context.normalize_rewards:
            # Sums of several rewards, so not clipped as single ones are.
            spread = jnp.sqrt(state.returns.variance + normalizers.EPSILON)
            batch = batch._replace(rewards=batch.rewards / spread)
        if not self.normalizes_observations:
            return batch
        return batch._replace(
            observations=self.normalized(state.observations, batch.observations),
            next_observations=self.normalized(state.observations, batch.next_observations),
        )

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The acting network with its normaliser."""
        return self.layout.named(np.array(state.params)) | normalizer_tensors(self, state)

    def total_updates(self) -> int | None:
        """How many updates the whole experiment takes, where that is known."""
        total = self.context.total_timesteps
        if total is None:
            return None
        each = self.horizon * self.context.num_envs
        waiting = self.waits * (-(-self.first_update // each) - 1)
        return max(-(-total // each) - waiting, 1) * self.updates_per_experience
