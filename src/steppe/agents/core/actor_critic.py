"""What policy-gradient agents share: a policy network, a value network, acting, and advantages from trajectories."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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
from steppe.agents.core.actor_critic_settings import ActorCriticSettings
from steppe.agents.core.advantages import generalized_advantages
from steppe.agents.core.chunks import map_chunks
from steppe.agents.core.distributions import distribution_for
from steppe.agents.core.layout import Layout
from steppe.agents.core.optimizers import step, steps_of
from steppe.agents.core.part_of_loss import PartOfLoss
from steppe.agents.core.rollouts import horizon_of, horizon_of_sequences
from steppe.errors import UserError
from steppe.networks import Network, apply_head, head
from steppe.specs.spaces import Box

VALUE = "value/"
"""Before the names of what the value network remembers."""
Part = Literal["all", "policy", "value"]
"""Which terms of the loss an optimiser follows."""


S = TypeVar("S", bound=ActorCriticSettings)


class Batch(NamedTuple):
    """What the losses take; leaves are [B, ...], and for recurrent networks [B, T, ...]: whole sequences."""

    observations: Any
    """Raw, or as `Network.prepared` makes them."""
    actions: Array
    outputs: Array
    """What the network put out when acting."""
    log_probs: Array
    """Of the actions, under the policy that took them."""
    advantages: Array
    returns: Array
    """What the values should have been: advantages + values."""
    internals: Any
    """What the actor remembered before the first action of a sequence [B, ...]; {} for other networks."""
    is_first: Any
    """Where a sequence enters a new episode [B, T]; () for other networks."""
    weights: Any = ()
    """How much each sample counts, 1 on average; () where all count alike."""


class ActorCritic(Agent[S], Generic[S]):
    """A policy and a value function that learn from trajectories."""

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
        # Without values the rewards to come are all there is to go by.
        self.gae_lambda = settings.gae_lambda if self.learns_values else 1.0
        has_own = settings.baseline is not None and self.learns_values
        own = settings.baseline.layers() if has_own and settings.baseline is not None else self.layers
        self.value_network = Network(own, context.observation, supports=("recurrent", "regularization"))
        self.layout = Layout(self._draw_params(None))
        self.parts = [PartOfLoss(self, part) for part in self._optimizers()]
        for part in self.parts:
            part.check()
        if self.rollout_episodes is not None and self.is_recurrent:
            self.horizon = horizon_of_sequences(self.rollout_episodes, self.horizon, context)
        if settings.normalize_advantages and self.horizon * context.num_envs == self.batches_of_experience:
            raise UserError(
                "a single advantage minus its own mean is zero, so nothing would be learned from it; raise "
                "agent.horizon or num_envs, or set agent.normalize_advantages to false"
            )

    def init(self, key: Array) -> TrainState:
        """Orthogonal weights; a small last layer makes the first policy nearly uniform."""
        params = self.layout.join(self._draw_params(host_generator(key)))
        return fresh_state(self, params, params[:0], [jax.jit(part.transform.init)(params) for part in self.parts], key)

    @property
    def perturbs_parameters(self) -> bool:
        """By variable_noise."""
        return self.settings.variable_noise > 0

    def actor_params(self, state: TrainState) -> ActorParams:
        """The parameters, with noise added where it was asked for."""
        params = state.params
        if self.settings.variable_noise:
            key = jax.random.fold_in(state.key, state.updates)
            params = params + self.settings.variable_noise * jax.random.normal(key, params.shape)
        return ActorParams(params, state.observations)

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """What the networks' recurrent layers start with."""
        states = dict(self.network.initial_state(lead))
        if not self.shares_network:
            states |= {VALUE + name: state for name, state in self.value_network.initial_state(lead).items()}
        return states

    @property
    def acts_in_numpy(self) -> bool:
        """Not where the value network has a memory of its own, which a policy leaves out."""
        return self.shares_network or not self.value_network.is_recurrent

    @property
    def values_while_acting(self) -> bool:
        """Whether the layers that act lead to values too: computing those of images again would cost a tenth."""
        return self.learns_values and self.shares_network and not self.perturbs_parameters

    def act_and_value(
        self, actor_params: ActorParams, observations: Array, noise: Array | None, timestep: Array, internals: Internals
    ) -> tuple[Array, Array, Internals, Array]:
        """What `act` gives, and the values [N] of the observations."""
        params = self.layout.split(actor_params.params)
        normalized = self.normalized(actor_params.observations, observations)
        # The same forward pass as that of `act`, and compiled into one.
        values = self._values(params, normalized, internals)
        return *self.act(actor_params, observations, noise, timestep, internals), values

    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """Logits or means."""
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
        """Whether it learns from sequences instead of single timesteps."""
        return self.network.is_recurrent or self.value_network.is_recurrent

    def log_std(self, actor_params: ActorParams) -> Any:
        """A parameter of its own for Gaussian actions."""
        return self.layout.split(actor_params.params)["policy"]["head"].get("log_std", 0.0)

    def policy_loss(self, log_probs: Array, old_log_probs: Array, advantages: Array) -> tuple[Array, Metrics]:
        """[B] each -> the scalar to minimise, and metrics: what tells one policy-gradient agent from another."""
        raise NotImplementedError

    def gradients(self, state: TrainState, batch: Batch) -> tuple[Array, Metrics]:
        """The gradient of the agent's loss over a batch [B, ...], averaged over devices."""
        results = [part.gradients(state, batch) for part in self.parts]
        # Where there are several parts, each is zero where the others are not.
        gradients = jnp.sum(jnp.stack([gradients for gradients, _ in results]), 0) if results[1:] else results[0][0]
        return gradients, _joined([metrics for _, metrics in results])

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """One optimiser step on the vector; the value network's own optimiser takes its own part."""
        if len(self.parts) == 1:
            return self.parts[0].apply(state, gradients)
        is_policy = self.is_policy()
        state = self.parts[0].apply(state, jnp.where(is_policy, gradients, 0.0))
        return self.parts[1].apply(state, jnp.where(is_policy, 0.0, gradients))._replace(updates=state.updates)

    def is_policy(self) -> Array:
        """Which of the parameters [P] are the policy's; the others are the value network's own."""
        end = self.layout.start_of("value") if self.learns_values else self.layout.size
        return jnp.arange(self.layout.size) < end

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One step of each optimiser, whatever it wraps, on a minibatch."""
        collected = []
        for part in self.parts:
            state, metrics = step(part.spec, part, state, batch)
            collected.append(metrics)
        return state, _joined(collected)

    def loss(self, params: Array, state: TrainState, batch: Batch, part: Part, index: Any = 0) -> tuple[Array, Metrics]:
        """The terms that an optimiser follows, over a batch; `index` tells chunks of it apart (for dropout)."""
        split, settings = self.layout.split(params), self.settings
        key = None
        if self.network.has_dropout or self.value_network.has_dropout:
            key = jax.random.fold_in(jax.random.fold_in(state.key, state.updates), index)
        observations = self.normalized(state.observations, batch.observations)
        outputs, values = self._outputs_and_values(split, observations, batch, key, part)
        total: Any = jnp.float32(0.0)
        metrics: Metrics = {}
        if part != "value":
            log_std = split["policy"]["head"].get("log_std")
            log_probs = self.distribution.log_prob(outputs, log_std, batch.actions)
            # Every policy loss is linear in the advantages.
            advantages = weighted(batch.advantages, batch.weights)
            policy_loss, metrics = self.policy_loss(log_probs, batch.log_probs, advantages)
            entropy = weighted(self.distribution.entropy(outputs, log_std), batch.weights).mean()
            total += policy_loss - settings.entropy_coefficient * entropy
            total += self.network.penalty(split["policy"]["torso"])
            metrics |= {"policy_loss": policy_loss, "entropy": entropy}
        if part != "policy":
            value_loss = weighted((values - batch.returns) ** 2, batch.weights).mean()
            total += settings.value_coefficient * value_loss
            if not self.shares_network:
                total += self.value_network.penalty(split["value"]["torso"])
            metrics |= {"value_loss": value_loss}
        return total, metrics | {"loss": total}

    def divergence(self, params: Array, state: TrainState, batch: Batch) -> Array:
        """How far the policy at `params` is from the one at `state.params`, over a batch."""
        observations = self.normalized(state.observations, batch.observations)
        policies = []
        for vector in (jax.lax.stop_gradient(state.params), params):
            split = self.layout.split(vector)
            outputs, _ = self._outputs_and_values(split, observations, batch, None, "policy")
            policies += [outputs, split["policy"]["head"].get("log_std")]
        return weighted(self.distribution.kl(*policies), batch.weights).mean()

    def prepare(self, state: TrainState, trajectory: Trajectory) -> Batch:
        """[T, N, ...] -> advantages and value targets, flattened to [T * N, ...] or as sequences [N, T, ...]."""
        values, next_values = self.trajectory_values(state, trajectory)
        rewards = trajectory.rewards
        if self.context.normalize_rewards:
            rewards = normalizers.scale(state.returns, rewards)
        advantages = generalized_advantages(
            rewards,
            values,
            next_values,
            trajectory.terminated.astype(jnp.float32),
            trajectory.truncated.astype(jnp.float32),
            self.settings.discount,
            self.gae_lambda,
        )
        return self.batch_of(trajectory, self.behaviour_log_probs(state, trajectory), advantages, advantages + values)

    def behaviour_log_probs(self, state: TrainState, trajectory: Trajectory) -> Array:
        """Log-probabilities [T, N] of the actions under the policy that took them."""
        log_std = self.layout.split(self.actor_params(state).params)["policy"]["head"].get("log_std")
        if not isinstance(trajectory.log_std, tuple):
            log_std = trajectory.log_std
        return self.distribution.log_prob(trajectory.outputs, log_std, trajectory.actions)

    def current_log_probs(self, state: TrainState, trajectory: Trajectory) -> Array:
        """Log-probabilities [T, N] of the actions under the policy as it is now."""
        lead = trajectory.rewards.shape

        def outputs(rows: tuple[Array, Internals]) -> Array:
            return self.outputs(ActorParams(state.params, state.observations), *rows)[0]

        observed = (trajectory.observations, trajectory.internals)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observed)
        current = map_chunks(outputs, flat).reshape(*lead, -1)
        log_std = self.layout.split(state.params)["policy"]["head"].get("log_std")
        return self.distribution.log_prob(current, log_std, trajectory.actions)

    def batch_of(self, trajectory: Trajectory, log_probs: Array, advantages: Array, returns: Array) -> Batch:
        """All timesteps as samples, or all environments as sequences."""
        ended = trajectory.terminated | trajectory.truncated
        is_first = jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])
        leaves = (trajectory.observations, trajectory.actions, trajectory.outputs, log_probs, advantages, returns)
        weights = trajectory.weights
        if self.is_recurrent:
            internals = jax.tree.map(lambda leaf: leaf[0], trajectory.internals)
            sequences = [jnp.swapaxes(leaf, 0, 1) for leaf in leaves]
            weights = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), weights)
            return Batch._make([*sequences, internals, jnp.swapaxes(is_first, 0, 1), weights])
        observations, *flat = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves]
        if self.shares_network or self.layers == self.value_network.layers:
            # Every epoch reads the same images.
            observations = self.network.prepared(observations)
        return Batch._make([observations, *flat, {}, (), jax.tree.map(jnp.ravel, weights)])

    def update_return_stats(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """Before an update: the spread of the returns, so that the very first rewards are scaled already."""
        if not self.context.normalize_rewards:
            return state
        returns, weights = trajectory.running_returns, trajectory.weights
        return state._replace(returns=normalizers.merge(state.returns, returns, self.axis, weights))

    def update_obs_stats(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """After an update: the policy that acted must be the one whose probabilities are compared."""
        if not self.normalizes_observations:
            return state
        observations, weights = trajectory.observations, trajectory.weights
        return state._replace(observations=normalizers.merge(state.observations, observations, self.axis, weights))

    def trajectory_values(self, state: TrainState, trajectory: Trajectory) -> tuple[Array, Array]:
        """Values [T, N] of the observations and of their true successors; zeros where none are learned."""
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
        # A successor is the next row's observation, except where an episode ended. A terminated one has no future; only
        # a truncated one needs a look at what would have come, and most trajectories have none.
        next_values = jax.lax.cond(
            jnp.any(trajectory.truncated),
            lambda: values_of(trajectory.next_observations, trajectory.next_internals),
            lambda: jnp.concatenate([values[1:], values_of(*last)]),
        )
        return values, next_values.reshape(values.shape)

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The policy network with its normaliser; the value network stays behind."""
        named = self.layout.named(np.array(state.params))
        tensors = {name.removeprefix("policy/"): t for name, t in named.items() if name.startswith("policy/")}
        return tensors | normalizer_tensors(self, state)

    def _shares_network(self) -> bool:
        settings, observation = self.settings, self.context.observation
        if not self.learns_values:
            return True  # a value network of its own there is not
        if settings.share_network is None:
            is_image = isinstance(observation, Box) and observation.is_image
            return is_image and settings.baseline is None and settings.baseline_optimizer is None
        return settings.share_network

    def _optimizers(self) -> list[Part]:
        if not self.learns_values:
            return ["policy"]
        return ["all"] if self.settings.baseline_optimizer is None else ["policy", "value"]

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

    def _outputs_and_values(
        self, params: dict[str, Any], observations: Array, batch: Batch, dropout_key: Array | None, part: Part
    ) -> tuple[Array, Array]:
        """Outputs [B, ...] and values [B], of the part that is asked for."""
        outputs = values = features = jnp.zeros(())
        if part != "value" or self.shares_network:
            torso = params["policy"]["torso"]
            features = self._features(self.network, torso, observations, batch, batch.internals, dropout_key)
        if part != "value":
            outputs = apply_head(params["policy"]["head"], features)
        if part != "policy":
            if not self.shares_network:
                torso, internals = params["value"]["torso"], _of_value(batch.internals)
                features = self._features(self.value_network, torso, observations, batch, internals, dropout_key)
            values = apply_head(params["value"]["head"], features)[..., 0]
        return outputs, values

    def _features(
        self, network: Network, torso: Any, observations: Array, batch: Batch, internals: Internals, key: Array | None
    ) -> Array:
        """[B, ...] -> [B, F], or sequences [B, T, ...] -> [B, T, F]."""
        if not network.is_recurrent:
            return network.apply(torso, observations, key)
        by_time = (jnp.swapaxes(leaf, 0, 1) for leaf in (observations, batch.is_first))
        sequences, is_first = by_time
        features, _ = network.unroll(torso, sequences, internals, is_first, key)
        return jnp.swapaxes(features, 0, 1)

    def standardized(self, batch: Batch) -> Batch:
        """With advantages of mean 0 and variance 1 over all devices."""
        centred = batch.advantages - self._mean(weighted(batch.advantages, batch.weights))
        deviation = jnp.sqrt(self._mean(weighted(centred**2, batch.weights)))
        return batch._replace(advantages=centred / (deviation + 1e-8))

    def _mean(self, values: Array) -> Array:
        mean = values.mean()
        return mean if self.axis is None else jax.lax.pmean(mean, self.axis)

    @property
    def batches_of_experience(self) -> int:
        """Into how many parts each trajectory is cut."""
        return 1

    @property
    def batches_per_experience(self) -> int:
        """How many times `step` is called for each trajectory."""
        return 1

    @property
    def updates_per_experience(self) -> int:
        """Each batch may take several."""
        return self.batches_per_experience * sum(steps_of(part.spec) for part in self.parts)

    @property
    def total_batches(self) -> int | None:
        """How many batches the whole experiment learns from, where that is known."""
        total = self.context.total_timesteps
        if total is None:
            return None
        return -(-total // (self.horizon * self.context.num_envs)) * self.batches_per_experience


def weighted(values: Array, weights: Any) -> Array:
    """Values by how much each counts, so that their mean is the weighted one."""
    return values if isinstance(weights, tuple) else values * weights


def _of_value(internals: Internals) -> Internals:
    return {name.removeprefix(VALUE): state for name, state in internals.items() if name.startswith(VALUE)}


def _joined(collected: list[Metrics]) -> Metrics:
    """The parts' metrics as one; their losses add up."""
    joined: Metrics = {}
    for metrics in collected:
        joined |= metrics
    return joined | {"loss": sum((metrics["loss"] for metrics in collected), jnp.float32(0.0))}
