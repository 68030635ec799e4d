"""A few demonstrated episodes save many timesteps of exploration."""

from __future__ import annotations

from statistics import median

import pytest
from demonstrated import steady_policy
from runs import experiment

from steppe.runners._base import ChunkLimits
from steppe.runners.play.recording import RecordingRequest, record
from steppe.runners.setup import make_engine

pytestmark = pytest.mark.learning

TIMESTEPS = 2_000
SEEDS = (1, 2, 3)


def median_return(agent):
    """The mean return of 20 greedy episodes after a short training, as the median over the seeds."""
    spec = experiment(agent=agent, num_envs=1, total_timesteps=TIMESTEPS)
    engine = make_engine(spec)
    return median(greedy_return(engine, seed) for seed in SEEDS)


def greedy_return(engine, seed):
    engine.begin(seed)
    timestep = 0
    while timestep < TIMESTEPS:
        left = (TIMESTEPS - timestep) // engine.timesteps_per_iteration
        chunk = engine.advance(min(left, engine.most_iterations), timestep, ChunkLimits())
        assert chunk.is_healthy
        timestep += chunk.iterations * engine.timesteps_per_iteration
    return engine.evaluate(20, True, seed=5)[0]


def test_five_demonstrated_episodes_teach_cartpole_in_two_thousand_timesteps(tmp_path):
    shown, recorded = record(steady_policy(), experiment(agent="random"), RecordingRequest(episodes=5))
    assert recorded.mean_return == 500
    path = str(shown.save(tmp_path / "good.safetensors"))
    shared = {"n_step": 10, "learning_starts": 0, "exploration": {"type": "constant", "constant": 0.01}}
    with_demonstrations = median_return({"type": "dqfd", "demonstrations": path})
    without = median_return({"type": "dqn", **shared})
    assert with_demonstrations > 400, (with_demonstrations, without)
    assert without < 250, (with_demonstrations, without)
