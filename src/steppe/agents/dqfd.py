"""Deep Q-learning from demonstrations (Hester et al. 2017, arXiv:1704.03732).

Before the first action the agent learns from demonstrations alone; afterwards part of each batch is demonstrations,
which are never overwritten. In demonstrated states the demonstrator's action must be worth more than any other by a
margin. The paper's L2 regularisation is the layers' `l2_regularization`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import Field, model_validator

from steppe.agents._base import AgentContext, Metrics, TrainState, Transitions
from steppe.agents.core import normalizers
from steppe.agents.dqn import DQN, DQNSettings
from steppe.memories import DemonstratedReplay, Timesteps
from steppe.records import demonstrations
from steppe.records.demonstrations import Demonstrations
from steppe.specs._base import Count, Flag, Natural, NonNegative, Positive
from steppe.specs.learning.exploration import ConstantExploration, RandomActions
from steppe.specs.spaces import Discrete


class DQfDSettings(DQNSettings):
    """Settings of `dqfd`."""

    demonstrations: Annotated[str, Field(min_length=1)]
    """A file that `steppe record` wrote; looked up relative to the file that names it, the project and the current
    folder."""
    expert_margin: NonNegative = 0.8
    """How much more a demonstrated action must be worth than any other."""
    supervised_weight: NonNegative = 1.0
    """The weight of the margin loss (equation 2)."""
    n_step_weight: NonNegative = 1.0
    """The weight of the n-step errors; 1-step errors have weight 1."""
    huber: Flag | Positive = True
    """Whether large errors count linearly instead of squared; a number says from which error on. Also huber_loss."""
    n_step: Count = 10
    """How many rewards are summed before the target network's estimate."""
    pretraining_updates: Natural = 1_000
    """How many updates are taken on demonstrations alone, before the first action."""
    demo_batch_size: Count | None = None
    """How many transitions of each later batch are demonstrations; null: demo_sampling_ratio of them."""
    demo_sampling_ratio: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)] = 0.25
    """The share of demonstrations in each later batch."""
    demo_memory_capacity: Count | None = None
    """How many demonstrated timesteps are kept, the first of the file; null keeps all."""
    learning_starts: Natural = 0
    """How many timesteps the agent collects before the first update after pretraining."""
    exploration: RandomActions = ConstantExploration(constant=0.01)
    """The share of random actions over time; also spelled actions_exploration."""

    @property
    def timesteps_before_learning(self) -> int:
        """The setting learning_starts, at most the memory's capacity; 0 with pretraining."""
        return 0 if self.pretraining_updates else super().timesteps_before_learning

    @property
    def demonstrated(self) -> int:
        """How many transitions of each batch are demonstrations."""
        return self.demo_batch_size or max(1, round(self.batch_size * self.demo_sampling_ratio))

    @model_validator(mode="before")
    @classmethod
    def _has_something_shown(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("demonstrations") is None:
            raise ValueError(
                'agent "dqfd" begins with demonstrations; record some with: steppe record -e NAME, and name the file: '
                '"demonstrations": "demonstrations.safetensors"'
            )
        return data

    @model_validator(mode="after")
    def _leaves_room(self) -> DQfDSettings:
        given = self.model_fields_set
        if self.demo_batch_size is not None and "demo_sampling_ratio" in given:
            raise ValueError("demo_batch_size and demo_sampling_ratio say the same thing; give one of them")
        if self.n_step == 1 and "n_step_weight" in given:
            raise ValueError("n_step_weight has no meaning where n_step is 1; leave it out")
        if self.demonstrated >= self.batch_size:
            raise ValueError(
                f"{self.demonstrated} demonstrations in each batch of {self.batch_size} leave no room for what the "
                "agent sees itself; lower demo_batch_size or demo_sampling_ratio"
            )
        return self


class DQfD(DQN):
    """Deep Q-learning that begins with demonstrations."""

    type = "dqfd"
    Settings: ClassVar[Any] = DQfDSettings
    settings: DQfDSettings

    def __init__(self, settings: DQfDSettings, context: AgentContext) -> None:
        super().__init__(settings, context)
        shown = _loaded(settings, context)
        self.demonstrations = self._as_collected(shown)
        self.memory = DemonstratedReplay(self.memory, self.demonstrations, settings.demonstrated)

    @property
    def resolved_settings(self) -> dict[str, Any]:
        """Adds the number of demonstrations in each batch."""
        return super().resolved_settings | {"demo_batch_size": self.settings.demonstrated}

    @property
    def own_batch_size(self) -> int:
        """The batch size without the demonstrations."""
        return self.settings.batch_size - self.settings.demonstrated

    @property
    def pretraining_updates(self) -> int:
        """The agent's setting."""
        return self.settings.pretraining_updates

    def init(self, key: Array) -> TrainState:
        """The initial state, with normalisers that contain the demonstrations."""
        state, shown = super().init(key), self.demonstrations
        if self.normalizes_observations:
            seen = normalizers.merge(state.observations, jnp.asarray(shown.observations))
            state = state._replace(observations=seen)
        if self.context.normalize_rewards:
            returns = normalizers.merge(state.returns, jnp.asarray(_running_returns(shown, self.settings.discount)))
            state = state._replace(returns=returns)
        return state

    def loss(self, params: Array, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """Equation 3: errors of one step and of n steps, and the margin of demonstrated actions."""
        settings = self.settings
        values = self.online_values(params, state, batch)
        chosen_q = self.q.chosen(values, batch.actions)
        alone = batch if batch.single is None else batch._replace(**batch.single._asdict())
        each, errors = self.td_loss(chosen_q, self.targets(state, alone))
        if batch.single is not None:
            each = each + settings.n_step_weight * self.td_loss(chosen_q, self.targets(state, batch))[0]
        metrics = {"td_error": errors.mean(), "priorities": errors}
        if batch.demonstrated is not None:
            lacking = jnp.where(batch.demonstrated, self.lacking_margin(values, chosen_q, batch.actions), 0.0)
            each = each + settings.supervised_weight * lacking
            metrics["supervised_loss"] = lacking.sum() / jnp.maximum(batch.demonstrated.sum(), 1)
        penalty = self.q.network.penalty(self.layout.split(params)["torso"])
        return (batch.weights * each).mean() + penalty, metrics

    def lacking_margin(self, values: Array, chosen_q: Array, actions: Array) -> Array:
        """max_a [Q(s, a) + margin * (a != action)] - Q(s, action), the mean over choices: [B] (equation 2)."""
        columns = [actions] if self.q.is_single else [actions[..., index] for index in range(chosen_q.shape[-2])]
        best = [
            (each.mean(-1) + jnp.where(column[:, None] == jnp.arange(each.shape[-2]), 0.0, self._margin)).max(-1)
            for each, column in zip(self.q.split(values), columns, strict=True)
        ]
        return (jnp.stack(best, -1) - chosen_q.mean(-1)).mean(-1)

    @property
    def _margin(self) -> float:
        return self.settings.expert_margin

    def _as_collected(self, shown: Demonstrations) -> Timesteps:
        """The demonstrations as collected timesteps [M, 1, ...]: preprocessed, with actions counted from 0."""
        arrays, preprocessing = shown.arrays, self.context.preprocessing
        observations, next_observations = arrays["observations"], arrays["next_observations"]
        if preprocessing is not None:
            observations, next_observations = shown.seen_through(preprocessing)
        start = self.context.action.start if isinstance(self.context.action, Discrete) else 0
        rewards = arrays["rewards"].astype(np.float32)
        if self.reward_preprocessing is not None:
            rewards = self.reward_preprocessing(rewards)
        timesteps = Timesteps(
            observations,
            arrays["actions"] - start,
            rewards,
            arrays["terminated"],
            arrays["truncated"],
            next_observations,
        )
        return Timesteps(*(leaf[:, None] for leaf in timesteps))

    def total_batches(self) -> int | None:
        """The total number of batches, pretraining included."""
        total = super().total_batches()
        return None if total is None else total + self.pretraining_updates


def _loaded(settings: DQfDSettings, context: AgentContext) -> Demonstrations:
    """The demonstrations of the file; a UserError if they do not fit."""
    shown = demonstrations.load_named(settings.demonstrations)
    preprocessing = context.preprocessing
    observation = context.observation if preprocessing is None else preprocessing.observation
    shown = shown.fitting(observation, context.action, context.environment or "this environment")
    return shown if settings.demo_memory_capacity is None else shown.first(settings.demo_memory_capacity)


def _running_returns(shown: Timesteps, discount: float) -> np.ndarray:
    """The discounted sums of each episode's rewards so far, [M, 1]."""
    sums, so_far = np.zeros_like(shown.rewards), np.float32(0.0)
    ended = shown.terminated | shown.truncated
    for t, reward in enumerate(shown.rewards[:, 0]):
        sums[t] = so_far = discount * so_far + reward
        so_far = np.float32(0.0) if ended[t, 0] else so_far
    return sums
