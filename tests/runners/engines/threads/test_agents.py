"""Every agent learns in threads, or is refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from demonstrated import made_up_file
from runs import experiment

from steppe import agents
from steppe.errors import UserError
from steppe.runners._base import ChunkLimits
from steppe.runners.setup import make_engine
from steppe.specs.spaces import Box, Discrete

NETWORK = [{"type": "dense", "size": 4}]
RECURRENT = [{"type": "dense", "size": 4}, {"type": "internal_lstm", "size": 4}]
REFUSED = {"trpo": 'agent "trpo" keeps each step within a divergence of one policy'}
CONTINUOUS = {"ddpg", "td3", "sac", "naf"}
WITHOUT_LEARNING = {"random", "constant"}
BATCH = {"batch_size": 4, "learning_starts": 0, "memory": {"capacity": 64}}
TINY = {
    "random": {"horizon": 8},
    "constant": {"horizon": 8, "action": 1},
    "ppo": {"horizon": 4, "minibatches": 2, "epochs": 1},
    "pqn": {"horizon": 4, "minibatches": 2, "epochs": 1},
}
FURTHER = {
    "without a value network, by random directions": {
        "agent": {"type": "vpg", "baseline": "none", "optimizer": {"type": "evolutionary", "num_samples": 2}}
    },
    "a recurrent network, rewards standardized": {
        "agent": {"type": "vpg", "horizon": 4, "reward_preprocessing": [{"type": "standardize", "across_batch": True}]},
        "network": RECURRENT,
    },
    "rollouts of episodes": {"agent": {"type": "vpg", "rollout_episodes": 2}},
    "a noisy network, importance that grows": {
        "agent": {
            "type": "dqn",
            "noisy": True,
            **BATCH,
            "memory": {"type": "prioritized_replay", "capacity": 64, "final_importance_exponent": 1.0},
        }
    },
}
"""Settings that an agent needs beside its name."""


def engine_of(agent, **fields):
    world = "worlds:Continuous" if agent["type"] in CONTINUOUS else "worlds:World"
    fields = {
        "network": None if agent["type"] in WITHOUT_LEARNING else NETWORK,
        "num_envs": 2,
        "total_timesteps": 400,
        "max_timesteps_per_episode": 10,
        **fields,
    }
    # Host environments need less compilation, and compiled rollouts do not depend on the agent.
    return make_engine(experiment(world, agent, run_mode="multi-threaded", num_workers=2, **fields))


def settings_of(name):
    if name == "dqfd":
        shown = made_up_file(Box((3,), (-1.0,) * 3, (1.0,) * 3), Discrete(2))
        return {**BATCH, "demonstrations": shown, "pretraining_updates": 2, "n_step": 1}
    algorithm = agents.settings_class(name)
    return TINY.get(name, BATCH if "memory" in algorithm.model_fields else {"horizon": 4})


def learns(engine):
    """Checks that batches of two workers move the shared model and leave it finite."""
    try:
        engine.begin(1)
        before = engine.snapshot()
        chunk = engine.advance(6, 0, ChunkLimits())
        assert chunk.iterations == 6
        assert chunk.is_healthy
        after = engine.snapshot()
        updates = after["model/updates"] - before["model/updates"]
        assert updates == chunk.columns["updates"].sum()
        assert np.isfinite(after["model/params"]).all()
        return updates > 0 and bool(np.any(after["model/params"] != before["model/params"]))
    finally:
        engine.close()


@pytest.mark.parametrize("name", agents.names())
def test_an_agent_learns_or_is_refused_with_the_reason(name):
    if name in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name]):
            engine_of({"type": name})
        return
    assert learns(engine_of({"type": name, **settings_of(name)})) == (name not in WITHOUT_LEARNING)


@pytest.mark.parametrize("fields", FURTHER.values(), ids=FURTHER.keys())
def test_settings_beyond_the_usual_learn_too(fields):
    assert learns(engine_of(**fields))
