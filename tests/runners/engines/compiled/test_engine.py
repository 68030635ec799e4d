"""The compiled engine compiles its program once."""

from __future__ import annotations

from typing import Any

import pytest

from steppe.runners._base import ChunkLimits


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_an_iteration_is_traced_once_for_any_number_of_chunks(
    agent: str, engine_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, traced = engine_for("CartPole-v1", agent), {"collect": 0, "update": 0}
    for owner, name in ((type(engine.rollout), "collect"), (type(engine.agent), "update")):
        monkeypatch.setattr(owner, name, _counted(getattr(owner, name), name, traced))
    for timestep in (0, 1024):
        assert engine.advance(2, timestep, ChunkLimits(None, None)).iterations == 2
    assert traced == {"collect": 1, "update": 1}


def _counted(function: Any, name: str, traced: dict[str, int]) -> Any:
    def wrapper(*arguments: Any) -> Any:
        traced[name] += 1
        return function(*arguments)

    return wrapper
