"""The settings that a run records beside the given ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from steppe.experiments import lifecycle
from steppe.experiments.process.run import run
from steppe.experiments.run_folder.store import RunFolder
from steppe.records import report
from steppe.runners import Progress


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write_report", lambda folder: folder)


def telling(trainer: Any, effective: dict[str, Any]) -> Any:
    """A trainer that reports these settings when it begins."""

    def train(spec: Any, folder: Any, *, on_progress: Any, **others: Any) -> Any:
        on_progress(dataclasses.replace(Progress("compiling"), effective=effective))
        return trainer(spec, folder, on_progress=on_progress, **others)

    return train


def test_a_run_notes_its_settings_in_experiment_json_and_the_spec_stays_as_it_was(
    folder: RunFolder, trainer: Any
) -> None:
    before, written = folder.spec(), folder.spec_data()
    run(folder, trainer=telling(trainer(), {"agent": {"type": "random", "horizon": 128}}))
    assert folder.spec_data() == {**written, "effective": {"agent": {"type": "random", "horizon": 128}}}
    assert folder.spec() == before


def test_a_resume_overwrites_the_effective_settings_without_reading_them(folder: RunFolder, trainer: Any) -> None:
    run(folder, trainer=telling(trainer(), {"agent": {"horizon": 128}, "limits": {"total_timesteps": 30}}))
    lifecycle.prepare(folder, resume=True, fields={"total_timesteps": 60})
    assert "effective" not in folder.spec_data()
    again = trainer(total=60)
    run(folder, resume=True, trainer=telling(again, {"limits": {"total_timesteps": 60}}))
    assert folder.spec_data()["effective"] == {"limits": {"total_timesteps": 60}}
    assert again.calls[0]["spec"].total_timesteps == 60


def test_a_copy_of_the_file_is_an_experiment_like_the_first(folder: RunFolder, trainer: Any, tmp_path: Any) -> None:
    from steppe.spec_files import load_experiment

    run(folder, trainer=telling(trainer(), {"agent": {"horizon": 1}, "given": ["agent.horizon"]}))
    copy = tmp_path / "copied.json"
    copy.write_bytes((folder.path / "experiment.json").read_bytes())
    assert load_experiment(copy, {}, [], tmp_path) == folder.spec()
