"""Endpoints with made-up policies, inside the test's own process and without a server."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from policies import describe, tensors_for
from steppe.policies.policy import Policy
from steppe.serve import EndpointLimits, Question, load_endpoint
from steppe.specs.serving import GraphSpec
from steppe.specs.spaces import Box, Discrete


def save_policy(folder, seed=0, timestep=7, **settings):
    """Saves a policy, by default with four observed numbers and three choices."""
    description = replace(describe(**settings), timestep=timestep)
    return Policy(description, tensors_for(description, seed)).save(folder)


def save_constant(folder, action, observation=None, space=None, timestep=1):
    """Saves a policy that always chooses the same action."""
    description = describe(observation or Box((4,)), space or Discrete(10), layers=None, kind="constant")
    return Policy(replace(description, timestep=timestep), {"constant/action": np.asarray(action)}).save(folder)


def cart_pole(backend):
    """The observation space of CartPole-v1; the compiled version does not round its bounds to 32 bits."""
    position, angle = (4.8, 0.41887902047863906) if backend == "compiled" else (4.800000190734863, 0.41887903213500977)
    high = (position, np.inf, angle, np.inf)
    return Box((4,), tuple(-each for each in high), high)


def make_endpoint(root, graph, **settings):
    """An endpoint of a graph whose policies p0, p1, ... are in `root`; missing ones are made, pN always chooses N."""
    spec = GraphSpec.model_validate(graph)
    for node in spec.nodes():
        if node.kind == "model" and not (Path(root) / node.policy).exists():
            save_constant(Path(root) / node.policy, int(node.policy.removeprefix("p")))
    limits = EndpointLimits(**settings.pop("limits", {}))
    return load_endpoint(spec, start=root, limits=limits, **{"folder": Path(root) / "serving", "seed": 1} | settings)


def question(rows=1, **fields):
    """A question whose observations are zeros."""
    return Question(np.zeros((rows, 4), np.float32), **fields)


@contextlib.asynccontextmanager
async def serving(*arguments, **settings):
    """Starts an endpoint and closes it at the end."""
    endpoint = make_endpoint(*arguments, **settings)
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.close()


def run(coroutine):
    """Runs a coroutine to its end."""
    return asyncio.run(coroutine)
