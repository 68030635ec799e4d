"""One thread learns the same as run mode single from the same data."""

from __future__ import annotations

import numpy as np
import pytest
from runs import TINY_DQN, TINY_PPO, experiment

from steppe.runners._base import ChunkLimits
from steppe.runners.setup import make_engine

NETWORK = [{"type": "dense", "size": 16, "activation": "tanh"}]
NORMALIZED = {"id": "CartPole-v1", "normalize_observations": True, "normalize_rewards": True}
CASES = {
    "a2c": ({"type": "a2c"}, NORMALIZED),
    "ppo with two optimisers": (
        {
            **TINY_PPO,
            "baseline_optimizer": {"type": "multi_step", "num_steps": 3, "optimizer": "rmsprop"},
            "learning_rate_decay": "cosine",
        },
        "CartPole-v1",
    ),
    "dqn of three updates with priorities": (
        {
            **TINY_DQN,
            "updates": 3,
            "target_sync_frequency": 3,
            # The random draws before learning starts differ.
            "learning_starts": 0,
            "memory": {"type": "prioritized_replay", "capacity": 256, "final_importance_exponent": 1.0},
        },
        NORMALIZED,
    ),
    "td3": ({**TINY_DQN, "type": "td3"}, "Pendulum-v1"),
}
ITERATIONS = 20


def engines(agent, environment):
    spec = experiment(environment, agent, network=NETWORK, num_workers=1, total_timesteps=20_000)
    return [make_engine(spec.model_copy(update={"run_mode": mode})) for mode in ("single", "multi-threaded")]


def same_start(single, threads):
    """Both engines with the same parameters, environments, memory and randomness."""
    single.begin(1)
    threads.begin(1)
    from_single, arrays = single.snapshot(), threads.snapshot()
    threads.close()
    names = {"learner/agent/params": "model/params", "learner/agent/target": "model/target"}
    names["learner/agent/key"] = "workers/0/key"
    for name in from_single:
        if name.startswith("envs/"):
            names[name] = f"workers/0/{name}"
        if name.startswith("learner/memory/"):
            names[name] = f"workers/0/{name.removeprefix('learner/')}"
    arrays |= {ours: from_single[theirs] for theirs, ours in names.items()}
    threads.restore(arrays, 1)
    return names


@pytest.mark.parametrize(("agent", "environment"), CASES.values(), ids=CASES.keys())
def test_one_thread_learns_the_same_from_the_same_data(agent, environment):
    single, threads = engines(agent, environment)
    names = same_start(single, threads)
    chunks = [engine.advance(ITERATIONS, 0, ChunkLimits()) for engine in (single, threads)]
    expected, got = (engine.snapshot() for engine in (single, threads))
    threads.close()
    for theirs, ours in names.items():
        tolerance = {"rtol": 2e-3, "atol": 2e-4} if expected[theirs].dtype.kind == "f" else {"rtol": 0}
        np.testing.assert_allclose(got[ours], expected[theirs], err_msg=ours, **tolerance)
    assert got["model/updates"] == expected["learner/agent/updates"] > 0
    if environment is NORMALIZED:
        for part in ("mean", "variance", "samples"):
            for kind in ("observations", "returns"):
                name = f"{kind}/{part}"
                theirs = expected[f"learner/agent/{name}"]
                np.testing.assert_allclose(got[f"model/{name}"], theirs, rtol=2e-3, atol=2e-3, err_msg=name)
    one, other = (chunk.columns for chunk in chunks)
    assert set(one) - {"timesteps"} <= set(other)
    for name in set(one) - {"mean_return", "mean_length"}:
        np.testing.assert_allclose(other[name], one[name], rtol=5e-3, atol=5e-3, err_msg=name)
    assert chunks[0].has_reached_return == chunks[1].has_reached_return
