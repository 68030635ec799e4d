"""Made-up demonstrations for any spaces, and a hand-written policy that balances CartPole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from steppe.policies.policy import Policy, PolicyDescription
from steppe.records.demonstrations import Demonstrations
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space

EPISODES = (5, 1, 7, 3)
"""The lengths of the made-up episodes; every second one is truncated."""
_FOLDER = tempfile.TemporaryDirectory(prefix="steppe-demonstrations-")


def made_up(observation: Space, action: Space, episodes=EPISODES, seed=0) -> Demonstrations:
    """Random demonstrations that fit the spaces."""
    rng, count = np.random.default_rng(seed), sum(episodes)
    last = np.cumsum(episodes) - 1
    terminated, truncated = np.zeros((2, count), bool)
    terminated[last[::2]] = truncated[last[1::2]] = True
    observations = drawn(observation, rng, count)
    next_observations = drawn(observation, rng, count)
    # Within an episode, the next observation of a timestep is the observation of the timestep after it.
    continues = ~(terminated | truncated)[:-1]
    next_observations[:-1][continues] = observations[1:][continues]
    arrays = {
        "observations": observations,
        "actions": drawn(action, rng, count),
        "rewards": rng.normal(size=count).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "next_observations": next_observations,
    }
    return Demonstrations("Test-v0", observation, action, arrays, float(arrays["rewards"].sum() / len(episodes)))


def drawn(space: Space, rng: np.random.Generator, count: int, mean=0.0, deviation=1.0) -> np.ndarray:
    """[count, ...]: random elements of a space; floats are normal and ignore the space's bounds."""
    match space:
        case Discrete():
            return rng.integers(space.start, space.start + space.n, count).astype(np.int32)
        case MultiDiscrete():
            return np.stack([rng.integers(0, n, count) for n in space.nvec], -1).astype(np.int32)
    if space.dtype == "uint8":
        return rng.integers(0, 256, (count, *space.shape)).astype(np.uint8)
    return rng.normal(mean, deviation, (count, *space.shape)).astype(np.float32)


def steady_policy(epsilon=0.0) -> Policy:
    """A policy that pushes the cart to the side to which the pole falls, and balances it for all 500 timesteps."""
    weights = np.array([0.1, 0.3, 1.0, 1.0], np.float32)
    description = PolicyDescription(
        agent="dqn",
        environment="CartPole-v1",
        timestep=0,
        observation=Box((4,)),
        action=Discrete(2),
        network=NetworkSpec([{"type": "dense", "size": 4, "activation": "none"}]),
        head={"kind": "q_values", "epsilon": epsilon},
    )
    tensors = {
        "torso/0_dense/kernel": np.eye(4),
        "torso/0_dense/bias": np.zeros(4),
        "head/kernel": np.stack([-weights, weights], -1),
        "head/bias": np.zeros(2),
    }
    return Policy(description, tensors)


def random_policy(observation: Space, action: Space, environment="") -> Policy:
    """A policy that chooses actions uniformly."""
    return Policy(PolicyDescription("random", environment, 0, observation, action), {})


def made_up_file(observation: Space, action: Space) -> str:
    """The path of a file with made-up demonstrations, which exists until the tests end."""
    path = Path(_FOLDER.name) / f"{abs(hash((observation, action)))}.safetensors"
    return str(path if path.exists() else made_up(observation, action).save(path))
