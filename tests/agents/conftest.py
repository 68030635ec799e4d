"""Agents for tiny problems, and reference networks in plain NumPy with float64."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import optax  # noqa: F401  before jax.jit is patched, which its own functions must not see
import pytest

from steppe import agents
from steppe.agents._base import AgentContext, Trajectory, Transitions
from steppe.agents.core.policy_value_networks import PolicyBatch
from steppe.runners.compilation import prepare_jax
from steppe.spec_files import read_agent
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete
from steppe.tensorforce import translate_agent

QUICKLY = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
TANH_4 = NetworkSpec([{"type": "dense", "size": 4, "activation": "tanh"}])


@pytest.fixture(scope="module", autouse=True)
def _jax_as_in_training():
    """JAX set up as in training, but with few optimisations: these programs are tiny and run once or twice."""
    prepare_jax()
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICKLY))
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def make_agent():
    """make_agent("ppo", action_space, observation=..., num_envs=..., clip=..., ...): other keywords are settings."""

    def make(type, space, /, observation=Box((3,)), network=TANH_4, num_envs=2, context=(), **settings):  # noqa: B008
        described = AgentContext(
            observation=observation, action=space, network=network, num_envs=num_envs, **dict(context)
        )
        return agents.make(read_agent({"type": type, **settings}), described)

    return make


@pytest.fixture(scope="session")
def checked():
    """checked("ppo", clip=..., ...): the settings from a user's file, or the text of the user's error."""

    def check(type, **settings):
        spec = read_agent({"type": type, **settings})
        return spec.settings_as(agents.settings_class(spec.type))

    return check


@pytest.fixture(scope="session")
def notices_of(checked):
    """notices_of("ppo", clip=..., ...): the notices about an agent's file."""

    def told(type, **settings):
        translation = translate_agent({"type": type, **settings})
        return (*translation.notices, *checked(type, **settings).notices)

    return told


@pytest.fixture(scope="session")
def shaken():
    """A fresh state without parameters near zero, so that a missing bias is noticed."""

    def shake(agent, seed=0, size=0.4):
        state = agent.init(jax.random.key(seed))
        noise = np.random.default_rng(seed).standard_normal((2, *state.params.shape)).astype(np.float32)
        state = state._replace(params=state.params + size * noise[0])
        # The target network, if there is one, differs from the online network.
        target = state.params + 1.5 * size * noise[1] if state.target.size else state.target
        return state._replace(target=target)

    return shake


@pytest.fixture(scope="session")
def random_batch():
    """A minibatch of policy-gradient agents with random actions of a space and random values."""

    def draw(space, seed=0, size=16):
        rng = np.random.default_rng(seed)
        return PolicyBatch(
            observations=rng.normal(size=(size, 3)).astype(np.float32),
            actions=_random_actions(space, rng, size),
            outputs=np.zeros((size, 1), np.float32),
            # A wide spread, so that ratios fall on both sides of the clip.
            log_probs=rng.normal(-1.5, 0.5, size).astype(np.float32),
            advantages=rng.normal(0.5, 2.0, size).astype(np.float32),
            returns=rng.normal(size=size).astype(np.float32),
            internals={},
            is_first=(),
        )

    return draw


@pytest.fixture(scope="session")
def random_transitions():
    """A batch of a memory: full n-step windows, windows cut by a truncation, and terminated episodes."""

    def draw(space, seed=0, size=12):
        rng = np.random.default_rng(seed)
        actions = _random_actions(space, rng, size)
        return Transitions(
            observations=rng.normal(size=(size, 3)).astype(np.float32),
            actions=np.clip(actions, -1.0, 1.0) if isinstance(space, Box) else actions,
            rewards=rng.normal(0.0, 2.0, size).astype(np.float32),
            discounts=rng.choice([0.9**3, 0.9, 0.0], size).astype(np.float32),
            next_observations=rng.normal(size=(size, 3)).astype(np.float32),
            weights=rng.uniform(0.2, 1.0, size).astype(np.float32),
        )

    return draw


@pytest.fixture(scope="session")
def random_trajectory():
    """A random trajectory [T, N, ...], with the real outputs and recurrent states of the agent's networks (or
    `outputs`)."""

    def draw(agent, state=None, seed=1, outputs=None, ended=0.2):
        rng = np.random.default_rng(seed)
        space, lead = agent.context.action, (agent.horizon, agent.context.num_envs)
        observations, next_observations = rng.normal(size=(2, *lead, 3)).astype(np.float32)
        if outputs is None:
            outputs = agent.outputs(agent.actor_params(state), observations.reshape(-1, 3), {})[0]
        terminated, truncated = rng.random((2, *lead)) < ended
        # Within an episode the successor is the next observation.
        goes_on = ~(terminated | truncated)[:-1, :, None]
        next_observations[:-1] = np.where(goes_on, observations[1:], next_observations[:-1])
        return Trajectory(
            observations=observations,
            actions=_random_actions(space, rng, *lead),
            rewards=rng.normal(size=lead).astype(np.float32),
            terminated=terminated,
            truncated=truncated & ~terminated,
            next_observations=next_observations,
            outputs=np.asarray(outputs).reshape(*lead, -1),
            running_returns=rng.normal(size=lead).astype(np.float32),
            internals={},
            next_internals={},
        )

    return draw


def _random_actions(space, rng, *lead):
    match space:
        case Discrete():
            return rng.integers(0, space.n, lead).astype(np.int32)
        case MultiDiscrete():
            return np.stack([rng.integers(0, n, lead) for n in space.nvec], -1).astype(np.int32)
    return rng.normal(0.0, 0.5, size=(*lead, space.size)).astype(np.float32)


@pytest.fixture(scope="session")
def in_numpy():
    """The networks and losses in float64: .tensors(agent, vector), .torso, .dense, .slope, .advantages and more."""
    return SimpleNamespace(
        tensors=_tensors, torso=_torso, dense=_dense, log_softmax=_log_softmax, slope=_slope, advantages=_advantages
    )


def _tensors(agent, vector):
    """{"policy/torso/0_dense/kernel": array, ...} of a parameter vector."""
    return agent.layout.named(np.asarray(vector, np.float64))


def _torso(tensors, prefix, observations):
    """Features of the TANH_4 network."""
    return np.tanh(_dense(tensors, f"{prefix}torso/0_dense", observations))


def _dense(tensors, name, inputs):
    return inputs @ tensors[f"{name}/kernel"] + tensors[f"{name}/bias"]


def _log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _slope(function, vector, width=1e-6):
    """The gradient of a scalar function at a vector, by central differences."""
    vector = np.asarray(vector, np.float64)
    slope = np.zeros_like(vector)
    for i in range(vector.size):
        step = np.zeros_like(vector)
        step[i] = width
        slope[i] = (function(vector + step) - function(vector - step)) / (2 * width)
    return slope


def _advantages(trajectory, values, next_values, discount, gae_lambda):
    """Generalised advantages [T, N] of a trajectory, timestep by timestep from the last."""
    advantages, following = np.zeros(trajectory.rewards.shape), 0.0
    for t in reversed(range(len(advantages))):
        future = discount * next_values[t] * ~trajectory.terminated[t]
        error = trajectory.rewards[t] + future - values[t]
        goes_on = ~(trajectory.terminated[t] | trajectory.truncated[t])
        following = error + discount * gae_lambda * following * goes_on
        advantages[t] = following
    return advantages
