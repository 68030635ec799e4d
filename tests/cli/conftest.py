"""Commands as a user gives them, in a folder of their own, with a trainer that only counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from endpoints import commands_in
from processes import Steppe

from steppe import runners
from steppe.cli import main
from steppe.records import checkpoints
from steppe.runners import Progress, RunOutcome
from steppe.specs.experiment import ExperimentSpec


@dataclass
class Answer:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPPE_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steppe]:
    """Real commands in an empty folder."""
    with commands_in(tmp_path, monkeypatch) as commands:
        yield commands


@pytest.fixture
def steppe(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command in the current folder."""

    def command(*words: str) -> Answer:
        capsys.readouterr()
        code = main(list(words))
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return command


@pytest.fixture
def project(steppe: Callable[..., Answer], here: Path) -> Path:
    assert steppe("init").code == 0
    return here


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ExperimentSpec, bool]]:
    """Replaces training by one checkpoint at the last timestep; returns a list of (spec, whether it was resumed)."""
    calls: list[tuple[ExperimentSpec, bool]] = []

    def run(spec: ExperimentSpec, folder: Path, *, resume: bool, request: Any, on_progress: Any) -> RunOutcome:
        calls.append((spec, resume))
        timesteps = spec.total_timesteps or 100
        on_progress(Progress("compiling"))
        on_progress(Progress("training", timesteps, 9, 4, 12.5, 11.0, 13.0, 1000.0, 0.5))
        checkpoints.save(folder, timesteps, {"a": np.zeros(1)}, {})
        return RunOutcome(
            "completed", f"all {timesteps} timesteps were run", timesteps, 9, 4, 12.5, 0.5, ["mind the gap"]
        )

    monkeypatch.setattr(runners, "run", run)
    monkeypatch.setattr(runners, "check", lambda spec, resumed=None: [])
    return calls
