"""Deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236) and its family, as settings:

double (arXiv:1509.06461), dueling (arXiv:1511.06581), n-step returns and prioritised replay (arXiv:1511.05952).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from pydantic import model_validator

from steppe.agents import normalizers
from steppe.agents._base import (
    Acting,
    Agent,
    Metrics,
    Situation,
    TrainState,
    Trajectory,
    Transitions,
    fresh_state,
    host_generator,
    normalizer_tensors,
)
from steppe.agents.layout import Layout
from steppe.agents.optimizers import Decay, OptimizerName, make_optimizer
from steppe.errors import UserError
from steppe.memories import Replay
from steppe.networks import Network, apply_head, default_layers, head
from steppe.records import heads
from steppe.specs._base import Count, Natural, Positive, Settings, Spec, Unit
from steppe.specs.spaces import Discrete


class MemorySettings(Spec):
    """The replay memory."""

    type: Literal["replay", "prioritized_replay"] = "replay"
    """Whether batches are drawn uniformly or by their last error."""
    capacity: Count = 50_000
    """How many timesteps are kept."""
    priority_exponent: Unit = 0.6
    """How much errors count in prioritised drawing: 0 is uniform."""
    importance_exponent: Unit = 0.4
    """How much of the bias of prioritised drawing is undone: 1 is all."""


class DQNSettings(Settings):
    """Settings of `dqn`."""

    discount: Unit = 0.99
    """How much the future counts: a reward k timesteps away weighs discount ** k."""
    batch_size: Count = 128
    """How many transitions each update learns from."""
    update_frequency: Count = 4
    """How many timesteps each environment takes between two updates."""
    updates: Count = 1
    """How many optimiser steps are taken each time."""
    learning_starts: Natural = 1_000
    """How many timesteps are collected before the first update."""
    learning_rate: Positive = 1e-3
    """The optimiser's step size."""
    learning_rate_decay: Decay = "none"
    """"linear" lets the learning rate fall to zero at total_timesteps."""
    optimizer: OptimizerName = "adam"
    """How gradients become steps."""
    max_gradient_norm: Positive | None = 10.0
    """Longer gradients are shortened to this length; null leaves them as they are."""
    double: bool = True
    """Whether the online network chooses the next action that the target network values."""
    dueling: bool = False
    """Whether the value of a state and the advantages of its actions are learned apart and added."""
    n_step: Count = 3
    """How many rewards are summed before the target network's estimate."""
    huber: bool = True
    """Whether large errors count linearly instead of squared."""
    target_sync_frequency: Count = 250
    """How many updates pass between two moves of the target network."""
    target_update_weight: Unit = 1.0
    """How far the target network moves each time: 1 is a copy."""
    initial_exploration: Unit = 1.0
    """The share of random actions at the start."""
    final_exploration: Unit = 0.02
    """The share of random actions once exploration has fallen."""
    exploration_timesteps: Count = 10_000
    """Over how many timesteps it falls."""
    memory: MemorySettings = MemorySettings()
    """The replay memory."""

    @model_validator(mode="after")
    def _memory_is_large_enough(self) -> DQNSettings:
        if self.memory.capacity < self.batch_size:
            raise ValueError(f"memory.capacity {self.memory.capacity} is less than batch_size {self.batch_size}")
        return self


class DQN(Agent[DQNSettings]):
    """One network's estimate of every action's value, learned from replayed transitions."""

    type = "dqn"
    Settings: ClassVar = DQNSettings
    experience: ClassVar[Literal["trajectories", "transitions", "none"]] = "transitions"
    default_num_envs = 1

    def __init__(self, settings: DQNSettings, situation: Situation) -> None:
        super().__init__(settings, situation)
        if not isinstance(situation.action, Discrete):
            raise UserError(
                f'agent "dqn" needs one discrete action, but {situation.environment or "the environment"} has '
                f'{_described(situation.action)}; use "ppo" or "vpg"'
            )
        self.actions = situation.action.n
        self.horizon = settings.update_frequency
        self.noise_size = 1 + self.actions
        self.layers = situation.network or default_layers(situation.observation)
        self.network = Network(self.layers, situation.observation)
        self.layout = Layout(self._draw_params(None))
        self.memory = Replay(
            capacity=settings.memory.capacity,
            num_envs=situation.num_envs,
            horizon=self.horizon,
            discount=settings.discount,
            n_step=settings.n_step,
            prioritized=settings.memory.type == "prioritized_replay",
            priority_exponent=settings.memory.priority_exponent,
            importance_exponent=settings.memory.importance_exponent,
        )
        self.optimizer = make_optimizer(
            settings.optimizer,
            settings.learning_rate,
            settings.max_gradient_norm,
            settings.learning_rate_decay,
            self._total_updates(),
        )

    @property
    def updates_per_experience(self) -> int:
        """As set."""
        return self.settings.updates

    @property
    def first_update(self) -> int:
        """How many timesteps the memory must hold before the first update; no more than it has room for."""
        wanted = max(self.settings.learning_starts, self.settings.batch_size)
        return min(wanted, self.memory.rows * self.memory.num_envs)

    def init(self, key: Array) -> TrainState:
        """The target network starts as a copy."""
        params = self.layout.join(self._draw_params(host_generator(key)))
        return fresh_state(self, params, params.copy(), jax.jit(self.optimizer.init)(params), key)

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Uniform: the first number decides whether to explore, the others which action to explore."""
        return jax.random.uniform(key, (*shape, self.noise_size))

    def exploration(self, timestep: Any) -> Any:
        """Falls linearly; the timestep may be a number or an array."""
        settings = self.settings
        fallen = (timestep / settings.exploration_timesteps) * 1.0
        fallen = jnp.minimum(fallen, 1.0) if isinstance(timestep, Array) else min(fallen, 1.0)
        return settings.initial_exploration + fallen * (settings.final_exploration - settings.initial_exploration)

    def act(self, acting: Acting, observations: Array, noise: Array | None, timestep: Array) -> tuple[Array, Array]:
        """The best action, or now and then a random one."""
        values = self._values(acting.params, self._normalized(acting.observations, observations))
        if noise is None:
            return heads.greedy("q_values", values, self.situation.action, xp=jnp), values
        epsilon = self.exploration(timestep)
        return heads.sample("q_values", values, noise, self.situation.action, xp=jnp, epsilon=epsilon), values

    def to_environment(self, actions: Array) -> Array:
        """The environment's own numbering of actions."""
        return heads.postprocess(actions, self.situation.action, xp=jnp)

    def errors(self, params: Array, state: TrainState, batch: Transitions) -> Array:
        """Temporal-difference errors [B]: estimate minus (n-step return + discounted value of what followed)."""
        observations = self._normalized(state.observations, batch.observations)
        next_observations = self._normalized(state.observations, batch.next_observations)
        key = jax.random.fold_in(state.key, state.updates) if self.network.has_dropout else None
        next_values = self._values(state.target, next_observations)
        chooser = self._values(state.params, next_observations) if self.settings.double else next_values
        next_value = _pick(next_values, chooser.argmax(-1))
        rewards = batch.rewards
        if self.situation.normalize_rewards:
            rewards = normalizers.scale(state.returns, rewards)
        target = jax.lax.stop_gradient(rewards + batch.discounts * next_value)
        return _pick(self._values(params, observations, key), batch.actions) - target

    def gradients(self, state: TrainState, batch: Transitions) -> tuple[Array, Metrics]:
        """The gradient of the mean (Huber or squared) error over a batch."""

        def loss(params: Array) -> tuple[Array, Metrics]:
            errors = self.errors(params, state, batch)
            each = optax.huber_loss(errors) if self.settings.huber else 0.5 * errors**2
            return (batch.weights * each).mean(), {"priorities": errors}

        (value, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return gradients, {"loss": value, "td_error": jnp.abs(metrics["priorities"]).mean(), **metrics}

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """One optimiser step, and now and then the target network moves."""
        steps, optimizer = self.optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, steps)
        updates = state.updates + 1
        weight = jnp.where(updates % self.settings.target_sync_frequency == 0, self.settings.target_update_weight, 0.0)
        return state._replace(
            params=params,
            target=state.target + weight * (params - state.target),
            optimizer=optimizer,
            updates=updates,
        )

    def update(self, state: TrainState, experience: Transitions) -> tuple[TrainState, Metrics]:
        """One optimiser step; the metrics carry each transition's error for prioritised replay."""
        gradients, metrics = self.gradients(state, experience)
        return self.apply(state, gradients), metrics

    def observe(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """What the normalisers take from newly collected timesteps [T, N, ...]."""
        if self.normalizes_observations:
            state = state._replace(observations=normalizers.merge(state.observations, trajectory.observations))
        if self.situation.normalize_rewards:
            state = state._replace(returns=normalizers.merge(state.returns, trajectory.running_returns))
        return state

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The online network with its normaliser."""
        return self.layout.named(np.array(state.params)) | normalizer_tensors(self, state)

    def policy_head(self) -> dict[str, Any]:
        """The best value wins; when sampling, exploration goes on as it ended."""
        settings = self.settings
        return {"kind": "q_values", "dueling": settings.dueling, "epsilon": settings.final_exploration}

    def _draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        features = self.network.features
        output: dict[str, Any] = head(rng, features, self.actions, scale=1.0)
        if self.settings.dueling:
            output = {"advantage": output, "value": head(rng, features, 1, scale=1.0)}
        return {"torso": self.network.init(rng), "head": output}

    def _values(self, vector: Array, observations: Array, dropout_key: Array | None = None) -> Array:
        """[B, ...] -> the value of each action [B, n]."""
        params = self.layout.split(vector)
        features = self.network.apply(params["torso"], observations, dropout_key)
        if not self.settings.dueling:
            return apply_head(params["head"], features)
        advantages = apply_head(params["head"]["advantage"], features)
        return apply_head(params["head"]["value"], features) + advantages - advantages.mean(-1, keepdims=True)

    def _normalized(self, statistics: normalizers.Statistics, observations: Array) -> Array:
        if not self.normalizes_observations:
            return observations
        return normalizers.normalize(statistics, observations)

    def _total_updates(self) -> int | None:
        total = self.situation.total_timesteps
        if total is None:
            return None
        each = self.horizon * self.situation.num_envs
        waiting = -(-self.first_update // each) - 1
        return max(-(-total // each) - waiting, 1) * self.settings.updates


def _pick(values: Array, actions: Array) -> Array:
    """The values [B, n] of the actions [B]; compared instead of looked up, since that differentiates faster."""
    return jnp.where(actions[:, None] == jnp.arange(values.shape[-1]), values, 0.0).sum(-1)


def _described(space: Any) -> str:
    return {"Box": "continuous actions", "MultiDiscrete": "several discrete actions at once"}[type(space).__name__]
