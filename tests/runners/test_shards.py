"""Many environments are spread over host devices, which learn the same as one device with all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steppe.runners.compilation import shards_for

SUPPORT = Path(__file__).parents[1] / "support"

GRADIENTS_AGREE = """
import dataclasses
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from steppe.runners.compilation import prepare_jax
assert prepare_jax(2) == 2
from steppe import agents
from steppe.agents._base import AgentContext, Trajectory
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.spaces import Box, Discrete

rng = np.random.default_rng(0)
situation = AgentContext(Box((3,)), Discrete(2), num_envs=8, normalize_observations=True, normalize_rewards=True)
settings = {"type": "vpg", "horizon": 4, "optimizer": "gradient_descent", "max_gradient_norm": None}
contexts = (situation, dataclasses.replace(situation, shards=2))
whole, spread = (agents.make(AgentSpec.model_validate(settings), each) for each in contexts)
draw = lambda *shape: rng.standard_normal((4, 8, *shape)).astype(np.float32)
observations, terminated, truncated = draw(3), draw() > 1, draw() > 1
following = np.concatenate([observations[1:], draw(3)[:1]])
following = np.where((terminated | truncated)[..., None], draw(3), following)
actions = rng.integers(0, 2, (4, 8))
trajectory = Trajectory(observations, actions, draw(), terminated, truncated, following, draw(2), draw(), {}, {})
state = whole.init(jax.random.key(0))
one, _ = jax.jit(whole.update)(state, trajectory)
two, _ = jax.jit(jax.shard_map(
    spread.update, mesh=Mesh(np.array(jax.devices()), ("shards",)), in_specs=(P(), P(None, "shards")),
    out_specs=(P(), P()), check_vma=False,
))(state, trajectory)
for name in ("params", "observations", "returns"):
    for a, b in zip(jax.tree.leaves(getattr(one, name)), jax.tree.leaves(getattr(two, name))):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
assert np.abs(one.params - state.params).max() > 1e-4
"""

RESUMES_EXACTLY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from runs import experiment, train
from steppe.records import checkpoints

agent = {"type": "ppo", "horizon": 8, "minibatches": 2, "epochs": 2}
spec = experiment(agent=agent, num_envs=512, total_timesteps=4 * 4096, evaluation={"every": 8192, "episodes": 4})
folder = Path(sys.argv[2])
train(folder / "whole", spec)
train(folder / "halves", spec.model_copy(update={"total_timesteps": 2 * 4096}))
train(folder / "halves", spec, resume=True)
whole, halves = (checkpoints.load_latest(folder / name) for name in ("whole", "halves"))
assert whole.manifest["shards"] == halves.manifest["shards"] == 2, whole.manifest
assert whole.timestep == halves.timestep == 4 * 4096
for name, array in whole.arrays.items():
    assert array.tobytes() == halves.arrays[name].tobytes(), name
"""


@pytest.mark.parametrize(
    ("num_envs", "cores", "shards"),
    [(8, 2, 1), (511, 2, 1), (512, 2, 2), (1024, 2, 2), (1024, 8, 4), (1026, 8, 2), (4096, 1, 1), (4096, 64, 16)],
)
def test_environments_are_spread_only_if_there_are_enough(num_envs, cores, shards):
    assert shards_for(num_envs, cores) == shards


def test_two_devices_learn_the_same_as_one():
    finished = run(GRADIENTS_AGREE)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.skipif(shards_for(512) < 2, reason="needs two cores")
def test_a_spread_run_resumes_bit_for_bit(tmp_path):
    finished = run(RESUMES_EXACTLY, str(SUPPORT), str(tmp_path))
    assert finished.returncode == 0, finished.stderr


def run(script, *arguments):
    """A new process, since the number of host devices is fixed when JAX starts."""
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=280)
