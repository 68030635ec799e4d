"""A run reports the disk space of its checkpoints before it trains."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from runs import TINY_DQN, experiment, train

from steppe.records import checkpoints
from steppe.runners import checkpoint_size
from steppe.runners.checkpoint_size import size_notices
from steppe.runners.setup import make_engine

PONG = {"id": "ALE/Pong-v5"}
NETWORK = [{"type": "flatten"}, {"type": "dense", "size": 2}]


def told(folder: Path, agent: dict[str, Any], **fields: Any) -> list[str]:
    spec = experiment(PONG, agent={"type": "dqn", **agent}, network=NETWORK, num_envs=1, **fields)
    engine = make_engine(spec)
    try:
        return size_notices(spec, engine.agent, folder)
    finally:
        engine.close()


def test_a_large_memory_gets_a_notice_with_the_number_of_checkpoints(tmp_path: Path) -> None:
    assert told(tmp_path, {}, total_timesteps=10_000_000)[0].startswith(
        "a checkpoint takes up to 884 MB, most of it the replay memory when it is full (agent.memory.capacity); 3 are"
    )


def test_only_the_part_of_the_memory_that_the_run_fills_counts(tmp_path: Path) -> None:
    assert "up to 442 MB" in told(tmp_path, {}, total_timesteps=50_000)[0]
    assert told(tmp_path, {}, total_timesteps=5_000) == []


def test_a_full_disk_gets_a_notice_before_the_training(tmp_path: Path) -> None:
    sentence, *more = told(tmp_path, {"memory": {"capacity": 10**10}}, total_timesteps=10**11)
    assert more == []
    assert f", but {tmp_path} has only " in sentence
    assert sentence.endswith("free: make room, or give a smaller agent.memory.capacity")


def test_the_size_of_a_large_checkpoint_is_logged_and_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_size, "LARGE", 1)
    with caplog.at_level(logging.INFO, "steppe"):
        outcome = train(tmp_path, experiment(agent=TINY_DQN, total_timesteps=256))
    size = checkpoints.size_of(tmp_path / "checkpoints" / "256")
    assert checkpoints.total_size(tmp_path) > size > 0
    assert f"saved at timestep 256 ({checkpoint_size.readable_size(size)})" in caplog.text
    assert any(notice.startswith("a checkpoint takes up to ") for notice in outcome.notices)
