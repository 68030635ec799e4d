"""Parallelised Q-learning without replay or target network (Gallici et al. 2024, arXiv:2407.04811)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import model_validator

from steppe.agents._base import (
    ActorParams,
    Agent,
    AgentContext,
    Internals,
    Metrics,
    TrainState,
    Trajectory,
    fresh_state,
    host_generator,
    normalizer_tensors,
)
from steppe.agents.core import normalizers
from steppe.agents.core.advantages import lambda_returns
from steppe.agents.core.layout import Layout
from steppe.agents.core.loss_optimizer import LossOptimizer, Terms, slot_of
from steppe.agents.core.optimizers import OptimizerSettings, innermost
from steppe.agents.core.q_network import QNetwork, anneals_to_default
from steppe.agents.dqn import discrete_choices, torso_of
from steppe.agents.ppo import shuffled
from steppe.errors import SpecError
from steppe.networks import Network, default_layers
from steppe.specs._base import Count, Flag, Positive, Unit
from steppe.specs.learning.exploration import EpsilonAnneal, RandomActions
from steppe.specs.learning.network import Dense, LayerNorm, NetworkSpec, Nonlinearity
from steppe.specs.learning.optimizer import NaturalGradient
from steppe.specs.spaces import Box, Space


class PQNSettings(OptimizerSettings):
    """Settings of `pqn`."""

    discount: Unit = 0.99
    """How much the future counts: a reward k timesteps away weighs discount ** k."""
    trace_lambda: Unit = 0.65
    """How far targets look ahead: 0 is one step, 1 is the whole trajectory."""
    horizon: Count = 32
    """How many timesteps each environment takes between two updates."""
    epochs: Count = 4
    """The number of passes over each trajectory."""
    minibatches: Count = 8
    """The number of minibatches of each trajectory."""
    learning_rate: Positive = 2.5e-4
    """The optimiser's step size; may also be written inside `optimizer`."""
    max_gradient_norm: Positive | None = 10.0
    """Longer gradients are shortened to this length; null leaves them as they are."""
    dueling: Flag = False
    """Whether the value of a state and the advantages of its actions are learned separately and added."""
    exploration: RandomActions = EpsilonAnneal(final_epsilon=0.02, timesteps=100_000)
    """The share of random actions over time; also spelled actions_exploration."""

    def horizon_for(self, num_envs: int) -> int:
        """The agent's setting."""
        return self.horizon

    @property
    def minibatch_count(self) -> int:
        """The agent's setting."""
        return self.minibatches

    def minibatch_size(self, timesteps: int) -> int:
        """The size of a minibatch of a trajectory of `timesteps`."""
        return timesteps // self.minibatches

    @model_validator(mode="after")
    def _follows_gradients(self) -> PQNSettings:
        kind = innermost(self.optimizer)
        if isinstance(kind, NaturalGradient):
            raise ValueError("natural_gradient measures steps of a policy's probabilities, which this agent has not")
        return self


class ValueBatch(NamedTuple):
    """A batch of the loss; leaves [B, ...]."""

    observations: Any
    """Raw observations, or those of `Network.prepared`."""
    actions: Array
    targets: Array
    """The lambda-returns of the actions [B, choices]."""


class PQN(Agent[PQNSettings]):
    """Q(lambda) over trajectories of many environments; layer normalisation keeps it from diverging."""

    type = "pqn"
    kind = "q_values"
    Settings: ClassVar = PQNSettings
    experience: ClassVar[Literal["trajectories", "transitions", "none"]] = "trajectories"
    default_num_envs = 32
    cuts_batches = True

    def loss_terms(
        self, params: Array, state: TrainState, batch: ValueBatch, terms: Terms, index: Any
    ) -> tuple[Array, Metrics]:
        """The mean squared error of the chosen actions' values."""
        observations = self.normalized(state.observations, batch.observations)
        key = None
        if self.q.network.has_dropout:
            key = jax.random.fold_in(jax.random.fold_in(state.key, state.updates), index)
        values = self.q.values(self.layout.split(params), observations, key)
        errors = self.q.chosen(values, batch.actions)[..., 0] - batch.targets
        loss = 0.5 * jnp.mean(errors**2) + self.q.network.penalty(self.layout.split(params)["torso"])
        return loss, {"loss": loss, "td_error": jnp.abs(errors).mean()}

    def prepare(self, state: TrainState, trajectory: Trajectory) -> ValueBatch:
        """[T, N, ...] -> lambda-returns, flattened to [T * N, ...]."""
        rewards = trajectory.rewards
        if self.context.normalize_rewards:
            rewards = normalizers.scale(state.returns, rewards)
        next_values = self._next_values(state, trajectory)
        targets = lambda_returns(
            rewards[..., None],
            next_values,
            trajectory.terminated[..., None].astype(jnp.float32),
            trajectory.truncated[..., None].astype(jnp.float32),
            self.settings.discount,
            self.settings.trace_lambda,
        )
        leaves = (trajectory.observations, trajectory.actions, targets)
        observations, *flat = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves)
        # All epochs read the same images.
        return ValueBatch(self.q.network.prepared(observations), *flat)

    def _next_values(self, state: TrainState, trajectory: Trajectory) -> Array:
        """The best value of each choice in the true successors, [T, N, choices]."""

        def best(values: Array) -> Array:
            return jnp.stack([each[..., 0].max(-1) for each in self.q.split(values[..., None])], -1)

        def values_of(observations: Array) -> Array:
            flat = observations.reshape(-1, *observations.shape[2:])
            outputs, _ = self.outputs(self.actor_params(state), flat, {})
            return best(outputs).reshape(*observations.shape[:2], -1)

        last = values_of(trajectory.next_observations[-1:])
        # Acting has computed these values already, except those of the true successors of truncated episodes.
        return jax.lax.cond(
            jnp.any(trajectory.truncated),
            lambda: values_of(trajectory.next_observations),
            lambda: jnp.concatenate([best(trajectory.outputs)[1:], last]),
        )

    @classmethod
    def default_network(cls, observation: Space) -> NetworkSpec:
        """Dense layers, each followed by a layer normalisation."""
        if isinstance(observation, Box) and observation.is_image:
            return NetworkSpec([*default_layers(observation).root, LayerNorm(type="layer_norm")])
        dense = [Dense(type="dense", size=128, activation="none"), LayerNorm(type="layer_norm")]
        return NetworkSpec([*dense, Nonlinearity(type="nonlinearity"), *dense, Nonlinearity(type="nonlinearity")])

    def __init__(self, settings: PQNSettings, context: AgentContext) -> None:
        super().__init__(settings, context)
        self.horizon = settings.horizon
        samples = settings.horizon * (context.num_envs // context.shards)
        if samples % settings.minibatches:
            raise SpecError(
                f"horizon x num_envs = {samples} timesteps cannot be cut into {settings.minibatches} equal "
                f"minibatches; change agent.horizon, agent.minibatches or num_envs"
            )
        action = discrete_choices(context, self.type)
        layers = context.network or self.default_network(context.observation)
        self.layers, is_dueling = torso_of(layers, action, self.type)
        network = Network(self.layers, context.observation, supports={"regularization"})
        self.dueling = settings.dueling or is_dueling
        if is_dueling and "dueling" in settings.model_fields_set and not settings.dueling:
            raise SpecError("agent.dueling is false, but the network ends in a dueling layer; remove one of the two")
        self.q = QNetwork(network, action, self.dueling, quantiles=1, noisy=False)
        self.layout = Layout(self.q.draw_params(None))
        # A falling learning rate needs a known end.
        _ = self.slots

    def init(self, key: Array) -> TrainState:
        """The initial state, without a target network."""
        params = self.layout.join(self.q.draw_params(host_generator(key)))
        return fresh_state(self, params, params[:0], key)

    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """The value of each action."""
        observations = self.normalized(actor_params.observations, observations)
        return self.q.values(self.layout.split(actor_params.params), observations)[..., 0], internals

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """A share of random actions."""
        return {"epsilon": self.settings.exploration.epsilon(timestep, xp)}

    def minibatches(self, key: Array, samples: int) -> Array:
        """Which samples each step learns from: indices [steps, size]."""
        order = shuffled(key, self.settings.epochs, samples)
        return order.reshape(self.settings.epochs * self.settings.minibatches, -1)

    @property
    def batches_per_rollout(self) -> int:
        """One batch for each minibatch of each epoch."""
        return self.settings.epochs * self.settings.minibatches

    @property
    def discount(self) -> float:
        """The agent's setting."""
        return self.settings.discount

    @property
    def optimizers(self) -> tuple[LossOptimizer, ...]:
        """One optimiser for all parameters."""
        spec = self.settings.optimizer
        return (LossOptimizer(self, spec, (slot_of(self, spec, self.settings.learning_rate),)),)

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors of the network and its normaliser."""
        return self.layout.named(np.array(state.params)) | normalizer_tensors(self, state)

    @property
    def has_default_final_epsilon(self) -> bool:
        """Whether the final epsilon is the agent's default."""
        return anneals_to_default(self.settings)

    def policy_head(self) -> dict[str, Any]:
        """Takes the action of the highest value; sampling keeps the final exploration."""
        final = float(self.settings.exploration.epsilon(2**31, np))
        return {"kind": self.kind, "dueling": self.dueling, "epsilon": final}
