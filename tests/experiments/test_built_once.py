"""Environments, agent and settings are built once from a command to the first timestep."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import steppe
from steppe import runners
from steppe.runners import setup
from steppe.runners.loop import TrainingLoop
from steppe.specs.learning.agent import AgentSpec

COUNTED = """
import os
from worlds import World

class Counted(World):
    def __init__(self, render_mode=None):
        with open(os.environ["COUNTED"], "a") as file:
            file.write(f"{os.getpid()}\\n")
"""
FIELDS: dict[str, Any] = {"progress": False, "video": False, "final_evaluation": None, "seed": 1}
PPO_SETTINGS = {"type": "ppo", "horizon": 8, "minibatches": 2, "epochs": 1}
DQN_SETTINGS = {"type": "dqn", "batch_size": 8, "learning_starts": 8, "memory": {"capacity": 64}}


class Begun(Exception):
    """Raised in place of the first timestep."""


@pytest.fixture
def constructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts how often the environment `counted:Counted` was made in this process."""
    (tmp_path / "counted.py").write_text(COUNTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COUNTED", str(tmp_path / "made.txt"))
    return lambda: (tmp_path / "made.txt").read_text().split().count(str(os.getpid()))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each agent that is made in this process."""
    made: list[str] = []
    make_agent = setup.make_agent

    def counted(spec: Any, *arguments: Any, **others: Any) -> Any:
        made.append(spec.agent.type)
        return make_agent(spec, *arguments, **others)

    monkeypatch.setattr(setup, "make_agent", counted)
    return made


@pytest.mark.parametrize(
    ("mode", "count"),
    [({"num_envs": 3}, 3), ({"run_mode": "multi-threaded", "num_workers": 2, "num_envs": 1}, 2)],
    ids=["single", "multi-threaded"],
)
def test_a_run_in_this_process_makes_its_environments_and_its_agent_once(
    constructions: Callable[[], int], built: list[str], mode: dict[str, Any], count: int
) -> None:
    done = steppe.train("counted:Counted", PPO_SETTINGS, total_timesteps=48, **FIELDS, **mode)
    assert done.status.state == "completed"
    assert constructions() == count
    # Each thread after the first one makes an engine for its environments.
    assert len(built) == (2 if "num_workers" in mode else 1)


@pytest.mark.parametrize(
    ("agent", "mode"),
    [(PPO_SETTINGS, {"run_mode": "distributed"}), (DQN_SETTINGS, {"run_mode": "async"})],
    ids=["distributed", "async"],
)
def test_a_driver_makes_one_set_of_environments_and_each_worker_its_own_elsewhere(
    constructions: Callable[[], int], monkeypatch: pytest.MonkeyPatch, agent: Any, mode: dict[str, Any]
) -> None:
    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr(TrainingLoop, "run", begin)
    with pytest.raises(Begun):
        steppe.train("counted:Counted", agent, total_timesteps=64, num_workers=2, num_envs=1, **mode, **FIELDS)
    assert constructions() == 1


def test_a_compiled_environment_and_its_agent_are_made_once(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[str] = []
    make_compiled = setup.make_compiled
    monkeypatch.setattr(setup, "make_compiled", lambda spec: made.append(spec.id) or make_compiled(spec))
    steppe.train("CartPole-v1", PPO_SETTINGS, num_envs=2, total_timesteps=32, **FIELDS)
    assert (made, built) == (["CartPole-v1"], ["ppo"])


def test_the_settings_of_an_agent_are_read_once(
    constructions: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_as = AgentSpec._read_as

    def counted(spec: AgentSpec, model: Any) -> Any:
        read.append(spec.type)
        return read_as(spec, model)

    monkeypatch.setattr(AgentSpec, "_read_as", counted)
    steppe.train("counted:Counted", PPO_SETTINGS, num_envs=2, total_timesteps=32, **FIELDS)
    assert read == ["ppo"]


def test_a_kept_engine_is_not_given_to_another_experiment(constructions: Callable[[], int]) -> None:
    first = steppe.Experiment(environment="counted:Counted", agent=PPO_SETTINGS, num_envs=2, **_without_progress())
    steppe.Experiment(environment="counted:Counted", agent=PPO_SETTINGS, num_envs=1, **_without_progress())
    first.start()
    assert constructions() == 2 + 1 + 2


def test_a_kept_engine_is_released(constructions: Callable[[], int]) -> None:
    from steppe.runners import kept_engine

    steppe.Experiment(environment="counted:Counted", agent=PPO_SETTINGS, num_envs=2, **_without_progress())
    assert kept_engine._kept
    runners.release()
    assert not kept_engine._kept


def _without_progress() -> dict[str, Any]:
    return {name: value for name, value in FIELDS.items() if name != "progress"} | {"total_timesteps": 16}
