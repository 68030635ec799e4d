"""A run whose folder is renamed or deleted while it trains ends, and makes no second folder under the old name."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from processes import ENDLESS, Run, Steppe, start_training, wait_until


@pytest.mark.faults
@pytest.mark.parametrize("moved_folder", ["the project", "the run folder"])
def test_a_run_whose_folder_is_moved_saves_in_the_new_place_and_ends(
    steppe: Steppe, tmp_path: Path, moved_folder: str
) -> None:
    command, run = start_training(steppe, "run")
    old = steppe.folder if moved_folder == "the project" else run.path
    new = old.with_name("moved")
    old.rename(new)
    moved = Run(new / "experiments" / "run" if moved_folder == "the project" else new)
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
    elsewhere = Steppe(new if moved_folder == "the project" else steppe.folder, tmp_path / "others")
    limit = moved.checkpoints[-1] + 640
    assert elsewhere.listed(moved.path.name)["state"] == "failed"
    resumed = elsewhere("experiment", "resume", "-e", str(moved.path), "--set", f"total_timesteps={limit}", "-q")
    assert resumed.code == 0, resumed.err
    assert moved.state == "completed"


@pytest.mark.faults
def test_a_multi_threaded_run_notices_that_its_folder_was_moved(steppe: Steppe) -> None:
    command, _ = start_training(steppe, "run", "--set", "run_mode=multi-threaded", "--set", "num_workers=2")
    new = steppe.folder.with_name("moved")
    steppe.folder.rename(new)
    answer = command.answer()
    assert f"was moved to {new / 'experiments' / 'run'}" in answer.err
    assert not steppe.folder.exists()
    assert Run(new / "experiments" / "run").state == "failed"


@pytest.mark.faults
def test_stop_in_a_moved_project_ends_the_run(steppe: Steppe, tmp_path: Path) -> None:
    command, _ = start_training(steppe, "run")
    new = steppe.folder.with_name("moved")
    steppe.folder.rename(new)
    elsewhere = Steppe(new, tmp_path / "others")
    answer = elsewhere("experiment", "stop", "-e", "run")
    # It ends because of the request or because of the move, whichever it notices first.
    assert "Traceback" not in answer.err
    assert command.answer().code in (0, 1)
    assert Run(new / "experiments" / "run").state in ("stopped", "failed")
    assert not steppe.folder.exists()


@pytest.mark.faults
@pytest.mark.parametrize("deleted", ["the project", "the run folder"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["gone", "with another in its place"])
def test_a_run_whose_folder_is_deleted_ends_and_writes_nothing_more(
    steppe: Steppe, deleted: str, is_replaced: bool
) -> None:
    command, run = start_training(steppe, "run")
    folder = steppe.folder if deleted == "the project" else run.path
    # Once may not be enough: the run may make a file between the listing of a folder and its removal.
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    if is_replaced:
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
    answer = command.answer()
    assert answer.code == 1
    # The second message appears if the run was just saving.
    assert "was deleted while it trained" in answer.err or "it may have been moved or deleted" in answer.err
    assert sum(line.startswith("error: ") for line in answer.err.splitlines()) == 1
    assert "Traceback" not in answer.err
    assert folder.exists() == is_replaced
    if is_replaced:
        assert [path.name for path in folder.rglob("*")] == ["mine.txt"]


@pytest.mark.faults
def test_a_run_takes_its_lock_again_if_the_lock_file_is_deleted(steppe: Steppe) -> None:
    command, run = start_training(steppe, "run")
    (run.path / ".lock").unlink()
    wait_until((run.path / ".lock").exists, "the lock exists again")
    assert steppe.listed("run")["state"] == "running"
    command.send(signal.SIGINT)
    assert command.answer().code == 130
    assert run.state == "paused"


@pytest.mark.faults
def test_a_detached_run_notices_that_its_folder_was_moved(steppe: Steppe, tmp_path: Path) -> None:
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
