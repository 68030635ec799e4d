"""Test benches for the agents' conformance suites, and the cases: agents with kinds of observations and actions."""

from __future__ import annotations

from functools import cached_property, lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from demonstrated import drawn, made_up_file

from steppe import agents
from steppe.agents._base import AgentContext, TrainState, Trajectory, Transitions
from steppe.agents.core import normalizers
from steppe.memories import Following
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

ENVS = 4
SAMPLES = 16
"""Observations in every call of `act`; another number would be another program to compile."""
DENSE = NetworkSpec([{"type": "dense", "size": 8, "activation": "tanh"}])
CONVOLUTION = NetworkSpec(
    [
        {"type": "conv2d", "size": 4, "window": 3, "stride": 2},
        {"type": "flatten"},
        {"type": "dense", "size": 8, "activation": "relu"},
    ]
)
NETWORKS = {
    "image": CONVOLUTION,
    "lstm": NetworkSpec([{"type": "lstm", "size": 5}]),
    "gru": NetworkSpec([*DENSE.root, {"type": "gru", "size": 5}]),
}
OBSERVATIONS = {
    "vector": Box((3,)),
    "normalised": Box((3,)),
    "image": Box((12, 12, 1), (0.0,), (255.0,), "uint8"),
    "one number": Discrete(5, start=2),
    "several numbers": MultiDiscrete((3, 4)),
    "lstm": Box((3,)),
    "gru": Box((3,)),
}
ACTIONS = {
    "discrete": Discrete(3),
    "discrete from 2": Discrete(3, start=2),
    "multi-discrete": MultiDiscrete((2, 3)),
    "box": Box((2,), (-1.0, -0.1), (1.0, 0.2)),
    "box of two axes": Box((2, 2), (-3.0,), (1.0,)),
    "unbounded box": Box((2, 2)),
    "yes or no": MultiDiscrete((2, 2)),
}
ONE_OF_SOME = ["discrete from 2", "multi-discrete"]
BOUNDED = ["box", "box of two axes"]

SETTINGS = {
    "random": {},
    "constant": {"action": 0},
    "vpg": {"horizon": 4},
    "a2c": {"horizon": 4},
    "a3c": {"horizon": 4},
    "ppo": {"horizon": 4, "epochs": 2, "minibatches": 2},
    "trpo": {"horizon": 4, "cg_max_iterations": 3},
    "impala": {"horizon": 4},
    "dqn": {"batch_size": SAMPLES, "dueling": True, "exploration": {"type": "constant", "constant": 0.3}},
    "ddqn": {"batch_size": SAMPLES},
    "dqn_nstep": {"batch_size": SAMPLES},
    "dqfd": {"batch_size": SAMPLES, "exploration": {"type": "constant", "constant": 0.3}},
    "qr_dqn": {"batch_size": SAMPLES, "quantiles": 5, "noisy": True, "dueling": True},
    "pqn": {"horizon": 4, "epochs": 2, "minibatches": 2, "dueling": True},
    "ddpg": {"batch_size": SAMPLES, "learning_starts": 0},
    "td3": {"batch_size": SAMPLES, "learning_starts": 0, "policy_delay": 1},
    "sac": {"batch_size": SAMPLES, "learning_starts": 0},
    "naf": {"batch_size": SAMPLES, "learning_starts": 0},
}
REQUIRED = {"dqfd": {"demonstrations": "good.safetensors"}}
"""Settings without a default; a bench makes the file of demonstrations."""
TRIED_ACTIONS = {
    "random": list(ACTIONS),
    "constant": list(ACTIONS),
    "ppo": list(ACTIONS),
    "vpg": ["unbounded box"],
    "a2c": ["multi-discrete"],
    "a3c": ["discrete from 2"],
    "trpo": ["discrete from 2", "box"],
    "impala": ["box"],
    "dqn": ["discrete", *ONE_OF_SOME],
    "ddqn": ["discrete from 2"],
    "dqn_nstep": ["multi-discrete"],
    "dqfd": ONE_OF_SOME,
    "qr_dqn": ONE_OF_SOME,
    "pqn": ONE_OF_SOME,
    "ddpg": BOUNDED,
    "td3": BOUNDED,
    "sac": BOUNDED,
    "naf": BOUNDED,
}
BETA, BERNOULLI = (("distribution", "beta"),), (("distribution", "bernoulli"),)
# Every action space with one kind of observation, every kind of observation with one action space.
CASES = [(agent, action, "vector", ()) for agent, spaces in TRIED_ACTIONS.items() for action in spaces]
CASES += [
    (agent, TRIED_ACTIONS[agent][0], observation, ())
    for agent in ("random", "ppo", "dqn", "pqn", "sac", "naf")
    for observation in ("normalised", "image", "one number", "several numbers")
]
CASES += [("vpg", "discrete from 2", "lstm", ()), ("impala", "discrete from 2", "lstm", ())]
CASES += [("ppo", "box", "gru", ()), ("a2c", "multi-discrete", "gru", (("share_network", True),))]
CASES += [("ppo", "box", "vector", BETA), ("ppo", "yes or no", "vector", BERNOULLI)]
CASES += [("dqfd", "discrete from 2", "normalised", ()), ("dqfd", "multi-discrete", "image", ())]
CASES += [("td3", "box", "normalised", (("exploration", "ornstein_uhlenbeck"),))]
CASES += [("sac", "box", "normalised", (("drifting_noise", "ornstein_uhlenbeck"),))]
# Updates take long to compile, so each algorithm, each kind of network and each kind of action comes once.
LEARNING = [
    ("vpg", "unbounded box", "vector", ()),
    ("a2c", "multi-discrete", "gru", (("share_network", True),)),
    ("ppo", "box", "gru", ()),
    ("ppo", "box", "vector", BETA),
    ("ppo", "discrete", "image", ()),
    ("trpo", "discrete from 2", "vector", ()),
    ("impala", "discrete from 2", "lstm", ()),
    ("dqn", "discrete", "normalised", ()),
    ("dqfd", "discrete from 2", "normalised", ()),
    ("dqfd", "multi-discrete", "vector", ()),
    ("qr_dqn", "multi-discrete", "vector", ()),
    ("pqn", "multi-discrete", "vector", ()),
    ("ddpg", "box of two axes", "vector", ()),
    ("td3", "box", "normalised", (("exploration", "ornstein_uhlenbeck"),)),
    ("sac", "box", "vector", ()),
    ("sac", "box", "image", ()),
    ("sac", "box of two axes", "vector", (("drifting_noise", "ornstein_uhlenbeck"),)),
    ("naf", "box of two axes", "vector", ()),
]
LEARNERS = set(SETTINGS) - {"random", "constant"}
SAME_ALGORITHM = {"a3c": "a2c", "ddqn": "dqn", "dqn_nstep": "dqn"}
"""Agents that differ from another one in their settings only."""


class Bench:
    """An agent with given spaces and settings, and its compiled functions."""

    def __init__(self, agent, action, observation, settings=()):
        self.action, self.observation = ACTIONS[action], OBSERVATIONS[observation]
        context = AgentContext(
            observation=self.observation,
            action=self.action,
            network=NETWORKS.get(observation, DENSE),
            num_envs=ENVS,
            environment="Test-v0",
            normalize_observations=observation == "normalised",
        )
        own = {**SETTINGS[agent], **dict(settings)}
        if agent in REQUIRED:
            own["demonstrations"] = made_up_file(self.observation, self.action)
        self.agent = agents.make(AgentSpec.model_validate({"type": agent, **own}), context)
        self.act = jax.jit(self.agent.act)
        self.update = jax.jit(self.agent.update)

    @cached_property
    def state(self) -> TrainState:
        """A state whose parameters prefer some actions, with statistics if observations are normalised."""
        state = self.agent.init(jax.random.key(1))
        noise = np.random.default_rng(1).normal(0.0, 0.5, state.params.shape).astype(np.float32)
        state = state._replace(params=state.params + noise)
        if self.agent.normalizes_observations:
            observations = np.random.default_rng(2).normal(5.0, 3.0, (8, ENVS, 3)).astype(np.float32)
            state = state._replace(observations=normalizers.merge(state.observations, observations))
        return state

    @cached_property
    def observations(self):
        """[SAMPLES, ...]: observations as environments return them."""
        return drawn(self.observation, np.random.default_rng(3), SAMPLES, mean=4.0, deviation=3.0)

    @cached_property
    def internals(self):
        """[SAMPLES, ...]: the actor's memory in the middle of episodes."""
        rng = np.random.default_rng(5)
        initial = self.agent.initial_internals((SAMPLES,))
        return jax.tree.map(lambda leaf: rng.normal(0.0, 0.3, leaf.shape).astype(np.float32), initial)

    def draw(self, seed=3):
        """(actions, outputs, internals) of `act` with noise."""
        noise = self.agent.draw_noise(jax.random.key(seed), (SAMPLES,))
        return self.act(self.agent.actor_params(self.state), self.observations, noise, 5, self.internals)

    @cached_property
    def experience(self):
        """The experience that the agent learns from, as a runner or a memory passes it."""
        rng = np.random.default_rng(4)
        actions, outputs, next_internals = self.draw()
        rewards = rng.normal(size=SAMPLES).astype(np.float32)
        next_observations = self.observations[::-1]
        if self.agent.experience == "transitions":
            discounts = rng.choice([0.0, 0.9], SAMPLES).astype(np.float32)
            weights = np.ones_like(rewards)
            batch = Transitions(self.observations, actions, rewards, discounts, next_observations, weights)
            if self.agent.type != "dqfd":
                return batch
            single = Following(rewards[::-1], np.where(discounts > 0, np.float32(0.99), 0.0), self.observations)
            return batch._replace(single=single, demonstrated=np.arange(SAMPLES) % 3 == 0)
        terminated, truncated = rng.random((2, SAMPLES)) < 0.2
        flat = Trajectory(
            self.observations,
            actions,
            rewards,
            terminated,
            truncated,
            next_observations,
            outputs,
            running_returns=rewards,
            internals=self.internals,
            next_internals=next_internals,
        )
        return jax.tree.map(lambda leaf: leaf.reshape(-1, ENVS, *leaf.shape[1:]), flat)


bench_of = lru_cache(maxsize=None)(Bench)


def named(case):
    """The id of a case."""
    agent, action, observation, settings = case
    return "-".join([agent, action, observation, *(str(value) for _, value in settings)])


def described(tree):
    """Structure, shapes and dtypes of a tree, for comparisons."""
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def same(first, second):
    """Whether two states agree bit for bit."""
    plain = [jax.tree.map(_plain, tree) for tree in (first, second)]
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, plain), strict=True))


def _plain(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
