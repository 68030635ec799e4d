"""The data types of agents: trajectories, transitions, the training state, an agent's context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax import Array

from steppe.agents.core.normalizers import Statistics
from steppe.policies.preprocessing import Preprocessing
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Space

Metrics = dict[str, Array]
Internals = dict[str, Any]
"""The memory of an actor within an episode, one row for each environment: {} for most agents."""
Leaf = Any
"""A JAX array, or a NumPy array that becomes one."""


class TrainState(NamedTuple):
    """The whole state of learning, which is saved and restored as one value."""

    params: Array
    """All trainable parameters as one vector [P]; `agent.layout` names its parts."""
    target: Array
    """Parameters of the target network [P], or [0] if the algorithm has none."""
    optimizer: Any
    """The optimiser's state over the same vector."""
    observations: Statistics
    """Running mean and variance of the observations (untouched unless they are normalised)."""
    returns: Statistics
    """Running variance of the discounted returns (untouched unless rewards are normalised)."""
    key: Array
    """The key of all later randomness of updates."""
    updates: Leaf
    """How many optimiser steps were taken: int32."""


class ActorParams(NamedTuple):
    """The part of the state that acting needs; workers fetch it."""

    params: Any
    """The vector, or its named arrays once it is unflattened."""
    observations: Statistics


class Trajectory(NamedTuple):
    """T timesteps of N environments; leaves are [T, N, ...]."""

    observations: Leaf
    actions: Leaf
    rewards: Leaf
    terminated: Leaf
    """The episode ended in a terminal state, whose value is 0."""
    truncated: Leaf
    """A time limit ended the episode: the value of the successor counts."""
    next_observations: Leaf
    """The true successors, before any reset."""
    outputs: Leaf
    """The outputs of the network that acted (logits, means or values), [T, N, outputs]."""
    running_returns: Leaf
    """Discounted sums of the rewards of each episode so far; reward normalisation measures their spread."""
    internals: Internals
    """The actor's memory before each action."""
    next_internals: Internals
    """Its memory after each action, even if the episode ended there."""
    log_std: Leaf = ()
    """The logarithm of the spread of Gaussian actions [T, N, A] if another process acted; () means the learner's."""
    weights: Leaf = ()
    """How much each timestep counts, 1 on average, if some are repeated; () if all count alike."""
    values: Leaf = ()
    """The values of the observations by the parameters that acted, if acting computed them; else ()."""


class Transitions(NamedTuple):
    """A batch drawn from a memory; leaves are [B, ...]."""

    observations: Array
    actions: Array
    rewards: Array
    """The discounted sum of n rewards."""
    discounts: Array
    """The factor of the value of `next_observations`: discount ** n, or 0 if the episode terminated."""
    next_observations: Array
    weights: Array
    """Importance weights that undo prioritised sampling (1 if sampling is uniform)."""
    single: Any = None
    """The one-step outcome of each (`steppe.memories.Following`), if the memory gives it."""
    demonstrated: Any = None
    """Which transitions were demonstrated [B], if there are demonstrations."""


@dataclass(frozen=True)
class AgentContext:
    """The facts about an experiment that an agent is built from."""

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
    """The number of devices that the environments are spread over."""
    preprocessing: Preprocessing | None = None
    """The stages between the environment's observations and `observation`."""
    episode_limit: int | None = None
    """The most timesteps of an episode, if that is known."""
    stacked_frames: tuple[int, int] | None = None
    """(how many, along which axis) if observations are known to be stacks of the last frames."""
    is_for_tensorforce: bool = False
    """Whether a file for TensorForce describes the agent."""


class TargetSync(NamedTuple):
    """When and how far the target network follows the parameters."""

    frequency: int = 0
    """How many updates pass between two moves; 0 without a target network."""
    weight: float = 0.0
    """How far it moves each time: 1 is a copy."""
    delay: int = 1
    """The target may move only after every `delay`-th update of a worker (policy_delay of td3)."""


class RolloutBatches(NamedTuple):
    """A trajectory prepared for learning, and its division into batches."""

    samples: Any
    """Leaves [B, ...]."""
    order: Any
    """Which samples each batch takes [batches, size]; () if one batch takes them all."""
