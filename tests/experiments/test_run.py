from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from steppe.errors import StateError, TrainingDiverged
from steppe.experiments import owner as owner_module
from steppe.experiments.run import main, run
from steppe.experiments.store import DIED, RunFolder
from steppe.records import report


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write_report", lambda folder: folder)


def test_a_run_that_ends_is_completed(folder: RunFolder, trainer: Any) -> None:
    seen: list[str] = []
    ended = run(folder, trainer=trainer(), on_progress=lambda progress: seen.append(progress.phase))
    status = folder.status()
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
    assert (folder.status().state, folder.status().reason) == ("failed", "the loss is NaN at timestep 5")


def test_an_unknown_error_fails_the_run_and_its_traceback_is_in_the_log(folder: RunFolder) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError):
        run(folder, trainer=explode)  # type: ignore[arg-type]
    assert (folder.status().state, folder.status().reason) == ("failed", "ZeroDivisionError: boom")
    assert "Traceback" in folder.log.read_text()


def test_a_spec_that_was_broken_by_hand_fails_the_run(folder: RunFolder) -> None:
    (folder.path / "experiment.json").write_text('{"name": "first"}')
    assert main([str(folder.path)]) == 2
    assert folder.status().state == "failed"
    assert "missing field" in folder.status().reason


def test_a_request_pauses_and_a_resume_goes_on(folder: RunFolder, trainer: Any, in_background: Any) -> None:
    held = trainer(hold=True)
    results = in_background(lambda: run(folder, trainer=held))
    assert held.training.wait(30)
    assert folder.status().state == "running"
    folder.ask("pause")
    while not results:
        assert folder.status().state in ("running", "pausing", "paused")
    assert (folder.status().state, folder.status().timestep) == ("paused", 10)
    assert folder.asked() is None
    second = trainer()
    run(folder, resume=True, trainer=second)
    assert second.calls[0]["resume"]
    assert (folder.status().state, folder.status().timestep) == ("completed", 30)


def test_a_stop_outweighs_a_pause(folder: RunFolder, trainer: Any, in_background: Any) -> None:
    held = trainer(hold=True)
    in_background(lambda: run(folder, trainer=held))
    assert held.training.wait(30)
    folder.ask("stop")
    while folder.status().is_live:
        pass
    assert folder.status().state == "stopped"


def test_an_old_request_does_not_end_a_new_run(folder: RunFolder, trainer: Any) -> None:
    folder.ask("stop")
    run(folder, trainer=trainer())
    assert folder.status().state == "completed"


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
    with pytest.raises(StateError, match="--resume"):
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
    assert folder.status().state == "completed"
    assert "no report today" in folder.log.read_text()


CHILD = """
import sys, time
from pathlib import Path
from steppe.experiments import run as module
from steppe.experiments.store import RunFolder
from steppe.runners._base import Outcome, Progress

def hold(spec, folder, *, resume, request, on_progress):
    on_progress(Progress("training", timestep=10))
    print("training", flush=True)
    while {condition}:
        time.sleep(0.002)
    return Outcome({{"pause": "paused", "stop": "stopped"}}[request()], "asked", 10, 1, 1, None, 0.1, [])

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
        assert folder.status().state == "running"
        process.send_signal(getattr(signal, number))
        assert process.wait(30) == 128 + getattr(signal, number)
    assert folder.status().state == state


def test_a_second_ctrl_c_ends_at_once(folder: RunFolder) -> None:
    with _child(folder, condition="True") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert "Ctrl-C again ends at once" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    assert folder.status().state == "stopped"
    assert "second Ctrl-C" in folder.status().reason


@pytest.mark.faults
def test_a_killed_run_is_found_failed(folder: RunFolder) -> None:
    with _child(folder) as process:
        assert folder.status().state == "running"
        process.kill()
        process.wait(30)
    assert (folder.status().state, folder.status().reason) == ("failed", DIED)
