"""The effects of the caller's on_progress on a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steppe
from steppe.errors import CallbackFault, UserError
from steppe.experiments.run_folder.store import RunFolder
from steppe.records.checkpoints import list_checkpoints
from steppe.runners import Progress

FIELDS: dict[str, Any] = {"agent": "random", "total_timesteps": 1_000_000, "video": False, "progress": False}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _raise_stop(progress: Progress) -> None:
    if progress.timestep > 100:
        raise steppe.StopTraining("it is good enough")


@pytest.mark.parametrize(
    ("on_progress", "reason"),
    [
        (lambda progress: progress.timestep <= 100, "stopped by on_progress"),
        (lambda progress: np.bool_(progress.timestep <= 100), "stopped by on_progress"),
        (_raise_stop, "stopped by on_progress: it is good enough"),
    ],
    ids=["False", "NumPy's False", "StopTraining"],
)
def test_on_progress_stops_a_run_with_a_checkpoint(on_progress: Any, reason: str) -> None:
    experiment = steppe.train("CartPole-v1", on_progress=on_progress, **FIELDS)
    status = experiment.status
    assert (status.state, status.reason) == ("stopped", reason)
    assert list_checkpoints(experiment.folder)[-1] == status.timestep > 100


def test_on_progress_that_returns_nothing_lets_the_run_complete() -> None:
    seen: list[Progress] = []
    experiment = steppe.train("CartPole-v1", on_progress=seen.append, **FIELDS | {"total_timesteps": 100})
    assert experiment.status.state == "completed"
    assert {"compiling", "training"} <= {each.phase for each in seen}


def test_an_error_in_on_progress_saves_the_run_and_names_the_line() -> None:
    def on_progress(progress: Progress) -> None:
        if progress.timestep:
            raise KeyError("loss")

    experiment = steppe.Experiment(environment="CartPole-v1", agent="random", video=False)
    with pytest.raises(CallbackFault) as error:
        experiment.start(on_progress=on_progress)
    assert isinstance(error.value.__cause__, KeyError)
    assert "in on_progress)" in str(error.value)
    assert "test_on_progress.py, line" in str(error.value)
    status = experiment.status
    assert (status.state, list_checkpoints(experiment.folder)[-1]) == ("failed", status.timestep)
    assert 'raise KeyError("loss")' in RunFolder(experiment.folder).log.read_text()
    assert experiment.start(resume=True, total_timesteps=status.timestep + 10).state == "completed"


def test_callback_arguments_of_other_libraries_lead_to_on_progress() -> None:
    with pytest.raises(UserError, match="give on_progress, a function"):
        steppe.train("CartPole-v1", callback=print)
    with pytest.raises(UserError, match=r"experiment\.start\(on_progress="):
        steppe.Experiment(environment="CartPole-v1", on_progress=print)


def test_train_says_at_the_end_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    fields = FIELDS | {"total_timesteps": 100, "progress": True, "name": "first"}
    status = steppe.train("CartPole-v1", **fields).status
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f'experiment "first" is completed: {status.reason}; mean return of the last ')
    assert last.endswith("; see steppe-runs/first")
