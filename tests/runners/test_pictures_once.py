"""Training is the same with pictures stored once or twice, and checkpoints of the former are small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import experiment, train

from steppe.records import checkpoints
from steppe.runners._base import ChunkLimits
from steppe.runners.setup import make_engine

GAME = {"id": "ALE/Breakout-v5", "settings": {"height": 36, "width": 36, "noop_max": 5}}
DQN: dict[str, Any] = {"type": "dqn", "batch_size": 8, "learning_starts": 64, "n_step": 2}
NETWORK = [{"type": "flatten"}, {"type": "dense", "size": 4}]
SEQUENCE = {
    "states_preprocessing": [
        {"type": "image_resize", "width": 36, "height": 36},
        "grayscale",
        {"type": "sequence", "length": 3},
    ]
}


def spec_of(environment: Any, **agent: Any) -> Any:
    agent = DQN | {"memory": {"type": "prioritized_replay", "capacity": 300}} | agent
    return experiment(environment, agent=agent, network=NETWORK, num_envs=2, total_timesteps=400)


@pytest.mark.parametrize(
    "spec",
    [
        spec_of(GAME),
        spec_of({"id": "ALE/Pong-v5", "settings": GAME["settings"]}, memory={"capacity": 200}),
        spec_of({"id": "ALE/Pong-v5", "backend": "gymnasium"}, **SEQUENCE),
    ],
    ids=["Breakout", "Pong", "a sequence of frames"],
)
def test_the_same_is_learned(spec: Any) -> None:
    learned = []
    for keeps_once in (True, False):
        engine: Any = make_engine(spec)
        try:
            assert engine.agent.memory.frames is not None
            assert engine.agent.memory.frames.count in (3, 4)
            if not keeps_once:
                engine.agent.memory = replace(engine.agent.memory, frames=None)
            engine.begin(3)
            engine.advance(50, 0, ChunkLimits(None, None))
            learned.append(engine.snapshot())
        finally:
            engine.close()
    for name in ("agent/params", "agent/optimizer/0/0/mu", "memory/tree"):
        names = [each for each in learned[1] if each.endswith(name)]
        for each in names:
            np.testing.assert_array_equal(learned[0][each], learned[1][each])
    assert int(learned[0]["agent/updates"]) > 30


def test_checkpoints_hold_only_the_filled_part_of_a_memory(tmp_path: Path) -> None:
    spec = spec_of(GAME, memory={"capacity": 20_000})
    train(tmp_path, spec)
    assert 0 in checkpoints.list_checkpoints(tmp_path)
    sizes = {timestep: folder_size(tmp_path / "checkpoints" / str(timestep)) for timestep in (0, 400)}
    assert sizes[0] < 1_000_000
    # 400 frames of 1,296 bytes, beside the parameters.
    assert 400 * 1_296 < sizes[400] - sizes[0] < 1.5 * 400 * 1_296


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
