"""What an agent is: a handful of pure functions over one state value, from which every run mode is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents.core import normalizers
from steppe.agents.core.normalizers import CLIP, Statistics, empty
from steppe.errors import UserError
from steppe.networks import default_layers
from steppe.policies import heads
from steppe.policies.policy import Policy, PolicyDescription
from steppe.policies.preprocessing import Preprocessing, RewardPreprocessing
from steppe.specs.learning.agent_settings import AgentSettings
from steppe.specs.learning.exploration import Noise
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Space

Metrics = dict[str, Array]
Internals = dict[str, Any]
"""What an actor remembers within an episode, one row for each environment: {} for most agents."""
Leaf = Any
"""A JAX array, or a NumPy array on its way to one."""
S = TypeVar("S", bound=AgentSettings)


class TrainState(NamedTuple):
    """Everything an agent has learned and needs to go on learning: one value, saved and restored whole."""

    params: Array
    """All trainable parameters as one vector [P]; `agent.layout` names its parts."""
    target: Array
    """Parameters of the target network [P], or [0] where the algorithm has none."""
    optimizer: Any
    """The optimiser's state over the same vector."""
    observations: Statistics
    """Running mean and variance of the observations (untouched unless they are normalised)."""
    returns: Statistics
    """Running variance of the discounted returns (untouched unless rewards are normalised)."""
    key: Array
    """Where all later randomness of updates comes from."""
    updates: Leaf
    """How many optimiser steps were taken: int32."""


class ActorParams(NamedTuple):
    """What is needed to act, and nothing more: what a worker fetches."""

    params: Any
    """The vector, or its named arrays once it is cut."""
    observations: Statistics


class Trajectory(NamedTuple):
    """What N environments saw in T timesteps; leaves are [T, N, ...]."""

    observations: Leaf
    actions: Leaf
    rewards: Leaf
    terminated: Leaf
    """The episode ended for good: nothing follows."""
    truncated: Leaf
    """The episode was cut by a time limit: the value of what would have followed counts."""
    next_observations: Leaf
    """The true successors, before any reset."""
    outputs: Leaf
    """What the network put out when acting (logits, means or values), [T, N, outputs]."""
    running_returns: Leaf
    """Discounted sums of the rewards of each episode so far: what reward normalisation measures."""
    internals: Internals
    """What the actor remembered before each action."""
    next_internals: Internals
    """What it remembered after each action, also where the episode then ended."""
    log_std: Leaf = ()
    """The logarithm of the spread of Gaussian actions [T, N, A], where another process acted; () is the learner's."""
    weights: Leaf = ()
    """How much each timestep counts, 1 on average, where some are repeated; () where all count alike."""
    values: Leaf = ()
    """What the observations are worth by the parameters that acted, where acting works it out; () elsewhere."""


class Transitions(NamedTuple):
    """A batch drawn from a memory; leaves are [B, ...]."""

    observations: Array
    actions: Array
    rewards: Array
    """The discounted sum of n rewards."""
    discounts: Array
    """What the value of `next_observations` is multiplied by: discount ** n, or 0 where the episode terminated."""
    next_observations: Array
    weights: Array
    """Importance weights that undo prioritised sampling (1 where sampling is uniform)."""
    single: Any = None
    """What each timestep alone led to (`steppe.memories.Following`), where the memory tells."""
    demonstrated: Any = None
    """Which were demonstrated [B], where there are demonstrations."""


@dataclass(frozen=True)
class AgentContext:
    """Where an agent finds itself: all it needs to know of the experiment."""

    observation: Space
    action: Space
    network: NetworkSpec | None = None
    num_envs: int = 8
    environment: str = ""
    total_timesteps: int | None = None
    deterministic: bool = False
    normalize_observations: bool = False
    normalize_rewards: bool = False
    shards: int = 1
    """Over how many devices the environments are spread."""
    preprocessing: Preprocessing | None = None
    """What made `observation` of what the environment shows."""
    episode_limit: int | None = None
    """After how many timesteps every episode is over, where that is known."""
    stacked_frames: tuple[int, int] | None = None
    """(how many, along which axis) where observations are the last frames together, as far as that is known."""
    is_for_tensorforce: bool = False
    """Whether the agent is of a file for TensorForce."""


class Agent(ABC, Generic[S]):
    """The contract of every algorithm. No method has side effects; all but `init` and `policy...` can be compiled."""

    type: ClassVar[str]
    Settings: ClassVar[Any]
    """The class of `settings`."""
    experience: ClassVar[Literal["trajectories", "transitions", "none"]]
    default_num_envs: ClassVar[int] = 8
    horizon: int
    """How many timesteps each environment takes between two calls of `update`."""
    rollout_episodes: int | None = None
    """After how many ended episodes `update` is called, with a trajectory that repeats itself up to its full length."""
    kind: str
    """How the network's outputs become actions: see `steppe.policies.heads`."""
    always_draws: ClassVar[bool] = False
    """Whether even a greedy action needs noise."""
    layers: NetworkSpec | None = None
    """The network, where there is one."""
    axis: str | None = None
    """The name of the device axis that updates are averaged over, when the environments are spread over devices."""

    def __init__(self, settings: S, context: AgentContext) -> None:
        self.settings = settings
        self.context = context
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
        """The same with parameters as named arrays, which `act` would otherwise cut out of the vector at every call."""
        layout = getattr(self, "layout", None)
        return actor_params if layout is None else actor_params._replace(params=layout.split(actor_params.params))

    @property
    def perturbs_parameters(self) -> bool:
        """Whether `actor_params` adds noise to the parameters."""
        return False

    @property
    def noise_process(self) -> Noise | None:
        """The process of the noise on continuous actions, if the agent has one."""
        return None

    def initial_internals(self, lead: tuple[int, ...]) -> Internals:
        """What an actor remembers at the start of an episode; leaves [*lead, ...]."""
        return {}

    @property
    def acts_in_numpy(self) -> bool:
        """Whether `policy` puts out all that `act` does, so that the host can act without a compiled call."""
        return True

    @property
    def noise(self) -> heads.Noise:
        """Which random numbers one action takes."""
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
        and what the actor remembers.

        Without noise the action is the greedy one. `timestep` drives exploration schedules.
        """
        outputs, internals = self.outputs(actor_params, observations, internals)
        actions, internals = self.choose(outputs, noise, timestep, internals, self.log_std(actor_params), jnp)
        return actions, outputs, internals

    @abstractmethod
    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """What the policy's network puts out, [N, outputs]."""

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
        """How much `heads.sample` explores at a timestep: its epsilon or sigma."""
        return {}

    def log_std(self, actor_params: ActorParams) -> Any:
        """The logarithm of the spread of Gaussian actions, where the parameters hold one."""
        return 0.0

    def to_environment(self, actions: Array) -> Array:
        """The learner's actions as the environment takes them: within its bounds, in its shape."""
        return heads.postprocess(self.kind, actions, self.context.action, xp=jnp)

    def to_env_actions(self, actions: np.ndarray) -> np.ndarray:
        """The learner's actions as `GymnasiumEnvs` takes them: it clips and counts, but does not stretch."""
        if self.kind not in heads.STRETCHED:
            return actions
        return heads.postprocess(self.kind, actions, self.context.action)

    @abstractmethod
    def gradients(self, state: TrainState, batch: Any) -> tuple[Array, Metrics]:
        """One batch -> the gradient [P] and metrics: what a hogwild thread or a parameter-server worker computes."""

    @abstractmethod
    def apply(self, state: TrainState, gradients: Array) -> TrainState:
        """One optimiser step: what the shared model or a parameter server does."""

    @abstractmethod
    def update(self, state: TrainState, experience: Any) -> tuple[TrainState, Metrics]:
        """Learns from one trajectory or one batch of transitions."""

    @abstractmethod
    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The tensors of `policy`, copied to the host: what changes from update to update."""

    def policy_head(self) -> dict[str, Any]:
        """How the policy's outputs become actions: see `steppe.policies.policy`."""
        return {"kind": self.kind}

    def policy(self, state: TrainState, timestep: int) -> Policy:
        """The self-contained artefact that acts as this state does, preprocessing included."""
        return self._as_policy(state, timestep, self.context.preprocessing)

    def actor(self, state: TrainState) -> Policy:
        """The same for observations that are preprocessed already: what the host acts with while it collects."""
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
    def updates_per_experience(self) -> int:
        """How many optimiser steps one call of `update` takes."""
        return 1

    def normalized(self, statistics: Statistics, observations: Array) -> Array:
        """Observations as the network takes them."""
        return normalizers.normalize(statistics, observations) if self.normalizes_observations else observations


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
    """NumPy's randomness, seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())


def fresh_state(agent: Agent[Any], params: Any, target: Any, optimizer: Any, key: Array) -> TrainState:
    """A state with nothing seen and no update taken."""
    shape = agent.context.observation.shape if agent.normalizes_observations else ()
    return TrainState(params, target, optimizer, empty(shape), empty(()), key, np.int32(0))


def normalizer_tensors(agent: Agent[Any], state: TrainState) -> dict[str, np.ndarray]:
    """The observation normaliser as the policy wants it; nothing where there is none."""
    if not agent.normalizes_observations:
        return {}
    return {
        "normalizer/mean": np.array(state.observations.mean),
        "normalizer/var": np.array(state.observations.variance),
    }
