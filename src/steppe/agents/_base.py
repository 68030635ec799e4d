"""What an agent is: a handful of pure functions over one state value, from which every run mode is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from steppe.agents.normalizers import CLIP, Statistics, empty
from steppe.errors import UserError
from steppe.records.policy import Policy, PolicyDescription
from steppe.specs._base import Settings
from steppe.specs.network import NetworkSpec
from steppe.specs.spaces import Box, Space

Metrics = dict[str, Array]
Leaf = Any
"""A JAX array, or a NumPy array on its way to one."""
S = TypeVar("S", bound=Settings)


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


class Acting(NamedTuple):
    """What is needed to act, and nothing more: what a worker fetches."""

    params: Array
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


@dataclass(frozen=True)
class Situation:
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


class Agent(ABC, Generic[S]):
    """The contract of every algorithm. No method has side effects; all but `init` and `policy...` can be compiled."""

    type: ClassVar[str]
    Settings: ClassVar[Any]
    """The class of `settings`."""
    experience: ClassVar[Literal["trajectories", "transitions", "none"]]
    default_num_envs: ClassVar[int] = 8
    horizon: int
    """How many timesteps each environment takes between two calls of `update`."""
    noise_size: int
    """How many random numbers one action takes."""
    layers: NetworkSpec | None = None
    """The network, where there is one."""
    axis: str | None = None
    """The name of the device axis that updates are averaged over, when the environments are spread over devices."""

    def __init__(self, settings: S, situation: Situation) -> None:
        self.settings = settings
        self.situation = situation
        self.normalizes_observations = situation.normalize_observations and self.experience != "none"
        if self.normalizes_observations and not _can_normalize(situation.observation):
            raise UserError("normalize_observations needs observations of real numbers; images are scaled without it")

    @abstractmethod
    def init(self, key: Array) -> TrainState:
        """The state before the first timestep. Parameters are drawn on the host, so this is not compiled."""

    def acting(self, state: TrainState) -> Acting:
        """The part of the state that `act` needs."""
        return Acting(state.params, state.observations)

    @abstractmethod
    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """The randomness of actions, [*shape, noise_size]: drawn for a whole rollout at once, since a draw costs
        more than a small network's forward pass."""

    def exploration(self, timestep: int) -> float:
        """The share of random actions at a timestep, for agents that explore by chance."""
        return 0.0

    @abstractmethod
    def act(self, acting: Acting, observations: Array, noise: Array | None, timestep: Array) -> tuple[Array, Array]:
        """observations [N, ...] -> actions [N, ...] as the learner stores them, and the network's outputs.

        Without noise the action is the greedy one. `timestep` drives exploration schedules.
        """

    @abstractmethod
    def to_environment(self, actions: Array) -> Array:
        """The learner's actions as the environment takes them: clipped to its bounds, in its shape."""

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

    @abstractmethod
    def policy_head(self) -> dict[str, Any]:
        """How the policy's outputs become actions: see `steppe.records.policy`."""

    def policy(self, state: TrainState, timestep: int) -> Policy:
        """The self-contained artefact that acts as this state does."""
        situation = self.situation
        description = PolicyDescription(
            agent=self.type,
            environment=situation.environment,
            timestep=timestep,
            observation=situation.observation,
            action=situation.action,
            network=self.layers,
            head=self.policy_head(),
            normalizer={"clip": CLIP} if self.normalizes_observations else None,
        )
        return Policy(description, self.policy_tensors(state))

    @property
    def updates_per_experience(self) -> int:
        """How many optimiser steps one call of `update` takes."""
        return 1


def _can_normalize(space: Space) -> bool:
    return isinstance(space, Box) and not space.is_image and space.dtype.startswith("float")


def host_generator(key: Array) -> np.random.Generator:
    """NumPy's randomness, seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())


def fresh_state(agent: Agent[Any], params: Any, target: Any, optimizer: Any, key: Array) -> TrainState:
    """A state with nothing seen and no update taken."""
    shape = agent.situation.observation.shape if agent.normalizes_observations else ()
    return TrainState(params, target, optimizer, empty(shape), empty(()), key, np.int32(0))


def normalizer_tensors(agent: Agent[Any], state: TrainState) -> dict[str, np.ndarray]:
    """The observation normaliser as the policy wants it; nothing where there is none."""
    if not agent.normalizes_observations:
        return {}
    return {
        "normalizer/mean": np.array(state.observations.mean),
        "normalizer/var": np.array(state.observations.variance),
    }
