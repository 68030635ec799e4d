from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from steppe.errors import CheckpointError, StateError, StorageError, TrainingDiverged
from steppe.experiments.process import owner as owner_module
from steppe.experiments.process.run import main, run
from steppe.experiments.run_folder import store as store_module
from steppe.experiments.run_folder.store import DIED, RunFolder
from steppe.records import report
from steppe.runners import Progress


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write_report", lambda folder: folder)


def test_a_run_that_ends_is_completed(folder: RunFolder, trainer: Any) -> None:
    seen: list[str] = []
    ended = run(folder, trainer=trainer(), on_progress=lambda progress: seen.append(progress.phase))
    status = folder.local_status()
    assert (status.state, status.reason, status.timestep, status.mean_return) == ("completed", "counted", 30, 1.5)
    assert (status.pid, status.finished is not None) == (os.getpid(), True)
    assert (ended.signal, ended.exit_code) == (None, 0)
    assert seen == ["compiling", "training", "training", "training"]


def test_the_log_tells_the_run(folder: RunFolder, trainer: Any) -> None:
    run(folder, trainer=trainer())
    log = folder.log.read_text()
    assert "starting" in log
    assert "complete: counted" in log


def test_a_known_error_fails_the_run_with_its_sentence(folder: RunFolder) -> None:
    def diverge(*_: Any, **__: Any) -> None:
        raise TrainingDiverged("the loss is NaN at timestep 5")

    with pytest.raises(TrainingDiverged):
        run(folder, trainer=diverge)  # type: ignore[arg-type]
    assert (folder.local_status().state, folder.local_status().reason) == ("failed", "the loss is NaN at timestep 5")


def test_an_unknown_error_fails_the_run_and_its_traceback_is_in_the_log(folder: RunFolder) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError):
        run(folder, trainer=explode)  # type: ignore[arg-type]
    assert (folder.local_status().state, folder.local_status().reason) == ("failed", "ZeroDivisionError: boom")
    assert "Traceback" in folder.log.read_text()


def test_a_spec_that_was_broken_by_hand_fails_the_run(folder: RunFolder) -> None:
    (folder.path / "experiment.json").write_text('{"name": "first"}')
    assert main([str(folder.path)]) == 2
    assert folder.local_status().state == "failed"
    assert "missing field" in folder.local_status().reason


def test_a_request_pauses_and_a_resume_goes_on(folder: RunFolder, trainer: Any, in_background: Any) -> None:
    held = trainer(hold=True)
    results = in_background(lambda: run(folder, trainer=held))
    assert held.training.wait(30)
    assert folder.local_status().state == "running"
    folder.ask("pause")
    while not results:
        assert folder.local_status().state in ("running", "pausing", "paused")
    assert (folder.local_status().state, folder.local_status().timestep) == ("paused", 10)
    assert folder.asked() is None
    second = trainer()
    run(folder, resume=True, trainer=second)
    assert second.calls[0]["resume"]
    assert (folder.local_status().state, folder.local_status().timestep) == ("completed", 30)


def test_a_stop_outweighs_a_pause(folder: RunFolder, trainer: Any, in_background: Any) -> None:
    held = trainer(hold=True)
    in_background(lambda: run(folder, trainer=held))
    assert held.training.wait(30)
    folder.ask("stop")
    while folder.local_status().is_live:
        pass
    assert folder.local_status().state == "stopped"


def test_an_old_request_does_not_end_a_new_run(folder: RunFolder, trainer: Any) -> None:
    folder.ask("stop")
    run(folder, trainer=trainer())
    assert folder.local_status().state == "completed"


def test_a_running_experiment_is_not_started_twice(folder: RunFolder, trainer: Any, in_background: Any) -> None:
    held = trainer(hold=True)
    in_background(lambda: run(folder, trainer=held))
    assert held.training.wait(30)
    try:
        with pytest.raises(StateError, match=r'"first" is running already \(process \d+\)'):
            run(folder, trainer=trainer())
    finally:
        folder.ask("stop")


def test_an_ended_experiment_is_not_started_over_its_results(folder: RunFolder, trainer: Any) -> None:
    run(folder, trainer=trainer())
    with pytest.raises(StateError, match="to train on use: steppe experiment resume -e first"):
        run(folder, trainer=trainer())


def test_the_heart_beats_while_the_trainer_is_busy(folder: RunFolder, wait: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(owner_module, "HEARTBEAT_SECONDS", 0.01)
    beats: list[float | None] = []

    def busy(*_: Any, **__: Any) -> None:
        first = folder.read_status().heartbeat
        beats.extend([first, wait(lambda: (now := folder.read_status().heartbeat) != first and now)])
        raise StateError("enough")

    with pytest.raises(StateError, match="enough"):
        run(folder, trainer=busy)  # type: ignore[arg-type]
    assert beats[0] is not None
    assert beats[1] is not None
    assert beats[1] > beats[0]
    assert "steppe-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_report_that_fails_does_not_fail_the_run(folder: RunFolder, trainer: Any, monkeypatch: Any) -> None:
    def fail(_: Path) -> None:
        raise ValueError("no report today")

    monkeypatch.setattr(report, "write_report", fail)
    run(folder, trainer=trainer())
    assert folder.local_status().state == "completed"
    assert "no report today" in folder.log.read_text()


@pytest.mark.parametrize("error", [TrainingDiverged("the loss is NaN"), ZeroDivisionError("boom")])
def test_a_failed_run_is_reported_like_any_other(folder: RunFolder, monkeypatch: Any, error: Exception) -> None:
    states: list[str] = []
    monkeypatch.setattr(report, "write_report", lambda path: states.append(RunFolder(path).read_status().state))

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        run(folder, trainer=fail)  # type: ignore[arg-type]
    assert states == ["failed"]


def test_the_notices_of_a_failed_run_are_kept(folder: RunFolder) -> None:
    def fail(*_: Any, on_progress: Any, **__: Any) -> None:
        on_progress(Progress("training", timestep=10, notices=("mind the gap",)))
        raise TrainingDiverged("the loss is NaN")

    with pytest.raises(TrainingDiverged):
        run(folder, trainer=fail)  # type: ignore[arg-type]
    assert folder.local_status().notices == ("mind the gap",)


def test_an_unknown_speed_is_not_written_as_zero(folder: RunFolder, trainer: Any) -> None:
    run(folder, trainer=trainer())
    assert folder.local_status().steps_per_second is None


@pytest.fixture
def completed(folder: RunFolder, trainer: Any) -> RunFolder:
    run(folder, trainer=trainer())
    assert folder.local_status().state == "completed"
    return folder


def test_a_resume_that_cannot_begin_leaves_a_completed_experiment_completed(
    completed: RunFolder, monkeypatch: Any
) -> None:
    reports: list[Path] = []
    monkeypatch.setattr(report, "write_report", reports.append)
    before = completed.local_status()

    def fail(*_: Any, on_progress: Any, **__: Any) -> None:
        on_progress(Progress("compiling"))
        raise CheckpointError("no checkpoint can be used")

    with pytest.raises(CheckpointError):
        run(completed, resume=True, trainer=fail)  # type: ignore[arg-type]
    after = completed.local_status()
    assert after.notices == ("the last resume could not begin: no checkpoint can be used",)
    assert dataclasses.replace(after, notices=()) == before
    assert "no checkpoint can be used" in completed.log.read_text()
    assert reports == []


def test_a_resume_that_fails_while_it_trains_is_failed(completed: RunFolder) -> None:
    def fail(*_: Any, on_progress: Any, **__: Any) -> None:
        on_progress(Progress("training", timestep=40))
        raise TrainingDiverged("the loss is NaN")

    with pytest.raises(TrainingDiverged):
        run(completed, resume=True, trainer=fail)  # type: ignore[arg-type]
    status = completed.local_status()
    assert (status.state, status.reason, status.timestep, status.before) == ("failed", "the loss is NaN", 40, None)


def test_a_resume_that_begins_forgets_why_an_earlier_one_could_not(completed: RunFolder, trainer: Any) -> None:
    completed.write_status(
        dataclasses.replace(completed.local_status(), notices=("the last resume could not begin: x",))
    )
    run(completed, resume=True, trainer=trainer(total=60))
    status = completed.local_status()
    assert (status.state, status.timestep, status.notices, status.before) == ("completed", 60, (), None)


def test_disk_for_the_last_status_is_reserved_only_while_it_runs(folder: RunFolder) -> None:
    sizes: list[int] = []

    def look(*_: Any, **__: Any) -> None:
        sizes.append((folder.path / ".room").stat().st_size)
        raise StateError("enough")

    with pytest.raises(StateError, match="enough"):
        run(folder, trainer=look)  # type: ignore[arg-type]
    assert sizes == [16_384]
    assert not (folder.path / ".room").exists()


def test_the_reason_of_a_failure_is_not_lost_on_a_full_disk(folder: RunFolder, monkeypatch: Any) -> None:
    def refuse(path: Path, _: object) -> None:
        raise StorageError(f"cannot write {path}: the disk is full; free some space")

    def fill_the_disk(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(store_module, "write_atomically", refuse)
        raise StorageError("cannot write checkpoints/10: the disk is full; free some space")

    with pytest.raises(StorageError):
        run(folder, trainer=fill_the_disk)  # type: ignore[arg-type]
    assert (folder.local_status().state, folder.local_status().reason) == (
        "failed",
        "cannot write checkpoints/10: the disk is full; free some space",
    )


@pytest.mark.parametrize("debug", [False, True])
def test_debug_logging_writes_details_to_the_log(folder: RunFolder, debug: bool) -> None:
    folder.write_spec(folder.spec().model_copy(update={"debug_logging": debug}))

    def talk(*_: Any, **__: Any) -> None:
        logging.getLogger("steppe.somewhere").debug("a detail")
        logging.getLogger("another.package").warning("not ours")
        logging.getLogger("another.package").info("nor this")
        raise StateError("enough")

    with pytest.raises(StateError):
        run(folder, trainer=talk)  # type: ignore[arg-type]
    log = folder.log.read_text()
    assert ("a detail" in log, "not ours" in log, "nor this" in log) == (debug, True, False)


CHILD = """
import sys, time
from pathlib import Path
from steppe.experiments.process import run as module
from steppe.experiments.run_folder.store import RunFolder
from steppe.runners._base import Progress, RunOutcome

def hold(spec, folder, *, resume, request, on_progress):
    on_progress(Progress("training", timestep=10))
    print("training", flush=True)
    while {condition}:
        time.sleep(0.002)
    return RunOutcome({{"pause": "paused", "stop": "stopped"}}[request()], "asked", 10, 1, 1, None, 0.1, [])

sys.exit(module.run(RunFolder(Path(sys.argv[1])), trainer=hold, announce=lambda s: print(s, flush=True)).exit_code)
"""


def _child(folder: RunFolder, condition: str = "request() is None") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD.format(condition=condition), str(folder.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    return process


@pytest.mark.parametrize(("number", "state"), [("SIGINT", "paused"), ("SIGTERM", "stopped"), ("SIGHUP", "paused")])
def test_a_signal_ends_the_run_in_order(folder: RunFolder, number: str, state: str) -> None:
    with _child(folder) as process:
        assert folder.local_status().state == "running"
        process.send_signal(getattr(signal, number))
        assert process.wait(30) == 128 + getattr(signal, number)
    assert folder.local_status().state == state


def test_a_second_ctrl_c_ends_at_once(folder: RunFolder) -> None:
    with _child(folder, condition="True") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert "Ctrl-C again ends at once" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    assert folder.local_status().state == "stopped"
    assert "second Ctrl-C" in folder.local_status().reason


@pytest.mark.faults
def test_a_killed_run_is_found_failed(folder: RunFolder) -> None:
    with _child(folder) as process:
        assert folder.local_status().state == "running"
        process.kill()
        process.wait(30)
    assert (folder.local_status().state, folder.local_status().reason) == ("failed", DIED)
