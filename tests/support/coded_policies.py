"""Untrusted policies and modules, which leave a file behind if they are imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from steppe.policies import policy_folder
from steppe.policies.description import PolicyDescription
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

MARKER = "code-ran"
LAYER = """
from pathlib import Path
import flax.linen as nn

Path({marker!r}).touch()


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x
"""
ENVIRONMENT = """
from pathlib import Path
import gymnasium

Path({marker!r}).touch()


def make():
    return gymnasium.make("CartPole-v1")


def wrap(env):
    return env
"""


def write_module(folder: Path, name: str, text: str = LAYER) -> Path:
    """Writes a module and returns the path of the file that importing it would leave."""
    marker = folder / MARKER
    (folder / f"{name}.py").write_text(text.format(marker=str(marker)))
    return marker


def describe_coded(layer: str, timestep: int = 7, environment: str = "CartPole-v1") -> dict[str, Any]:
    """The description of a policy for CartPole-v1 whose network is one custom layer."""
    network = NetworkSpec([{"type": layer}])
    description = PolicyDescription(
        "test", environment, timestep, Box((4,)), Discrete(2), network, {"kind": "q_values"}
    )
    return description.to_json()


def save_coded(folder: Path, layer: str, timestep: int = 7, environment: str = "CartPole-v1") -> Path:
    """Writes such a policy without importing its layer, as an attacker could; the layer has no parameters."""
    tensors = {"head/kernel": np.ones((4, 2), np.float32), "head/bias": np.array([0.0, 1.0], np.float32)}
    policy_folder.write(folder, describe_coded(layer, timestep, environment), tensors)
    return folder
