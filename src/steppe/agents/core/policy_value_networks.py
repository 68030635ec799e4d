"""A policy network and a value network: acting, and estimates for whole trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import (
    ActorParams,
    Agent,
    AgentContext,
    Internals,
    TrainState,
    Trajectory,
    fresh_state,
    host_generator,
    normalizer_tensors,
)
from steppe.agents.core.distributions import distribution_for
from steppe.agents.core.kernels import map_chunks
from steppe.agents.core.layout import Layout
from steppe.errors import UserError
from steppe.networks import Network, apply_head, head
from steppe.specs.spaces import Box

if TYPE_CHECKING:
    from steppe.agents.core.actor_critic import ActorCriticSettings
    from steppe.agents.core.loss_optimizer import Terms

VALUE = "value/"
"""The prefix of the names of the value network's recurrent states."""
MULTIPLE = 32
"""The length of rollouts of episodes is a multiple of this, so that minibatches divide it."""

S = TypeVar("S", bound="ActorCriticSettings")


class PolicyBatch(NamedTuple):
    """The samples of the losses: leaves [B, ...], or whole sequences [B, T, ...] for recurrent networks."""

    observations: Any
    """Raw observations, or those of `Network.prepared`."""
    actions: Array
    outputs: Array
    """The network's outputs when it acted."""
    log_probs: Array
    """Log-probabilities of the actions under the policy that took them."""
    advantages: Array
    returns: Array
    """The targets of the values: advantages + values."""
    internals: Any
    """The actor's memory before the first action of a sequence [B, ...]; {} for other networks."""
    is_first: Any
    """Whether a timestep begins an episode [B, T]; () for other networks."""
    weights: Any = ()
    """How much each sample counts, 1 on average; () if all count alike."""


class PolicyAndValue(Agent[S], Generic[S]):
    """An agent with a policy and a value function that learns from trajectories."""

    experience: ClassVar[Literal["trajectories", "transitions", "none"]] = "trajectories"

    def __init__(self, settings: S, context: AgentContext) -> None:
        super().__init__(settings, context)
        self.horizon = horizon_of(settings, context)
        self.rollout_episodes = settings.rollout_episodes
        self.distribution = distribution_for(context.action, self.type, settings.distribution)
        self.kind = self.distribution.kind
        if self.kind != "gaussian" and "initial_log_std" in settings.model_fields_set:
            raise UserError(f"initial_log_std is for Gaussian actions, but these are {self.kind}; leave it out")
        self.layers = context.network or self.default_network(context.observation)
        self.network = Network(self.layers, context.observation, supports=("recurrent", "regularization"))
        self.learns_values = settings.learns_values
        self.shares_network = self._shares_network()
        has_own = settings.baseline is not None and self.learns_values
        own = settings.baseline.layers() if has_own and settings.baseline is not None else self.layers
        self.value_network = Network(own, context.observation, supports=("recurrent", "regularization"))
        self.layout = Layout(self._draw_params(None))
        # A falling learning rate needs a known end.
        _ = self.slots
        if self.rollout_episodes is not None and self.is_recurrent:
            self.horizon = horizon_of_sequences(self.rollout_episodes, self.horizon, context)
        if settings.normalize_advantages and self.horizon * context.num_envs == self.minibatches_per_epoch:
            raise UserError(
                "a single advantage minus its own mean is zero, so nothing would be learned from it; raise "
                "agent.horizon or num_envs, or set agent.normalize_advantages to false"
            )

    def init(self, key: Array) -> TrainState:
        """The initial state: orthogonal weights, with a small last layer, so that the first policy is nearly
        uniform."""
        params = self.layout.join(self._draw_params(host_generator(key)))
        return fresh_state(self, params, params[:0], key)

    @property
    def perturbs_parameters(self) -> bool:
        """Whether variable_noise is set."""
        return self.settings.variable_noise > 0

    def actor_params(self, state: TrainState) -> ActorParams:
        """The parameters, with the noise of variable_noise."""
        params = state.params
        if self.settings.variable_noise:
            key = jax.random.fold_in(state.key, state.updates)
            params = params + self.settings.variable_noise * jax.random.normal(key, params.shape)
        return ActorParams(params, state.observations)

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """The initial states of the networks' recurrent layers."""
        states = dict(self.network.initial_state(lead))
        if not self.shares_network:
            states |= {VALUE + name: state for name, state in self.value_network.initial_state(lead).items()}
        return states

    @property
    def acts_in_numpy(self) -> bool:
        """False if the value network is recurrent, since its state is not in the exported policy."""
        return self.shares_network or not self.value_network.is_recurrent

    @property
    def values_while_acting(self) -> bool:
        """True if policy and value share layers: computing those of images again would cost a tenth."""
        return self.learns_values and self.shares_network and not self.perturbs_parameters

    def act_and_value(
        self, actor_params: ActorParams, observations: Array, noise: Array | None, timestep: Array, internals: Internals
    ) -> tuple[Array, Array, Internals, Array]:
        """The results of `act`, and the values [N] of the observations."""
        params = self.layout.split(actor_params.params)
        normalized = self.normalized(actor_params.observations, observations)
        # The compiler merges this forward pass with that of `act`.
        values = self._values(params, normalized, internals)
        return *self.act(actor_params, observations, noise, timestep, internals), values

    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """The logits, means or concentrations of the distribution."""
        params = self.layout.split(actor_params.params)
        policy = params["policy"]
        observations = self.normalized(actor_params.observations, observations)
        features, after = self.network.advance(policy["torso"], observations, internals)
        if not self.acts_in_numpy:
            _, own = self.value_network.advance(params["value"]["torso"], observations, _of_value(internals))
            after = after | {VALUE + name: state for name, state in own.items()}
        return apply_head(policy["head"], features), after

    @property
    def is_recurrent(self) -> bool:
        """Whether one of the networks is recurrent."""
        return self.network.is_recurrent or self.value_network.is_recurrent

    def log_std(self, actor_params: ActorParams) -> Any:
        """The parameter `log_std` of Gaussian actions."""
        return self.layout.split(actor_params.params)["policy"]["head"].get("log_std", 0.0)

    @property
    def minibatches_per_epoch(self) -> int:
        """The number of batches of each trajectory."""
        return 1

    def behaviour_log_probs(self, state: TrainState, trajectory: Trajectory) -> Array:
        """Log-probabilities [T, N] of the actions under the policy that took them."""
        log_std = self.layout.split(self.actor_params(state).params)["policy"]["head"].get("log_std")
        if not isinstance(trajectory.log_std, tuple):
            log_std = trajectory.log_std
        return self.distribution.log_prob(trajectory.outputs, log_std, trajectory.actions)

    def current_log_probs(self, state: TrainState, trajectory: Trajectory) -> Array:
        """Log-probabilities [T, N] of the actions under the current policy."""
        lead = trajectory.rewards.shape

        def outputs(rows: tuple[Array, Internals]) -> Array:
            return self.outputs(ActorParams(state.params, state.observations), *rows)[0]

        observed = (trajectory.observations, trajectory.internals)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observed)
        current = map_chunks(outputs, flat).reshape(*lead, -1)
        log_std = self.layout.split(state.params)["policy"]["head"].get("log_std")
        return self.distribution.log_prob(current, log_std, trajectory.actions)

    def batch_of(self, trajectory: Trajectory, log_probs: Array, advantages: Array, returns: Array) -> PolicyBatch:
        """All timesteps as samples, or all environments as sequences."""
        ended = trajectory.terminated | trajectory.truncated
        is_first = jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])
        leaves = (trajectory.observations, trajectory.actions, trajectory.outputs, log_probs, advantages, returns)
        weights = trajectory.weights
        if self.is_recurrent:
            internals = jax.tree.map(lambda leaf: leaf[0], trajectory.internals)
            sequences = [jnp.swapaxes(leaf, 0, 1) for leaf in leaves]
            weights = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), weights)
            return PolicyBatch._make([*sequences, internals, jnp.swapaxes(is_first, 0, 1), weights])
        observations, *flat = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves]
        if self.shares_network or self.layers == self.value_network.layers:
            # All epochs read the same images.
            observations = self.network.prepared(observations)
        return PolicyBatch._make([observations, *flat, {}, (), jax.tree.map(jnp.ravel, weights)])

    def trajectory_values(self, state: TrainState, trajectory: Trajectory) -> tuple[Array, Array]:
        """Values [T, N] of the observations and of their true successors; zeros if none are learned."""
        if not self.learns_values:
            return jnp.zeros_like(trajectory.rewards), jnp.zeros_like(trajectory.rewards)
        params = self.layout.split(state.params)

        def values_of(observations: Array, internals: Internals) -> Array:
            def values(rows: tuple[Array, Internals]) -> Array:
                return self._values(params, self.normalized(state.observations, rows[0]), rows[1])

            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (observations, internals))
            return map_chunks(values, flat).reshape(observations.shape[:2])

        values = trajectory.values
        if isinstance(values, tuple):
            values = values_of(trajectory.observations, trajectory.internals)
        last = jax.tree.map(lambda leaf: leaf[-1:], (trajectory.next_observations, trajectory.next_internals))
        # A successor is the next row's observation, except at the end of an episode. A terminated episode has no
        # future; only truncated ones need the value of their last observation, and most trajectories have none.
        next_values = jax.lax.cond(
            jnp.any(trajectory.truncated),
            lambda: values_of(trajectory.next_observations, trajectory.next_internals),
            lambda: jnp.concatenate([values[1:], values_of(*last)]),
        )
        return values, next_values.reshape(values.shape)

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors of the policy network and its normaliser, without the value network."""
        named = self.layout.named(np.array(state.params))
        tensors = {name.removeprefix("policy/"): t for name, t in named.items() if name.startswith("policy/")}
        return tensors | normalizer_tensors(self, state)

    def _shares_network(self) -> bool:
        settings, observation = self.settings, self.context.observation
        if not self.learns_values:
            return True  # no separate value network
        if settings.share_network is None:
            is_image = isinstance(observation, Box) and observation.is_image
            return is_image and settings.baseline is None and settings.baseline_optimizer is None
        return settings.share_network

    def _draw_params(self, rng: np.random.Generator | None) -> dict[str, Any]:
        features, outputs = self.network.features, self.distribution.outputs
        policy: dict[str, Any] = {"torso": self.network.init(rng), "head": head(rng, features, outputs, scale=0.01)}
        if self.kind == "gaussian":
            policy["head"]["log_std"] = np.full(outputs, self.settings.initial_log_std, np.float32)
        if not self.learns_values:
            return {"policy": policy}
        if self.shares_network:
            return {"policy": policy, "value": {"head": head(rng, features, 1, scale=1.0)}}
        value_head = head(rng, self.value_network.features, 1, scale=1.0)
        return {"policy": policy, "value": {"head": value_head, "torso": self.value_network.init(rng)}}

    def _values(self, params: dict[str, Any], observations: Array, internals: Internals) -> Array:
        if self.shares_network:
            features, _ = self.network.advance(params["policy"]["torso"], observations, internals)
        else:
            features, _ = self.value_network.advance(params["value"]["torso"], observations, _of_value(internals))
        return apply_head(params["value"]["head"], features)[..., 0]

    def outputs_and_values(
        self, params: dict[str, Any], observations: Array, batch: PolicyBatch, dropout_key: Array | None, terms: Terms
    ) -> tuple[Array, Array]:
        """Outputs [B, ...] and values [B], each only if the loss terms need it."""
        outputs = values = features = jnp.zeros(())
        if terms != "value" or self.shares_network:
            torso = params["policy"]["torso"]
            features = self._features(self.network, torso, observations, batch, batch.internals, dropout_key)
        if terms != "value":
            outputs = apply_head(params["policy"]["head"], features)
        if terms != "policy":
            if not self.shares_network:
                torso, internals = params["value"]["torso"], _of_value(batch.internals)
                features = self._features(self.value_network, torso, observations, batch, internals, dropout_key)
            values = apply_head(params["value"]["head"], features)[..., 0]
        return outputs, values

    def _features(
        self,
        network: Network,
        torso: Any,
        observations: Array,
        batch: PolicyBatch,
        internals: Internals,
        key: Array | None,
    ) -> Array:
        """[B, ...] -> [B, F], or sequences [B, T, ...] -> [B, T, F]."""
        if not network.is_recurrent:
            return network.apply(torso, observations, key)
        by_time = (jnp.swapaxes(leaf, 0, 1) for leaf in (observations, batch.is_first))
        sequences, is_first = by_time
        features, _ = network.unroll(torso, sequences, internals, is_first, key)
        return jnp.swapaxes(features, 0, 1)


def _of_value(internals: Internals) -> Internals:
    return {name.removeprefix(VALUE): state for name, state in internals.items() if name.startswith(VALUE)}


def horizon_of(settings: ActorCriticSettings, context: AgentContext) -> int:
    """The most timesteps of each environment in a rollout: as set, or enough for the requested episodes."""
    envs, episodes = context.num_envs, settings.rollout_episodes
    if episodes is None or settings.rollout_timesteps is not None:
        horizon = settings.horizon_for(envs)
        return horizon if episodes is None else _rounded(horizon)
    if context.episode_limit is None:
        raise UserError(
            "rollout_episodes (update_mode in episodes) needs to know how long an episode can be; set "
            "max_timesteps_per_episode, or give rollout_timesteps (memory.capacity), the most to learn from at once"
        )
    return _rounded(-(-episodes // envs) * context.episode_limit)


def horizon_of_sequences(episodes: int, horizon: int, context: AgentContext) -> int:
    """The horizon of recurrent networks if rollouts are counted in episodes: enough for that many whole episodes.

    A repeated rollout begins with an empty recurrent state, so it must begin with an episode. The memory capacity in a
    file for TensorForce may be smaller; it is raised.
    """
    if context.num_envs > 1:
        raise UserError(
            f"a recurrent network learns from whole sequences, and {context.num_envs} environments do not end "
            "their episodes together; with rollout_episodes (update_mode in episodes) set num_envs to 1"
        )
    if context.episode_limit is not None and context.is_for_tensorforce:
        return max(horizon, _rounded(episodes * context.episode_limit))
    if context.episode_limit is None or horizon < episodes * context.episode_limit:
        raise UserError(
            f"a recurrent network learns from whole sequences, and {horizon} timesteps at once may be too few for "
            f"{episodes} episodes; raise rollout_timesteps (memory.capacity) or leave it out, or lower "
            "max_timesteps_per_episode"
        )
    return horizon


def _rounded(timesteps: int) -> int:
    return -(-timesteps // MULTIPLE) * MULTIPLE
