"""A run whose folder is renamed or deleted while it trains: real processes, and no second folder under the old name."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from processes import ENDLESS, Command, Run, Steppe, wait_until


def train(steppe: Steppe, *words: str) -> Command:
    """A run that has trained and saved."""
    command = steppe.launch("train", *ENDLESS, "-n", "run", *words)
    run = steppe.run("run")
    wait_until(lambda: run.is_trained_by(command) and run.has_saved_since(0), "it trains and saves")
    return command


@pytest.mark.faults
@pytest.mark.parametrize("what", ["the project", "the run folder"])
def test_a_run_that_is_moved_saves_where_it_went_and_ends(steppe: Steppe, tmp_path: Path, what: str) -> None:
    command = train(steppe)
    old = steppe.folder if what == "the project" else steppe.run("run").path
    new = old.with_name("moved")
    old.rename(new)
    moved = Run(new / "experiments" / "run" if what == "the project" else new)
    before = moved.checkpoints[-1]
    answer = command.answer()
    assert answer.code == 1
    assert f"error: the run folder was moved to {moved.path} while it trained" in answer.err
    assert f"steppe experiment resume -e {moved.path}" in answer.err
    assert not old.exists()
    assert moved.state == "failed"
    assert moved.status["reason"] in answer.err
    assert moved.checkpoints[-1] >= before
    assert f"saved there up to timestep {moved.checkpoints[-1]:,};" in answer.err
    assert moved.status["timestep"] == moved.checkpoints[-1]
    elsewhere = Steppe(new if what == "the project" else steppe.folder, tmp_path / "others")
    limit = moved.checkpoints[-1] + 640
    assert elsewhere.listed(moved.path.name)["state"] == "failed"
    resumed = elsewhere("experiment", "resume", "-e", str(moved.path), "--set", f"total_timesteps={limit}", "-q")
    assert resumed.code == 0, resumed.err
    assert moved.state == "completed"


@pytest.mark.faults
def test_threads_that_train_follow_their_folder_too(steppe: Steppe) -> None:
    words = ("--set", "run_mode=multi-threaded", "--set", "num_workers=2")
    command = train(steppe, *words)
    new = steppe.folder.with_name("moved")
    steppe.folder.rename(new)
    answer = command.answer()
    assert f"was moved to {new / 'experiments' / 'run'}" in answer.err
    assert not steppe.folder.exists()
    assert Run(new / "experiments" / "run").state == "failed"


@pytest.mark.faults
def test_stop_in_a_moved_project_ends_the_run(steppe: Steppe, tmp_path: Path) -> None:
    command = train(steppe)
    new = steppe.folder.with_name("moved")
    steppe.folder.rename(new)
    elsewhere = Steppe(new, tmp_path / "others")
    answer = elsewhere("experiment", "stop", "-e", "run")
    # It ends by the request, or because it was moved, whichever is seen first.
    assert "Traceback" not in answer.err
    assert command.answer().code in (0, 1)
    assert Run(new / "experiments" / "run").state in ("stopped", "failed")
    assert not steppe.folder.exists()


@pytest.mark.faults
@pytest.mark.parametrize("what", ["the project", "the run folder"])
@pytest.mark.parametrize("again", [False, True], ids=["gone", "with another in its place"])
def test_a_run_that_is_deleted_ends_and_writes_nothing_more(steppe: Steppe, what: str, again: bool) -> None:
    command = train(steppe)
    folder = steppe.folder if what == "the project" else steppe.run("run").path
    # Several times, as people do: a file may be made between the listing of a folder and its removal.
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    if again:
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
    answer = command.answer()
    assert answer.code == 1
    # The second where it was just being saved.
    assert "was deleted while it trained" in answer.err or "it may have been moved or deleted" in answer.err
    assert sum(line.startswith("error: ") for line in answer.err.splitlines()) == 1
    assert "Traceback" not in answer.err
    assert folder.exists() == again
    if again:
        assert [path.name for path in folder.rglob("*")] == ["mine.txt"]


@pytest.mark.faults
def test_a_run_takes_its_lock_again_when_the_file_is_deleted(steppe: Steppe) -> None:
    command = train(steppe)
    run = steppe.run("run")
    (run.path / ".lock").unlink()
    wait_until((run.path / ".lock").exists, "the lock is there again")
    assert steppe.listed("run")["state"] == "running"
    command.send(signal.SIGINT)
    assert command.answer().code == 130
    assert run.state == "paused"


@pytest.mark.faults
def test_a_detached_run_follows_its_folder(steppe: Steppe, tmp_path: Path) -> None:
    assert steppe("train", *ENDLESS, "-n", "run", "--detach", "-q").code == 0
    run = steppe.run("run")
    wait_until(lambda: run.state == "running" and run.has_saved_since(0), "it trains and saves")
    new = steppe.folder.with_name("moved")
    steppe.folder.rename(new)
    moved = Run(new / "experiments" / "run")
    try:
        wait_until(lambda: moved.state == "failed", "it has ended")
    finally:
        Steppe(new, tmp_path / "others").end()
    assert f"was moved to {moved.path}" in moved.status["reason"]
    assert not steppe.folder.exists()
