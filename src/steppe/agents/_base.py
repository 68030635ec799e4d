"""The contract of agents: pure functions over one state value, from which every run mode is built."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents.core import normalizers
from steppe.agents.core.normalizers import CLIP, Statistics, empty
from steppe.agents.core.numbers import numbers_of, with_numbers
from steppe.agents.experience import (
    ActorParams,
    AgentContext,
    Internals,
    Leaf,
    Metrics,
    RolloutBatches,
    TargetSync,
    TrainState,
    Trajectory,
    Transitions,
)
from steppe.errors import UserError
from steppe.networks import default_layers
from steppe.policies import heads
from steppe.policies.policy import Policy, PolicyDescription
from steppe.policies.preprocessing import Preprocessing, RewardPreprocessing
from steppe.specs.learning.agent_settings import AgentSettings
from steppe.specs.learning.exploration import Noise
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Space

if TYPE_CHECKING:
    import optax

    from steppe.agents.core.layout import Layout
    from steppe.agents.core.loss_optimizer import LossOptimizer, OptimizerSlot, Terms

__all__ = [
    "DEVICE_AXIS",
    "ActorParams",
    "Agent",
    "AgentContext",
    "Internals",
    "Leaf",
    "Metrics",
    "RolloutBatches",
    "TargetSync",
    "TrainState",
    "Trajectory",
    "Transitions",
    "fresh_state",
    "host_generator",
    "normalizer_tensors",
]
S = TypeVar("S", bound=AgentSettings)
DEVICE_AXIS = "shards"
"""The name of the device axis that updates are averaged over, when the environments are spread over devices."""


class Agent(ABC, Generic[S]):
    """The contract of every algorithm. No method has side effects; all but `init` and `policy...` can be compiled.

    An agent never changes: `for_workers` and `with_transforms` return another one.
    """

    type: ClassVar[str]
    Settings: ClassVar[Any]
    """The class of `settings`."""
    experience: ClassVar[Literal["trajectories", "transitions", "none"]]
    default_num_envs: ClassVar[int] = 8
    horizon: int
    """How many timesteps each environment takes between two calls of `update`."""
    rollout_episodes: int | None = None
    """The episodes of a rollout, if it is counted in episodes; its trajectory is repeated up to the full length."""
    kind: str
    """The kind of the policy's head: see `steppe.policies.heads`."""
    always_draws: ClassVar[bool] = False
    """Whether even a greedy action needs noise."""
    layers: NetworkSpec | None = None
    """The network, if there is one."""
    layout: Layout
    """The parts of the parameter vector."""
    memory: Any = None
    """The `Replay` or `DemonstratedReplay` that the agent learns from, or None."""
    cuts_batches: ClassVar[bool] = False
    """Whether gradients of large batches are computed in pieces that fit into a core's cache."""
    lists_optimizers: ClassVar[bool] = False
    """Whether `TrainState.optimizer` is a list, one state for each slot, or the state of the only one."""

    def __init__(self, settings: S, context: AgentContext) -> None:
        self.settings = settings
        self.context = context
        self.axis = DEVICE_AXIS if context.shards > 1 else None
        self.make_transform: Callable[[OptimizerSlot], optax.GradientTransformation] | None = None
        self.normalizes_observations = context.normalize_observations and self.experience != "none"
        stages = settings.reward_preprocessing
        if stages is not None and RewardPreprocessing(stages).spans_rollout and self.experience != "trajectories":
            raise UserError(
                f'reward_preprocessing "standardize" needs whole rollouts, but agent "{self.type}" learns from single '
                'timesteps; use "running_standardize"'
            )
        self.reward_preprocessing = None if stages is None else RewardPreprocessing(stages)
        if self.normalizes_observations and not _can_normalize(context.observation):
            raise UserError("normalize_observations needs observations of real numbers; images are scaled without it")

    @classmethod
    def default_network(cls, observation: Space) -> NetworkSpec:
        """The layers if none are given."""
        return default_layers(observation)

    @abstractmethod
    def init(self, key: Array) -> TrainState:
        """The state before the first timestep. Parameters are drawn on the host, so this is not compiled."""

    def actor_params(self, state: TrainState) -> ActorParams:
        """The part of the state that `act` needs."""
        return ActorParams(state.params, state.observations)

    def unflattened(self, actor_params: ActorParams) -> ActorParams:
        """The same with parameters as named arrays, so that `act` need not slice the vector at every call."""
        return actor_params._replace(params=self.layout.split(actor_params.params))

    @property
    def perturbs_parameters(self) -> bool:
        """Whether `actor_params` adds noise to the parameters."""
        return False

    @property
    def noise_process(self) -> Noise | None:
        """The process of the noise on continuous actions, if the agent has one."""
        return None

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """The actor's memory at the start of an episode; leaves [*lead, ...]."""
        return {}

    @property
    def acts_in_numpy(self) -> bool:
        """Whether `policy` computes the same as `act`, so that the host can act without a compiled call."""
        return True

    @property
    def noise(self) -> heads.Noise:
        """The noise columns that one action needs."""
        return heads.noise_of(self.kind, self.context.action)

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """The randomness of actions, [*shape, columns of `noise`]: drawn for a whole rollout at once, since a draw
        costs more than a small network's forward pass."""
        noise = self.noise
        if len(noise) == 1:
            return _draw(noise[0][0], key, (*shape, noise[0][1]))
        keys = jax.random.split(key, len(noise))
        parts = [_draw(name, part_key, (*shape, size)) for (name, size), part_key in zip(noise, keys, strict=True)]
        return jnp.concatenate(parts, -1)

    def act(
        self, actor_params: ActorParams, observations: Array, noise: Array | None, timestep: Array, internals: Internals
    ) -> tuple[Array, Array, Internals]:
        """observations [N, ...] -> actions [N, ...] as the learner stores them, the network's outputs [N, outputs],
        and the actor's memory.

        Without noise the action is the greedy one. `timestep` drives exploration schedules.
        """
        outputs, internals = self.outputs(actor_params, observations, internals)
        actions, internals = self.choose(outputs, noise, timestep, internals, self.log_std(actor_params), jnp)
        return actions, outputs, internals

    @abstractmethod
    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """The outputs of the policy's network [N, outputs], and the actor's memory after it."""

    def choose(
        self, outputs: Any, noise: Any, timestep: Any, internals: Internals, log_std: Any, xp: Any
    ) -> tuple[Any, Internals]:
        """From outputs to actions, in NumPy or JAX (`xp`); greedy without noise."""
        space = self.context.action
        if noise is None:
            return heads.greedy(self.kind, outputs, space, xp), internals
        exploration = self.exploration(timestep, xp)
        return heads.sample(self.kind, outputs, noise, space, xp, log_std=log_std, **exploration), internals

    def exploration(self, timestep: Any, xp: Any) -> dict[str, Any]:
        """The `epsilon` and `sigma` of `heads.sample` at a timestep."""
        return {}

    def log_std(self, actor_params: ActorParams) -> Any:
        """The logarithm of the spread of Gaussian actions, if the parameters hold one."""
        return 0.0

    def to_environment(self, actions: Array) -> Array:
        """The learner's actions as the environment takes them: within its bounds, in its shape."""
        return heads.postprocess(self.kind, actions, self.context.action, xp=jnp)

    def to_env_actions(self, actions: np.ndarray) -> np.ndarray:
        """Scales the learner's actions to the environment's bounds; `GymnasiumEnvs` clips them itself."""
        if self.kind not in heads.STRETCHED:
            return actions
        return heads.postprocess(self.kind, actions, self.context.action)

    @property
    def is_recurrent(self) -> bool:
        """Whether it learns from sequences instead of single timesteps."""
        return False

    @property
    def pretraining_updates(self) -> int:
        """How many updates are taken on demonstrations before the first action."""
        return 0

    @property
    def first_update(self) -> int:
        """How many timesteps the memory must hold before the first update."""
        return 0

    @property
    def batches_per_rollout(self) -> int:
        """How many batches each trajectory is cut into, or how many are drawn from the memory between two rollouts."""
        return 1

    @property
    def target_sync(self) -> TargetSync:
        """When and how far the target network moves, if there is one."""
        return TargetSync()

    @property
    def values_while_acting(self) -> bool:
        """Whether `act_and_value` gives values at hardly any cost, so that they need not be computed again."""
        return False

    @property
    def discount(self) -> float:
        """How much the future counts; 1 for agents that do not learn."""
        return 1.0

    def act_and_value(
        self, actor_params: ActorParams, observations: Array, noise: Array | None, timestep: Array, internals: Internals
    ) -> tuple[Array, Array, Internals, Array]:
        """The results of `act`, and the values [N] of the observations; only if `values_while_acting`."""
        raise NotImplementedError

    @property
    def optimizers(self) -> tuple[LossOptimizer, ...]:
        """The losses, in the order of their steps, each with the optimiser that follows it."""
        return ()

    @property
    def slots(self) -> tuple[OptimizerSlot, ...]:
        """The parts of the parameter vector, each with its own optimiser."""
        return tuple(slot for optimizer in self.optimizers for slot in optimizer.slots)

    @property
    def resolved_settings(self) -> dict[str, Any]:
        """The values that "auto" and null stand for, by the names of the settings."""
        return {"horizon": self.horizon}

    @property
    def has_default_final_epsilon(self) -> bool:
        """Whether the final epsilon is the one of the agent's defaults."""
        return False

    def with_settings(self, **changes: Any) -> Self:
        """The same agent with other settings that change no shape."""
        return self._replaced(settings=self.settings.model_copy(update=changes))

    @property
    def numbers(self) -> dict[str, Any]:
        """The numeric hyper-parameters, which compiled programs take as an argument: see `core.numbers`."""
        return jax.device_put(jax.tree.map(np.float32, numbers_of(self.settings)))

    def with_numbers(self, numbers: dict[str, Any]) -> Self:
        """The same agent with these hyper-parameters, which may be traced."""
        return self._replaced(settings=with_numbers(self.settings, numbers))

    def transform_of(self, slot: OptimizerSlot) -> optax.GradientTransformation:
        """The gradient transformation of a slot."""
        return slot.transform() if self.make_transform is None else self.make_transform(slot)

    def with_transforms(self, make: Callable[[OptimizerSlot], optax.GradientTransformation]) -> Self:
        """The same agent with the gradient transformations of `make`; its states come from its own `init`."""
        return self._replaced(make_transform=make)

    def for_workers(self, count: int, shares_memory: bool = True, updates_together: bool = False) -> Self:
        """The agent of one of `count` workers, which collect for one model and each have a part of the memory.

        Without `shares_memory` the memory is already such a part; with `updates_together` the workers make each update
        jointly.
        """
        return self

    def loss(self, params: Array, state: TrainState, batch: Any) -> tuple[Array, Metrics]:
        """The scalar to minimise over a batch [B, ...], and metrics."""
        return self.loss_terms(params, state, batch, "all", 0)

    def loss_terms(
        self, params: Array, state: TrainState, batch: Any, terms: Terms, index: Any
    ) -> tuple[Array, Metrics]:
        """The loss `terms` of one optimiser; `index` is that of the chunk of the batch."""
        raise NotImplementedError

    def standardized(self, batch: Any) -> Any:
        """A batch whose advantages are normalised, if there are any and the settings ask for it."""
        return batch

    def divergence(self, params: Array, state: TrainState, batch: Any) -> Array:
        """KL(policy at `state.params` || policy at `params`), which limits natural steps."""
        raise NotImplementedError

    def gradients(self, state: TrainState, batch: Any) -> tuple[Array, Metrics]:
        """The gradient [P] of all losses over one batch, and metrics."""
        results = [optimizer.gradients(state, batch) for optimizer in self.optimizers]
        # The losses have disjoint parameters, so their gradients can be added.
        gradients = jnp.sum(jnp.stack([each for each, _ in results]), 0) if results[1:] else results[0][0]
        return gradients, _joined([metrics for _, metrics in results])

    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """One step of every optimiser along a gradient [P]."""
        updates, several = state.updates, len(self.optimizers) > 1
        for optimizer in self.optimizers:
            state = optimizer.apply(state, jnp.where(optimizer.is_own(), gradients, 0.0) if several else gradients)
        return state._replace(updates=updates + 1)

    def after_step(self, before: TrainState, moved: TrainState) -> TrainState:
        """Updates the target network, if there is one, after the parameters have moved."""
        return moved

    def step(self, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        """One step of every optimiser, wrapped optimisers included, on one batch."""
        collected = []
        for optimizer in self.optimizers:
            state, metrics = optimizer.step(state, batch)
            collected.append(metrics)
        return state, _joined(collected)

    def prepare(self, state: TrainState, experience: Any) -> Any:
        """A trajectory [T, N, ...], or a batch from the memory -> the input of the losses, leaves [B, ...]."""
        raise NotImplementedError

    def minibatches(self, key: Array, samples: int) -> Array | None:
        """Which samples each step takes [steps, size]; None if there is one step on all of them."""
        return None

    def rollout_batches(self, state: TrainState, trajectory: Trajectory) -> tuple[TrainState, RolloutBatches]:
        """Everything in `update` before its first step."""
        state = self.update_return_stats(state, trajectory)
        samples = self.prepare(state, trajectory)
        shuffle_key, key = jax.random.split(state.key)
        own_key = shuffle_key if self.axis is None else jax.random.fold_in(shuffle_key, jax.lax.axis_index(self.axis))
        order = self.minibatches(own_key, jax.tree.leaves(samples)[0].shape[0])
        if order is None:
            return state, RolloutBatches(samples, ())
        return state._replace(key=key), RolloutBatches(samples, order)

    def update(self, state: TrainState, experience: Any) -> tuple[TrainState, Metrics]:
        """Learns from one trajectory [T, N, ...] (or from one batch of transitions): a step on each of its batches."""
        state, (samples, order) = self.rollout_batches(state, experience)

        def step(state: TrainState, indices: Array) -> tuple[TrainState, Metrics]:
            return self.step(state, jax.tree.map(lambda leaf: leaf[indices], samples))

        whole = isinstance(order, tuple)
        state, metrics = self.step(state, samples) if whole else jax.lax.scan(step, state, order)
        return self.update_obs_stats(state, experience), jax.tree.map(jnp.mean, metrics)

    def update_stats(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """Adds newly collected timesteps [T, N, ...] to both normalisers."""
        return self.update_return_stats(self.update_obs_stats(state, trajectory), trajectory)

    def update_return_stats(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """Updates the variance of returns; before an update, so that the first rewards are scaled too."""
        if not self.context.normalize_rewards:
            return state
        returns, weights = trajectory.running_returns, trajectory.weights
        return state._replace(returns=normalizers.merge(state.returns, returns, self.axis, weights))

    def update_obs_stats(self, state: TrainState, trajectory: Trajectory) -> TrainState:
        """Updates mean and variance of observations; after an update, since it compares probabilities with those of the
        policy that acted."""
        if not self.normalizes_observations:
            return state
        observations, weights = trajectory.observations, trajectory.weights
        return state._replace(observations=normalizers.merge(state.observations, observations, self.axis, weights))

    @abstractmethod
    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors of `policy`, copied to the host; updates change only these."""

    def policy_head(self) -> dict[str, Any]:
        """The head of the exported policy: see `steppe.policies.policy`."""
        return {"kind": self.kind}

    def policy(self, state: TrainState, timestep: int) -> Policy:
        """The self-contained policy of this state, preprocessing included."""
        return self._as_policy(state, timestep, self.context.preprocessing)

    def actor(self, state: TrainState) -> Policy:
        """The same without preprocessing, with which the host acts while it collects."""
        return self._as_policy(state, 0, None)

    def _as_policy(self, state: TrainState, timestep: int, preprocessing: Preprocessing | None) -> Policy:
        context = self.context
        description = PolicyDescription(
            agent=self.type,
            environment=context.environment,
            timestep=timestep,
            observation=context.observation,
            action=context.action,
            network=self.layers,
            head=self.policy_head(),
            normalizer={"clip": CLIP} if self.normalizes_observations else None,
            preprocessing=preprocessing,
        )
        return Policy(description, self.policy_tensors(state))

    @property
    def updates_per_batch(self) -> int:
        """How many optimiser steps are taken on each batch."""
        return sum(optimizer.steps for optimizer in self.optimizers)

    @property
    def updates_per_rollout(self) -> int:
        """How many optimiser steps are taken between two rollouts."""
        return self.batches_per_rollout * self.updates_per_batch

    def total_batches(self) -> int | None:
        """How many batches the whole experiment learns from; None if that is not known."""
        rollouts = self.total_rollouts()
        return None if rollouts is None else rollouts * self.batches_per_rollout

    def total_updates(self) -> int | None:
        """How many optimiser steps the whole experiment takes; None if that is not known."""
        batches = self.total_batches()
        return None if batches is None else batches * self.updates_per_batch

    def total_rollouts(self) -> int | None:
        """How many rollouts the whole experiment has, over all workers; None if that is not known."""
        total = self.context.total_timesteps
        return None if total is None else -(-total // (self.horizon * self.context.num_envs))

    def pmean(self, values: Array) -> Array:
        """The mean over all devices."""
        return values if self.axis is None else jax.lax.pmean(values, self.axis)

    def normalized(self, statistics: Statistics, observations: Array) -> Array:
        """Observations as the network takes them."""
        return normalizers.normalize(statistics, observations) if self.normalizes_observations else observations

    def _replaced(self, **changes: Any) -> Self:
        """A copy with other attributes."""
        other = copy.copy(self)
        vars(other).update(changes)
        return other


def _can_normalize(space: Space) -> bool:
    if not isinstance(space, Box) or space.is_image or any(part.is_bytes for part in space.parts):
        return False
    return space.dtype.startswith("float")


def _draw(distribution: str, key: Array, shape: tuple[int, ...]) -> Array:
    draws = {
        "gumbel": jax.random.gumbel,
        "logistic": jax.random.logistic,
        "normal": jax.random.normal,
        "uniform": jax.random.uniform,
    }
    return draws[distribution](key, shape)


def host_generator(key: Array) -> np.random.Generator:
    """NumPy's generator, seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())


def fresh_state(agent: Agent[Any], params: Any, target: Any, key: Array) -> TrainState:
    """A state before the first update, with fresh normalisers."""
    states = [state for each in agent.optimizers for state in each.init(params)]
    optimizer: Any = states if agent.lists_optimizers else states[0] if states else ()
    shape = agent.context.observation.shape if agent.normalizes_observations else ()
    return TrainState(params, target, optimizer, empty(shape), empty(()), key, np.int32(0))


def normalizer_tensors(agent: Agent[Any], state: TrainState) -> dict[str, np.ndarray]:
    """The observation normaliser in the policy's names; {} if there is none."""
    if not agent.normalizes_observations:
        return {}
    return {
        "normalizer/mean": np.array(state.observations.mean),
        "normalizer/var": np.array(state.observations.variance),
    }


def _joined(collected: list[Metrics]) -> Metrics:
    """The metrics of several losses as one; the losses add up."""
    if len(collected) == 1:
        return collected[0]
    joined: Metrics = {}
    for metrics in collected:
        joined |= metrics
    return joined | {"loss": sum((metrics["loss"] for metrics in collected), jnp.float32(0.0))}
