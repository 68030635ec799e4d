"""Policies with made-up tensors, for any description."""

from __future__ import annotations

import numpy as np

from steppe.policies.policy import Policy, PolicyDescription, tensor_shapes
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

DENSE = [{"type": "dense", "size": 16, "activation": "tanh"}, {"type": "dense", "size": 8, "activation": "relu"}]
MEMORY = [{"type": "dense", "size": 6}, {"type": "lstm", "size": 5}, {"type": "gru", "size": 3}]


def describe(observation=None, action=None, layers=DENSE, kind="categorical", normalizer=None, **head):
    """A description, by default with four observed numbers and three choices; `head` are fields of the head."""
    spaces = (observation or Box((4,)), action or Discrete(3))
    network = None if layers is None else NetworkSpec(layers)
    return PolicyDescription("test", "Test-v0", 7, *spaces, network, {"kind": kind, **head}, normalizer)


def tensors_for(description, seed=0):
    """Random values for every tensor of the description, by name."""
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(description)
    return {name: rng.random(shape, np.float32) - 0.3 * ("var" not in name) for name, shape in shapes.items()}


def make_policy(*args, **settings):
    """A policy with random tensors; the arguments are those of `describe`."""
    description = describe(*args, **settings)
    return Policy(description, tensors_for(description))


def flatten(tree, prefix=""):
    """Nested parameters as flat tensors: {"torso": {"0_dense": {"kernel": k}}} -> {"torso/0_dense/kernel": k}."""
    flat = {}
    for name, value in tree.items():
        path = f"{prefix}/{name}" if prefix else name
        flat.update(flatten(value, path) if isinstance(value, dict) else {path: value})
    return flat
