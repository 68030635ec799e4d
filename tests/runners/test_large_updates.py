"""Large updates use several cores, as host devices or by XLA's threads; small ones use one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import experiment

from steppe.runners import _kept_spreading
from steppe.runners.large_updates import devices_for
from steppe.runners.setup import shards_of, xla_threads_of

SUPPORT = Path(__file__).parents[1] / "support"
BREAKOUT = "ALE/Breakout-v5"
PICTURES = [{"type": "conv2d", "size": 32, "window": 8, "stride": 4}, {"type": "conv2d", "size": 64, "window": 4}]
WIDE = [{"type": "dense", "size": 512, "activation": "tanh"}] * 2

TRAINED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from runs import experiment, train
from steppe import runners
from steppe.records import checkpoints
folder, timesteps, resume = Path(sys.argv[2]), int(sys.argv[3]), len(sys.argv) > 4
agent = {"type": "ppo", "horizon": 64, "epochs": 1, "minibatches": 2}
fields = {"num_envs": 4, "environment": "ALE/Breakout-v5", "agent": agent, "total_timesteps": timesteps}
spec = experiment(**fields, evaluation={"every": 256, "episodes": 1}, max_timesteps_per_episode=20)
if resume:
    runners.check(spec, folder)  # as commands do in the same process
train(folder, spec, resume=resume)
checkpoint = checkpoints.load_latest(folder)
assert checkpoint.timestep == timesteps
print(checkpoint.manifest["shards"])
"""

WITH_THREADS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from runs import experiment, train
from steppe import runners
from steppe.records import checkpoints
folder, timesteps, resume = Path(sys.argv[2]), int(sys.argv[3]), len(sys.argv) > 4
agent = {"type": "sac", "batch_size": 256, "learning_starts": 50, "memory": {"capacity": 1000}}
spec = experiment("Pendulum-v1", agent, total_timesteps=timesteps)
runners.check(spec, folder if resume else None)  # as commands do in the same process
train(folder, spec, resume=resume)
checkpoint = checkpoints.load_latest(folder)
assert checkpoint.timestep == timesteps
assert str(checkpoint.manifest["xla_threads"]) == os.environ["NPROC"]
print(checkpoint.manifest["xla_threads"])
"""

LEARNS_AS_ONE = """
import sys
import jax, numpy as np
sys.path.insert(0, sys.argv[1])
from runs import experiment
from steppe.runners.compilation import prepare_jax
from steppe.runners.setup import make_engine
from steppe.runners._base import ChunkLimits
assert prepare_jax(2) == 2
agent = {"type": "vpg", "horizon": 8, "optimizer": "gradient_descent", "max_gradient_norm": None, "learning_rate": 0.1}
fields = {"num_envs": 4, "environment": {"id": "CartPole-v1", "backend": "gymnasium", "normalize_observations": True}}
learned = []
for shards in (1, 2):
    engine = make_engine(experiment(agent=agent, **fields), shards)
    assert engine.agent.context.shards == shards
    engine.begin(1)
    before = np.asarray(engine._learner.agent.params)
    chunk = engine.advance(1, 0, ChunkLimits(None, None))
    state = engine._learner.agent
    learned.append([np.asarray(leaf) for leaf in (state.params, *state.observations)])
    assert np.abs(learned[-1][0] - before).max() > 1e-4
    assert chunk.columns["updates"].tolist() == [1] and chunk.is_healthy
for one, two in zip(*learned):
    np.testing.assert_allclose(one, two, rtol=2e-4, atol=2e-5)
"""


@pytest.mark.parametrize(
    ("environment", "agent", "fields", "devices"),
    [
        (BREAKOUT, {"type": "ppo"}, {"num_envs": 8}, 4),
        (BREAKOUT, {"type": "ppo"}, {"num_envs": 6}, 2),
        (BREAKOUT, {"type": "ppo"}, {"num_envs": 5}, 1),
        (BREAKOUT, {"type": "ppo", "horizon": 16}, {"num_envs": 8}, 1),
        (BREAKOUT, {"type": "ppo", "horizon": 256}, {"num_envs": 4}, 4),
        (BREAKOUT, {"type": "ppo", "horizon": 258}, {"num_envs": 4}, 2),
        (BREAKOUT, {"type": "ppo", "optimization_steps": 5, "subsampling_fraction": 0.01}, {"num_envs": 8}, 1),
        (BREAKOUT, {"type": "a2c", "horizon": 4}, {"num_envs": 16}, 1),
        (BREAKOUT, {"type": "impala", "horizon": 20}, {"num_envs": 16}, 4),
        (BREAKOUT, {"type": "ppo"}, {"num_envs": 8, "network": [{"type": "flatten"}, *WIDE]}, 1),
        (BREAKOUT, {"type": "dqn"}, {}, 1),
        ("steppe_toys:Pictures", {"type": "ppo", "horizon": 256}, {"num_envs": 8, "network": PICTURES}, 2),
        ("LunarLander-v3", {"type": "ppo"}, {"num_envs": 64, "network": WIDE}, 1),
    ],
)
def test_large_updates_of_pictures_are_shared_by_the_cores(environment, agent, fields, devices):
    assert shards_of(experiment(environment, agent, **fields), cores=4) == devices


def test_there_are_never_more_devices_than_cores():
    spec = experiment(BREAKOUT, {"type": "ppo"}, num_envs=8)
    assert [devices_for(spec, cores) for cores in (1, 2, 3, 4)] == [1, 2, 2, 4]


def test_two_devices_learn_the_same_from_host_environments_as_one():
    run(LEARNS_AS_ONE)


def test_a_run_keeps_its_number_of_devices_on_a_machine_with_fewer_cores(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    assert run(TRAINED, str(tmp_path), "512", env=environment | {"STEPPE_CORES": "2"}) == "2"
    assert run(TRAINED, str(tmp_path), "1024", "resume", env=environment | {"STEPPE_CORES": "1"}) == "2"


@pytest.mark.parametrize(
    ("agent", "fields", "threads"),
    [
        ({"type": "sac"}, {}, 2),
        ({"type": "sac", "batch_size": 100}, {}, 1),
        ({"type": "sac", "batch_size": 1024}, {}, 4),
        ({"type": "sac"}, {"network": [{"type": "dense", "size": 64}] * 2}, 1),
        ({"type": "sac"}, {"network": [{"type": "dense", "size": 2048}]}, 1),
        ({"type": "td3"}, {"network": [{"type": "flatten"}, *WIDE]}, 4),
        ({"type": "naf"}, {"run_mode": "async"}, 2),
        ({"type": "dqn"}, {}, 1),
        ({"type": "dqn", "batch_size": 64}, {"environment": BREAKOUT}, 1),
        ({"type": "dqn", "batch_size": 512}, {"environment": BREAKOUT}, 1),
        ({"type": "dqn", "batch_size": 256}, {"network": WIDE}, 4),
        ({"type": "ppo"}, {"network": WIDE}, 1),
    ],
)
def test_wide_layers_that_learn_from_a_memory_get_threads_of_xla(agent, fields, threads):
    spec = experiment(**({"environment": "LunarLander-v3", "agent": agent} | fields))
    assert xla_threads_of(spec, cores=4) == threads


def test_a_run_keeps_its_number_of_threads_on_a_machine_with_fewer_cores(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    assert run(WITH_THREADS, str(tmp_path), "100", env=environment | {"STEPPE_CORES": "2"}) == "2"
    assert run(WITH_THREADS, str(tmp_path), "200", "resume", env=environment | {"STEPPE_CORES": "1"}) == "2"


def test_a_checkpoint_that_does_not_say_its_threads_had_one():
    assert _kept_spreading({"timestep": 10, "shards": 1}) == (1, 1)
    assert _kept_spreading({}) == (None, None)


def run(script, *arguments, env=None):
    """The last line printed by a new process, since the number of host devices is fixed when JAX starts."""
    command = [sys.executable, "-c", script, str(SUPPORT), *arguments]
    finished = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert finished.returncode == 0, finished.stderr
    return (finished.stdout.splitlines() or [""])[-1]
