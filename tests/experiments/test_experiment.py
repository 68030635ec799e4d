"""The Python API: the same life cycle as with commands; errors name calls."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steppe
from steppe import runners
from steppe.errors import StateError, SteppeError, UserError
from steppe.experiments.locations import Started
from steppe.experiments.locations.local import LocalLocation
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.records import checkpoints
from steppe.specs.experiment import ExperimentSpec


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runners, "check", lambda spec, resumed=None: [])


@pytest.fixture
def trained(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces training by counting."""
    counting = trainer()
    monkeypatch.setattr(runners, "run", counting)
    return counting


@pytest.fixture
def experiment(trained: Any) -> steppe.Experiment:
    return steppe.Experiment(environment="CartPole-v1", total_timesteps=30, name="first")


def _put(experiment: steppe.Experiment, state: str, checkpoint: bool = True, **fields: Any) -> None:
    RunFolder(experiment.folder).write_status(Status(state, **fields))  # type: ignore[arg-type]
    if checkpoint:
        checkpoints.save(experiment.folder, 10, {"a": np.zeros(1)}, {})


def test_without_an_agent_ppo_learns(experiment: steppe.Experiment) -> None:
    assert experiment.spec.agent.type == "ppo"


def test_a_resume_may_give_it_more_to_do(experiment: steppe.Experiment, trained: Any) -> None:
    assert experiment.start().timestep == 30
    trained.total = 60
    assert experiment.start(resume=True, total_timesteps=60).timestep == 60
    assert experiment.spec.total_timesteps == 60
    assert [call["resume"] for call in trained.calls] == [False, True]


def _sentences(experiment: steppe.Experiment) -> dict[str, str]:
    """The error of each call that the state does not allow."""
    sentences = {}

    def note(what: str, call: Any) -> None:
        with pytest.raises(SteppeError) as error:
            call()
        sentences[what] = str(error.value)

    note("resume what was not started", lambda: experiment.start(resume=True))
    note("pause what was not started", experiment.pause)
    note("both at once", lambda: experiment.start(resume=True, force=True))
    note("the same name", lambda: steppe.Experiment(environment="CartPole-v1", name="first"))
    _put(experiment, "failed", checkpoint=False)
    note("start without a checkpoint", experiment.start)
    note("resume without a checkpoint", lambda: experiment.start(resume=True))
    _put(experiment, "completed", timestep=30)
    note("start again", experiment.start)
    note("resume with nothing to do", lambda: experiment.start(resume=True))
    note("an unknown name", lambda: steppe.Experiment.open("frist"))
    note("a field that cannot change", lambda: experiment.start(resume=True, seed=5))
    note("a wrong value", lambda: experiment.start(resume=True, total_timesteps=0))
    note("a wrong field", lambda: steppe.Experiment(environment="CartPole-v1", epsodes=3))
    note("a missing field", lambda: steppe.Experiment(agent="ppo"))
    RunFolder(experiment.folder).write_status(Status("running", host=socket.gethostname(), pid=os.getpid()))
    descriptor = locks.acquire(experiment.folder)
    assert descriptor is not None
    note("start what runs", experiment.start)
    note("pause for too short", lambda: experiment.pause(timeout=0.0))
    locks.release(descriptor)
    return sentences


def test_errors_speak_of_calls_and_not_of_flags(experiment: steppe.Experiment) -> None:
    sentences = _sentences(experiment)
    assert {what: text for what, text in sentences.items() if " -" in text or "steppe experiment " in text} == {}
    assert "experiment.start(resume=True, total_timesteps=60)" in sentences["resume with nothing to do"]
    assert "experiment.start(force=True)" in sentences["resume without a checkpoint"]
    assert "experiment.stop()" in sentences["start what runs"]
    assert "force=True" in sentences["the same name"]
    assert sentences["a wrong value"].startswith("wrong value 0 at total_timesteps; ")


def test_an_experiment_without_its_cluster_says_how_to_name_one() -> None:
    later = steppe.Experiment(environment="CartPole-v1", platform="kubernetes")
    with pytest.raises(UserError) as error:
        later.start()
    assert str(error.value).endswith("and no cluster; name one: experiment.start(cluster='CLUSTER')")


def test_one_that_is_detached_on_a_cluster_is_started_there_and_left_to_a_watcher(
    experiment: steppe.Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def start(location: ClusterLocation, **_: Any) -> Started:
        asked.append((location.folder.path, location._cluster))
        return Started("starts there")

    def leave(location: ClusterLocation, tell: Any) -> None:
        asked.append(location.folder.path)
        tell("process 7 waits")

    monkeypatch.setattr(LocalLocation, "start", lambda *_, **__: pytest.fail("it trains here"))
    monkeypatch.setattr(ClusterLocation, "start", start)
    monkeypatch.setattr(ClusterLocation, "leave", leave)
    told: list[str] = []
    assert experiment.start_detached(cluster="lab", announce=told.append) is None
    assert asked == [(experiment.folder, "lab"), experiment.folder]
    assert told == ["process 7 waits"]


def test_an_opened_experiment_speaks_of_calls_too(experiment: steppe.Experiment, trained: Any) -> None:
    experiment.start()
    with pytest.raises(StateError, match=r"experiment\.start\(resume=True\)"):
        steppe.Experiment.open("first").start()


def test_notices_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(runners, "check", lambda spec, resumed=None: ["num_workers has no effect"])
    with caplog.at_level(logging.WARNING, "steppe"):
        steppe.Experiment(environment="CartPole-v1", num_workers=2)
    assert [record.message for record in caplog.records] == ["num_workers has no effect"]


def test_a_folder_gives_its_name_and_foreign_files_are_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = steppe.Experiment(environment="CartPole-v1", folder="~/runs/mine")
    assert (made.name, made.folder) == ("mine", tmp_path / "home" / "runs" / "mine")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(StateError, match="choose a new or an empty folder"):
        steppe.Experiment(environment="CartPole-v1", folder="thesis", force=True)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


def test_a_spec_and_fields_exclude_each_other(spec: ExperimentSpec) -> None:
    with pytest.raises(TypeError, match="not both"):
        steppe.Experiment(spec, seed=5)
