"""steppe.Project and steppe.experiments(): the projects and experiments of the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import steppe
from steppe.cli import main
from steppe.errors import ProjectError, StateError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_is_made_and_found_from_below(here: Path) -> None:
    project = steppe.Project.create(here / "demo", "first-project", remote_id="cloud-7")
    assert (project.name, project.remote_id, project.root) == ("first-project", "cloud-7", here / "demo")
    assert (here / "demo" / "configs" / "experiments").is_dir()
    assert steppe.Project.open(here / "demo" / "configs") == project
    with pytest.raises(ProjectError, match="exist already"):
        steppe.Project.create(here / "demo")
    assert steppe.Project.create(here / "demo", force=True).name == "first-project"
    with pytest.raises(ProjectError, match="no project"):
        steppe.Project.open(here)


def test_experiments_of_a_project_are_made_listed_opened_and_deleted(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = steppe.Project.create(here)
    made = project.new(name="b", environment="CartPole-v1", agent="random", total_timesteps=10)
    project.new(name="a", environment="CartPole-v1", agent="random")
    assert [each.name for each in project.experiments()] == ["a", "b"]
    assert [each.name for each in steppe.experiments()] == ["a", "b"]
    assert project.experiment("b").spec == made.spec
    with pytest.raises(StateError, match=r'no experiment "bb".*did you mean "b"'):
        project.experiment("bb")
    assert main(["experiment", "list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["a", "b"]
    monkeypatch.chdir(here.parent)  # deletion works from any folder
    made.delete()
    assert [each.name for each in steppe.experiments(here)] == ["a"]


def test_runs_outside_of_a_project_are_listed_too(here: Path) -> None:
    assert steppe.experiments() == []
    experiment = steppe.Experiment(environment="CartPole-v1", agent="random")
    assert [each.folder for each in steppe.experiments()] == [experiment.folder]
    experiment.delete()
    assert steppe.experiments() == []


def test_an_odd_folder_does_not_break_the_list(here: Path) -> None:
    steppe.Project.create(here).new(name="a", environment="CartPole-v1")
    odd = here / "experiments" / "odd"
    odd.mkdir()
    (odd / "experiment.json").write_text("[[[")
    assert [each.name for each in steppe.experiments()] == ["a", "odd"]


def test_the_list_can_be_asked_for_first_of_all() -> None:
    words = "import steppe; print(steppe.experiments(), 'jax' in __import__('sys').modules)"
    answer = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout == "[] False\n"
