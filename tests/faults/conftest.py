"""Fixtures: a project in a folder of its own, and real processes in it that end with their test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import TINY, Run, Steppe


@pytest.fixture
def steppe(tmp_path: Path) -> Iterator[Steppe]:
    """Runs commands in an empty project."""
    steppe = _in_new_project(tmp_path)
    yield steppe
    steppe.end()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 6,000 timesteps with three checkpoints; tests copy it and never change it."""
    steppe = _in_new_project(tmp_path_factory.mktemp("trained"))
    try:
        answer = steppe("train", *TINY, "-n", "run", "-t", "6000", "--saver-frequency", "2000t", "-q")
    finally:
        steppe.end()
    assert answer.code == 0, answer.err
    run = steppe.run("run")
    assert run.checkpoints == [2048, 4032, 6016]
    return run.path


@pytest.fixture
def run(steppe: Steppe, trained: Path) -> Run:
    """A copy of the trained run in this test's project."""
    copy = steppe.run("run")
    shutil.copytree(trained, copy.path)
    return copy


@pytest.fixture
def module(steppe: Steppe, tmp_path: Path) -> Callable[[str, str], None]:
    """Writes Python modules into a folder from which the commands can import them."""
    folder = tmp_path / "modules"
    folder.mkdir()
    steppe.environment["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])

    def write(name: str, text: str) -> None:
        (folder / f"{name}.py").write_text(text)

    return write


def _in_new_project(folder: Path) -> Steppe:
    project = folder / "project"
    project.mkdir()
    (project / "steppe.json").write_text('{"name": "faults", "schema_version": 1}\n')
    return Steppe(project, folder / "outputs")
