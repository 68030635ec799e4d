"""Agents for tiny problems, and their networks once more in plain NumPy with float64."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from steppe import agents
from steppe.agents._base import Situation
from steppe.runners.compilation import prepare_jax
from steppe.specs.agent import AgentSpec
from steppe.specs.network import NetworkSpec
from steppe.specs.spaces import Box

TANH_4 = NetworkSpec([{"type": "dense", "size": 4, "activation": "tanh"}])


@pytest.fixture(scope="session", autouse=True)
def _jax_as_in_training() -> None:
    prepare_jax()


@pytest.fixture(scope="session")
def make_agent():
    """make_agent("ppo", action_space, observation=..., num_envs=..., clip=..., ...): other words are settings."""

    def make(type, space, /, observation=Box((3,)), network=TANH_4, num_envs=2, situation=(), **settings):  # noqa: B008
        described = Situation(
            observation=observation, action=space, network=network, num_envs=num_envs, **dict(situation)
        )
        return agents.make(AgentSpec.model_validate({"type": type, **settings}), described)

    return make


@pytest.fixture(scope="session")
def shaken():
    """A fresh state whose parameters are all away from zero, so that a forgotten bias shows."""

    def shake(agent, seed=0, size=0.4):
        state = agent.init(jax.random.key(seed))
        noise = np.random.default_rng(seed).standard_normal(state.params.shape).astype(np.float32)
        return state._replace(params=state.params + size * noise)

    return shake


@pytest.fixture(scope="session")
def in_numpy():
    """The networks and losses in float64: .tensors(agent, vector), .torso, .dense, .log_softmax, .slope."""
    return SimpleNamespace(tensors=_tensors, torso=_torso, dense=_dense, log_softmax=_log_softmax, slope=_slope)


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
