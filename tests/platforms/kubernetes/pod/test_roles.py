"""The driver in its Pod: the status that it reports, and its exit codes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steppe.platforms.kubernetes.agreement import ELSEWHERE, FAILED_FOR_GOOD, NOTE_FILE, REPLACED
from steppe.platforms.kubernetes.pod import roles

Json = dict[str, Any]
DriverOf = Callable[[str], roles.Driver]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverOf:
    """A driver whose training is any program, which finds its status in `status`."""
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "door").write_text("secret")
    for name, value in {
        "RESULTS": str(tmp_path),
        "TOKENS": str(tmp_path / "tokens"),
        "TERMINATION_LOG": str(tmp_path / "last-words"),
        "DOOR_PORT": 0,
    }.items():
        monkeypatch.setattr(roles, name, value)
    monkeypatch.setattr(roles.signal, "signal", lambda *_: None)
    monkeypatch.setenv("STEPPE_POD_EXPERIMENT", "x")
    (tmp_path / "x").mkdir()
    status = f"import json, pathlib, sys; status = pathlib.Path({str(tmp_path / 'x' / 'status.json')!r})\n"

    def of(training: str) -> roles.Driver:
        made = roles.Driver()
        monkeypatch.setattr(made, "_command", lambda: [sys.executable, "-c", status + training])
        return made

    return of


@pytest.fixture(autouse=True)
def _doors_are_closed() -> Iterator[None]:
    """However a driver ends, its status server ends with it."""
    before = set(threading.enumerate())
    yield
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "status-server"]


def write_status(tmp_path: Path, **status: Any) -> None:
    (tmp_path / "x" / "status.json").write_text(json.dumps(status))


BEGIN = "status.write_text(json.dumps({'state': 'running', 'started': 2.0}))\n"


@pytest.mark.parametrize(
    ("training", "exit_code"),
    [
        (BEGIN + "sys.exit(7)", REPLACED),
        # It has not begun and might never get further, so Kubernetes must count the restarts.
        ("sys.exit(7)", roles.DIED),
        # It has waited for another Pod, which does not count as a failure.
        (f"sys.exit({ELSEWHERE})", REPLACED),
        (BEGIN + "sys.exit(3)", FAILED_FOR_GOOD),
        (BEGIN + "sys.exit(0)", 0),
    ],
)
def test_a_training_that_has_begun_is_replaced_without_limit(
    driver: DriverOf, tmp_path: Path, training: str, exit_code: int
) -> None:
    write_status(tmp_path, state="running", started=1.0)
    assert driver(training).run() == exit_code


@pytest.mark.parametrize(
    ("ended", "shown"),
    [("completed", "running"), ("paused", "pausing"), ("stopped", "running"), ("failed", "running")],
)
def test_a_run_is_finishing_while_it_writes_its_report(
    driver: DriverOf, tmp_path: Path, ended: str, shown: str
) -> None:
    write_status(tmp_path, state="paused", started=1.0, finished=1.5)
    made = driver(f"status.write_text(json.dumps({{'state': {ended!r}, 'started': 2.0, 'finished': 3.0}}))")
    # The status of an earlier start does not mean that this start has ended.
    assert made._facts()["status"]["state"] == "paused"
    assert made._train() == 0
    seen = made._facts()
    assert (seen["is_over"], seen["status"]["state"], seen["status"]["phase"]) == (False, shown, "finishing")
    made._is_over = True
    assert made._facts()["status"]["state"] == ended


@pytest.mark.parametrize(
    ("joined", "seconds"),
    [
        ({"worker": {"here": 2, "wanted": 2, "most": 2}}, roles.LINGER_SECONDS),
        ({"worker": {"here": 1, "wanted": 2, "most": 2}}, roles.LINGER_FOR_MISSING_SECONDS),
        # It ended before any worker had joined.
        (None, roles.LINGER_FOR_MISSING_SECONDS),
    ],
)
def test_a_finished_driver_waits_longer_for_missing_pods(
    driver: DriverOf, monkeypatch: pytest.MonkeyPatch, joined: Json | None, seconds: float
) -> None:
    monkeypatch.setenv("STEPPE_POD_RUN_MODE", "async")
    note = f"import os; pathlib.Path(os.environ['STEPPE_JOINED_FILE']).write_text({json.dumps(joined)!r})"
    made = driver(note if joined else "")
    lingered: list[float] = []
    monkeypatch.setattr(made, "_linger", lingered.append)
    assert made.run() == 0
    assert lingered == [seconds]


@pytest.mark.parametrize(
    ("start", "seconds"),
    [("2", roles.LINGER_SECONDS), ("1", roles.LINGER_FOR_MISSING_SECONDS)],
    ids=["this", "an earlier"],
)
def test_a_driver_does_not_wait_long_if_an_earlier_pod_has_done_so(
    driver: DriverOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, seconds: float
) -> None:
    monkeypatch.setenv("STEPPE_POD_RUN_MODE", "async")
    monkeypatch.setenv("STEPPE_POD_START", "2")
    (tmp_path / "x" / NOTE_FILE).write_text(json.dumps({"start": start, "exit_code": FAILED_FOR_GOOD}))
    made = driver(f"sys.exit({FAILED_FOR_GOOD})")
    lingered: list[float] = []
    monkeypatch.setattr(made, "_linger", lingered.append)
    assert made.run() == FAILED_FOR_GOOD
    assert lingered == [seconds]


def test_a_pod_that_could_not_start_reports_that_another_runs(driver: DriverOf, tmp_path: Path) -> None:
    write_status(tmp_path, state="running", started=1.0)
    driver(f"sys.exit({ELSEWHERE})").run()
    words = json.loads((tmp_path / "last-words").read_text())
    assert not words["is_over"]
    assert words["status"]["reason"] == "another Pod still had the experiment, and only one may write the results"
