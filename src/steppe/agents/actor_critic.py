"""What policy-gradient agents share: a policy network, a value network, acting, and advantages from trajectories."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from steppe.agents import normalizers
from steppe.agents._base import (
    Acting,
    Agent,
    Metrics,
    Situation,
    TrainState,
    Trajectory,
    fresh_state,
    host_generator,
    normalizer_tensors,
)
from steppe.agents.advantages import generalized_advantages
from steppe.agents.chunks import map_chunks, mean_over_chunks
from steppe.agents.distributions import distribution_for
from steppe.agents.layout import Layout
from steppe.agents.optimizers import Decay, OptimizerName, make_optimizer
from steppe.networks import Network, apply_head, default_layers, head
from steppe.records import heads
from steppe.specs._base import Count, NonNegative, Positive, Settings, Unit
from steppe.specs.spaces import Box


class ActorCriticSettings(Settings):
    """What every policy-gradient agent can be told."""

    discount: Unit = 0.99
    """How much the future counts: a reward k timesteps away weighs discount ** k."""
    gae_lambda: Unit = 0.95
    """How far advantages look ahead: 0 is one step, 1 is the whole episode."""
    horizon: Count = 128
    """How many timesteps each environment takes between two updates."""
    learning_rate: Positive = 3e-4
    """The optimiser's step size."""
    learning_rate_decay: Decay = "none"
    """"linear" lets the learning rate fall to zero at total_timesteps."""
    optimizer: OptimizerName = "adam"
    """How gradients become steps."""
    max_gradient_norm: Positive | None = 0.5
    """Longer gradients are shortened to this length; null leaves them as they are."""
    value_coefficient: NonNegative = 0.5
    """The weight of the value error in the loss."""
    entropy_coefficient: NonNegative = 0.0
    """The weight of the entropy bonus that keeps the policy exploring."""
    normalize_advantages: bool = True
    """Whether advantages are shifted and scaled to mean 0 and variance 1 in each minibatch."""
    share_network: bool | None = None
    """Whether policy and value share all layers but the last; null: only for images."""
    initial_log_std: float = 0.0
    """The logarithm of the first spread of continuous actions."""


S = TypeVar("S", bound=ActorCriticSettings)


class Batch(NamedTuple):
    """What the losses take; leaves are [B, ...]."""

    observations: Array
    actions: Array
    log_probs: Array
    """Of the actions, under the policy that took them."""
    advantages: Array
    returns: Array
    """What the values should have been: advantages + values."""


class ActorCritic(Agent[S], Generic[S]):
    """A policy and a value function that learn from trajectories."""

    experience: ClassVar[Literal["trajectories", "transitions", "none"]] = "trajectories"

    def __init__(self, settings: S, situation: Situation) -> None:
        super().__init__(settings, situation)
        self.horizon = settings.horizon
        self.distribution = distribution_for(situation.action, self.type)
        self.noise_size = self.distribution.noise_size
        self.layers = situation.network or default_layers(situation.observation)
        self.network = Network(self.layers, situation.observation)
        is_image = isinstance(situation.observation, Box) and situation.observation.is_image
        self.shares_network = is_image if settings.share_network is None else settings.share_network
        self.layout = Layout(self._draw_params(None))
        self.optimizer = make_optimizer(
            settings.optimizer,
            settings.learning_rate,
            settings.max_gradient_norm,
            settings.learning_rate_decay,
            self._total_updates(),
        )

    def init(self, key: Array) -> TrainState:
        """Orthogonal weights; a small last layer makes the first policy nearly uniform."""
        params = self.layout.join(self._draw_params(host_generator(key)))
        return fresh_state(self, params, params[:0], jax.jit(self.optimizer.init)(params), key)

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """What the distribution adds to the outputs to draw an action."""
        return self.distribution.draw_noise(key, shape)

    def act(self, acting: Acting, observations: Array, noise: Array | None, timestep: Array) -> tuple[Array, Array]:
        """Draws an action from the policy, or takes its most likely one."""
        params = self.layout.split(acting.params)
        outputs = self._outputs(params, self._normalized(acting.observations, observations))
        kind, space = self.distribution.kind, self.situation.action
        if noise is None:
            return heads.greedy(kind, outputs, space, xp=jnp), outputs
        log_std = params["policy"]["head"].get("log_std")
        return heads.sample(kind, outputs, noise, space, xp=jnp, log_std=log_std), outputs

    def to_environment(self, actions: Array) -> Array:
        """Clipped to the bounds, in the environment's shape."""
        return heads.postprocess(actions, self.situation.action, xp=jnp)

    def gradients(self, state: TrainState, batch: Batch) -> tuple[Array, Metrics]:
        """The gradient of the agent's loss over a batch [B, ...], averaged over devices."""
        if self.settings.normalize_advantages:
            batch = batch._replace(advantages=self._standardized(batch.advantages))

        def loss(vector: Array, batch: Batch, index: Array) -> tuple[Array, Metrics]:
            params = self.layout.split(vector)
            key = None
            if self.network.has_dropout:
                key = jax.random.fold_in(jax.random.fold_in(state.key, state.updates), index)
            observations = self._normalized(state.observations, batch.observations)
            outputs, values = self._outputs_and_values(params, observations, key)
            log_std = params["policy"]["head"].get("log_std")
            log_probs = self.distribution.log_prob(outputs, log_std, batch.actions)
            policy_loss, metrics = self.policy_loss(log_probs, batch.log_probs, batch.advantages)
            value_loss = jnp.mean((values - batch.returns) ** 2)
            entropy = self.distribution.entropy(outputs, log_std).mean()
            settings = self.settings
            total = policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy
            metrics |= {"loss": total, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            return total, metrics

        gradient = jax.grad(loss, has_aux=True)
        gradients, metrics = mean_over_chunks(lambda chunk, index: gradient(state.params, chunk, index), batch)
        if self.axis is not None:
            gradients = jax.lax.pmean(gradients, self.axis)
        return gradients, metrics

    def policy_loss(self, log_probs: Array, old_log_probs: Array, advantages: Array) -> tuple[Array, Metrics]:
        """[B] each -> the scalar to minimise, and metrics: what tells one policy-gradient agent from another."""
        raise NotImplementedError

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """One optimiser step on the vector."""
        steps, optimizer = self.optimizer.update(gradients, state.optimizer, state.params)
        return state._replace(
            params=optax.apply_updates(state.params, steps), optimizer=optimizer, updates=state.updates + 1
        )

    def prepare(self, state: TrainState, trajectory: Trajectory) -> Batch:
        """[T, N, ...] -> advantages and value targets, flattened to [T * N, ...]."""
        settings = self.settings
        params = self.layout.split(state.params)
        values, next_values = self._trajectory_values(state, params, trajectory)
        log_std = params["policy"]["head"].get("log_std")
        rewards = trajectory.rewards
        if self.situation.normalize_rewards:
            rewards = normalizers.scale(state.returns, rewards)
        advantages = generalized_advantages(
            rewards,
            values,
            next_values,
            trajectory.terminated.astype(jnp.float32),
            trajectory.truncated.astype(jnp.float32),
            settings.discount,
            settings.gae_lambda,
        )
        log_probs = self.distribution.log_prob(trajectory.outputs, log_std, trajectory.actions)
        batch = Batch(trajectory.observations, trajectory.actions, log_probs, advantages, advantages + values)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)

    def note_rewards(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """Before an update: the spread of the returns, so that the very first rewards are scaled already."""
        if not self.situation.normalize_rewards:
            return state
        return state._replace(returns=normalizers.merge(state.returns, trajectory.running_returns, self.axis))

    def note_observations(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """After an update: the policy that acted must be the one whose probabilities are compared."""
        if not self.normalizes_observations:
            return state
        return state._replace(observations=normalizers.merge(state.observations, trajectory.observations, self.axis))

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The policy network with its normaliser; the value network stays behind."""
        named = self.layout.named(np.array(state.params))
        tensors = {name.removeprefix("policy/"): t for name, t in named.items() if name.startswith("policy/")}
        return tensors | normalizer_tensors(self, state)

    def policy_head(self) -> dict[str, Any]:
        """As the distribution has it."""
        return {"kind": self.distribution.kind}

    def _draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        features, outputs = self.network.features, self.distribution.outputs
        policy: dict[str, Any] = {"torso": self.network.init(rng), "head": head(rng, features, outputs, scale=0.01)}
        if isinstance(self.situation.action, Box):
            policy["head"]["log_std"] = np.full(outputs, self.settings.initial_log_std, np.float32)
        value: dict[str, Any] = {"head": head(rng, features, 1, scale=1.0)}
        if not self.shares_network:
            value["torso"] = self.network.init(rng)
        return {"policy": policy, "value": value}

    def _outputs(self, params: dict[str, Any], observations: Array) -> Array:
        policy = params["policy"]
        return apply_head(policy["head"], self.network.apply(policy["torso"], observations))

    def _values(self, params: dict[str, Any], observations: Array) -> Array:
        torso = params["policy" if self.shares_network else "value"]["torso"]
        return apply_head(params["value"]["head"], self.network.apply(torso, observations))[..., 0]

    def _trajectory_values(
        self, state: TrainState, params: dict[str, Any], trajectory: Trajectory
    ) -> tuple[Array, Array]:
        """Values [T, N] of the observations and of their true successors."""
        lead = trajectory.rewards.shape

        def values_of(observations: Array) -> Array:
            def values(rows: Array) -> Array:
                return self._values(params, self._normalized(state.observations, rows))

            flat = observations.reshape(-1, *observations.shape[2:])
            return map_chunks(values, flat).reshape(observations.shape[:2])

        values = values_of(trajectory.observations)
        last = values_of(trajectory.next_observations[-1:])
        # A successor is the next row's observation, except where an episode ended. A terminated one has no future; only
        # a truncated one needs a look at what would have come, and most trajectories have none.
        next_values = jax.lax.cond(
            jnp.any(trajectory.truncated),
            lambda: values_of(trajectory.next_observations),
            lambda: jnp.concatenate([values[1:], last]),
        )
        return values, next_values.reshape(lead)

    def _outputs_and_values(
        self, params: dict[str, Any], observations: Array, dropout_key: Array | None
    ) -> tuple[Array, Array]:
        features = self.network.apply(params["policy"]["torso"], observations, dropout_key)
        outputs = apply_head(params["policy"]["head"], features)
        if not self.shares_network:
            features = self.network.apply(params["value"]["torso"], observations, dropout_key)
        return outputs, apply_head(params["value"]["head"], features)[..., 0]

    def _normalized(self, statistics: normalizers.Statistics, observations: Array) -> Array:
        return normalizers.normalize(statistics, observations) if self.normalizes_observations else observations

    def _standardized(self, advantages: Array) -> Array:
        centred = advantages - self._mean(advantages)
        return centred / (jnp.sqrt(self._mean(centred**2)) + 1e-8)

    def _mean(self, values: Array) -> Array:
        """Over all values, on all devices."""
        mean = values.mean()
        return mean if self.axis is None else jax.lax.pmean(mean, self.axis)

    def _total_updates(self) -> int | None:
        total = self.situation.total_timesteps
        if total is None:
            return None
        experiences = -(-total // (self.horizon * self.situation.num_envs))
        return experiences * self.updates_per_experience
