"""`list` and `show` of experiments on clusters."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from steppe.cli.display import experiment_tables
from steppe.clusters import registry
from steppe.errors import ClusterError
from steppe.experiments.on_cluster.address import ClusterAddress, write_address
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.run_folder.store import RunFolder, Status

WAITS = "0 of 2 workers are ready: Pod x waits for a node"


@pytest.fixture
def placed(steppe: Any, project: Path, trained: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an experiment on a cluster; returns a function that sets its status there."""
    assert steppe("experiment", "new", "-f", "cartpole_ppo", "-n", "first").code == 0
    folder = RunFolder(project / "experiments" / "first")
    place = ClusterAddress("lab", "default", "steppe-first-1", start=1)
    write_address(folder, place)
    monkeypatch.setattr(registry, "knows", lambda name: True)
    monkeypatch.setattr(ClusterLocation, "files_there", lambda self: pytest.fail("a reader would be started"))

    def see(**fields: Any) -> RunFolder:
        monkeypatch.setattr(ClusterLocation, "status", lambda self: Status(created=1.0, **fields))
        return folder

    return see


@pytest.mark.parametrize("state", ["starting", "running"])
def test_list_and_show_tell_what_a_run_waits_for(steppe: Any, placed: Any, monkeypatch: Any, state: str) -> None:
    placed(state=state, phase=WAITS)
    monkeypatch.setattr(ClusterLocation, "files_there", lambda self: [])
    assert f'note: experiment "first" is {state}: {WAITS}\n' in steppe("experiment", "list").out.replace("\n ", " ")
    assert json.loads(steppe("experiment", "list", "--json").out)[0]["phase"] == WAITS
    shown = " ".join(steppe("experiment", "show", "-e", "first").out.split())
    assert f"phase {WAITS}" in shown
    # No process is known yet.
    assert "None" not in shown


def test_plain_training_is_no_note(steppe: Any, placed: Any, monkeypatch: Any) -> None:
    placed(state="running", phase="training")
    assert "note:" not in steppe("experiment", "list").out


def test_the_files_of_a_run_are_those_on_its_cluster(steppe: Any, placed: Any, monkeypatch: Any) -> None:
    placed(state="running", phase="training", heartbeat=1.0)
    there = [{"path": "metrics.jsonl", "size": 2000}, {"path": "checkpoints/5/a", "size": 1000}]
    there.append({"path": "checkpoints/5/b", "size": 1000})
    monkeypatch.setattr(ClusterLocation, "files_there", lambda self: there)
    shown = " ".join(steppe("experiment", "show", "-e", "first").out.split())
    assert "checkpoints/ 2 files, 2 kB" in shown
    assert "metrics.jsonl 2 kB" in shown
    told = json.loads(steppe("experiment", "show", "-e", "first", "--json").out)["files"]
    assert told == [each["path"] for each in there]


def test_show_names_where_the_files_of_an_ended_run_are(steppe: Any, placed: Any) -> None:
    placed(state="paused")
    answer = steppe("experiment", "show", "-e", "first")
    assert answer.code == 0
    shown = " ".join(answer.out.split())
    assert 'what it has left is on cluster "lab"; fetch it with: steppe experiment download -e first' in shown
    assert "experiment.json" in shown.partition("files")[2]


def test_a_driver_that_does_not_show_its_files_is_no_error(steppe: Any, placed: Any, monkeypatch: Any) -> None:
    placed(state="running")

    def away(folder: RunFolder) -> Any:
        raise ClusterError("nobody answers")

    monkeypatch.setattr(ClusterLocation, "files_there", away)
    assert 'what it has left is on cluster "lab"' in " ".join(steppe("experiment", "show", "-e", "first").out.split())


def test_a_log_is_followed_from_before_there_is_anybody_to_read_it(
    steppe: Any, placed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(state="starting")
    said: list[bytes | ClusterError] = [ClusterError("its Pod is starting"), b"one\n", b"two\n"]
    goes_on = iter([True, True, False])

    def read(position: int, is_patient: bool) -> bytes:
        assert is_patient == (len(said) > 1)
        text = said.pop(0)
        if isinstance(text, ClusterError):
            raise text
        return text

    @contextlib.contextmanager
    def log_of(folder: RunFolder) -> Any:
        yield read, lambda: next(goes_on)

    monkeypatch.setattr(ClusterLocation, "log", log_of)
    monkeypatch.setattr(experiment_tables.time, "sleep", lambda seconds: None)
    assert steppe("experiment", "logs", "-e", "first", "--follow").out == "one\ntwo\n"
    said.append(ClusterError("its Pod is starting"))
    answer = steppe("experiment", "logs", "-e", "first")
    assert (answer.code, "its Pod is starting" in answer.err) == (1, True)
