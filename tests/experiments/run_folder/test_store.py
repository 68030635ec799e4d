from __future__ import annotations

import dataclasses
import json
import socket
import time
from pathlib import Path

import pytest

from steppe.errors import SpecError, StateError, StorageError
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder import store as store_module
from steppe.experiments.run_folder.store import DIED, RunFolder, Status, Store
from steppe.specs.experiment import ExperimentSpec


def _write(folder: RunFolder, **fields: object) -> None:
    folder.write_status(Status(**fields))  # type: ignore[arg-type]


def test_a_new_experiment_has_its_spec_and_is_created(folder: RunFolder, spec: ExperimentSpec) -> None:
    assert folder.spec() == spec
    assert folder.local_status().state == "created"
    assert json.loads((folder.path / "experiment.json").read_text())["environment"]["id"] == "CartPole-v1"


def test_a_status_is_read_as_it_was_written(folder: RunFolder) -> None:
    evaluation = {"mean": 9.0}
    status = Status(
        "paused",
        "asked to",
        12,
        "host",
        1.0,
        2.0,
        3.0,
        4.0,
        5,
        6,
        7,
        8.5,
        9.5,
        10.5,
        evaluation,
        11.5,
        12.5,
        "",
        ("a",),
    )
    folder.write_status(status)
    assert folder.local_status() == status


def test_an_existing_experiment_is_not_overwritten(folder: RunFolder, spec: ExperimentSpec) -> None:
    with pytest.raises(StateError, match=r'"first" exists already.*--force'):
        folder.create(spec)


def test_force_keeps_the_old_results_beside(folder: RunFolder, spec: ExperimentSpec) -> None:
    _write(folder, state="completed", timestep=30)
    (folder.path / "metrics.jsonl").write_text("old")
    folder.create(spec.model_copy(update={"seed": 2}), force=True)
    (aside,) = folder.path.glob("before-*")
    assert (aside / "metrics.jsonl").read_text() == "old"
    assert json.loads((aside / "experiment.json").read_text())["seed"] == 1
    assert json.loads((aside / "status.json").read_text())["timestep"] == 30
    assert folder.spec().seed == 2
    assert folder.local_status().state == "created"
    assert not (folder.path / "metrics.jsonl").exists()


def test_force_twice_in_a_second_keeps_both(folder: RunFolder, spec: ExperimentSpec) -> None:
    for text in ("one", "two"):
        (folder.path / "metrics.jsonl").write_text(text)
        folder.create(spec, force=True)
    assert {(aside / "metrics.jsonl").read_text() for aside in folder.path.glob("before-*")} == {"one", "two"}


@pytest.mark.parametrize("state", ["starting", "running", "pausing"])
def test_a_live_state_without_an_owner_becomes_failed(folder: RunFolder, state: str) -> None:
    _write(folder, state=state, host=socket.gethostname(), heartbeat=time.time(), timestep=7)
    status = folder.local_status()
    assert (status.state, status.reason, status.timestep) == ("failed", DIED, 7)
    assert folder.read_status() == status


def test_a_live_state_with_an_owner_stays(folder: RunFolder) -> None:
    _write(folder, state="running", host=socket.gethostname(), heartbeat=0.0)
    descriptor = locks.acquire(folder.path)
    assert descriptor is not None
    assert folder.local_status().state == "running"
    locks.release(descriptor)


@pytest.mark.parametrize(("silence", "state"), [(10.0, "running"), (61.0, "failed")])
def test_a_run_on_another_host_lives_by_its_heartbeat(folder: RunFolder, silence: float, state: str) -> None:
    _write(folder, state="running", host="elsewhere", heartbeat=time.time() - silence)
    assert folder.local_status().state == state


def test_a_run_on_another_host_is_not_taken_over(folder: RunFolder) -> None:
    _write(folder, state="running", host="elsewhere", pid=5, heartbeat=time.time())
    with pytest.raises(StateError, match="process 5 on elsewhere"), folder.lock("start"):
        pass


def test_an_owned_folder_is_refused_with_the_process(folder: RunFolder) -> None:
    _write(folder, state="running", host=socket.gethostname(), pid=77)
    descriptor = locks.acquire(folder.path)
    assert descriptor is not None
    with (
        pytest.raises(StateError, match=r'"first" is running already \(process 77\); stop it first'),
        folder.lock("start"),
    ):
        pass
    with pytest.raises(StateError, match="cannot be deleted"), folder.lock("delete"):
        pass
    locks.release(descriptor)


@pytest.mark.parametrize("text", ["{", "[]", '{"state": "dancing"}'])
def test_an_experiment_with_a_broken_status_has_failed(folder: RunFolder, text: str) -> None:
    (folder.path / "status.json").write_text(text)
    assert folder.local_status().state == "failed"
    assert folder.local_status().reason.startswith(f"its status cannot be read: {folder.path / 'status.json'} ")


def test_requests_are_heard_and_forgotten(folder: RunFolder) -> None:
    assert folder.asked() is None
    folder.ask("pause")
    assert folder.asked() == "pause"
    folder.forget_requests()
    assert folder.asked() is None


def test_a_broken_request_is_no_request(folder: RunFolder) -> None:
    (folder.path / "request.json").write_text('{"action": "explode"}')
    assert folder.asked() is None


def test_new_folders_are_numbered(store: Store) -> None:
    assert [store.new_folder("a").name for _ in range(3)] == ["a-1", "a-2", "a-3"]
    assert store.folders() == []


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", "a b"])
def test_a_name_that_is_no_folder_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(SpecError, match="wrong name"):
        store.folder(name)


def test_delete_removes_the_whole_folder(store: Store, folder: RunFolder) -> None:
    store.delete(folder)
    assert list(store.path.iterdir()) == []


def test_delete_refuses_what_is_not_in_the_store(store: Store, folder: RunFolder, tmp_path: Path) -> None:
    for path in (tmp_path, folder.path / "before-1", store.path / "missing"):
        with pytest.raises(StateError, match="is not an experiment"):
            store.delete(RunFolder(path))
    link = store.path / "link"
    link.symlink_to(folder.path)
    with pytest.raises(StateError, match="is not an experiment"):
        store.delete(RunFolder(link))
    assert folder.exists


def test_unknown_fields_of_a_later_version_are_ignored(folder: RunFolder) -> None:
    data = dataclasses.asdict(Status("paused")) | {"mood": "good"}
    (folder.path / "status.json").write_text(json.dumps(data))
    assert folder.local_status().state == "paused"


def test_files_that_are_no_experiments_are_left_where_they_are(store: Store, spec: ExperimentSpec) -> None:
    mine = store.path / "first" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for force in (False, True):
        with pytest.raises(StateError, match="holds files that are no experiment's"):
            RunFolder(mine.parent).create(spec, force=force)
    assert mine.read_text() == "mine"


def test_of_two_processes_that_make_the_same_experiment_one_is_refused(
    store: Store, spec: ExperimentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = RunFolder(store.path / "first")
    acquire = locks.acquire

    def overtaken(path: Path, patience: float = 0.0) -> int | None:
        monkeypatch.setattr(locks, "acquire", acquire)
        store.folder("first").create(spec)
        return acquire(path, patience)

    monkeypatch.setattr(locks, "acquire", overtaken)
    with pytest.raises(StateError, match="exists already"):
        late.create(spec.model_copy(update={"seed": 2}))
    assert late.spec().seed == 1


def test_an_experiment_whose_deletion_was_cut_short_is_not_listed(store: Store, folder: RunFolder) -> None:
    folder.path.rename(folder.path.with_name(".deleting-first-1"))
    assert store.folders() == []


def test_locks_and_unfinished_files_are_no_files_of_the_run(folder: RunFolder) -> None:
    for name in (
        ".lock",
        ".tmp-host-1-0-state/state.json",
        "checkpoints/10/state.json",
        "checkpoints/.tmp-x/state.json",
    ):
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).touch()
    names = [str(path.relative_to(folder.path)) for path in folder.files()]
    assert names == ["checkpoints/10/state.json", "experiment.json", "status.json"]


@pytest.fixture
def full(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A folder on a disk that takes no new file."""

    def refuse(path: Path, _: object) -> None:
        raise StorageError(f"cannot write {path}: the disk is full; free some space")

    folder.reserve_disk()
    monkeypatch.setattr(store_module, "write_atomically", refuse)
    return folder


def test_the_last_status_has_room_on_a_full_disk(full: RunFolder) -> None:
    status = Status("failed", reason="the disk is full", notices=("a", "b"))
    with pytest.raises(StorageError):
        full.write_status(status)
    full.write_last_status(status)
    assert full.read_status() == status
    assert not (full.path / ".room").exists()


def test_a_disk_without_room_says_so(full: RunFolder) -> None:
    full.free_reserve()
    with pytest.raises(StorageError, match="the disk is full"):
        full.write_last_status(Status("failed"))
    assert full.read_status().state == "created"


def _resuming(folder: RunFolder, **before: object) -> Status:
    completed = Status("completed", "all 30 timesteps were run", pid=5, finished=9.0, timestep=30, **before)  # type: ignore[arg-type]
    return Status("starting", pid=6, host=socket.gethostname(), before=dataclasses.asdict(completed))


def test_a_completed_experiment_whose_resume_dies_while_it_starts_is_completed(folder: RunFolder) -> None:
    folder.write_status(_resuming(folder, notices=("mind the gap",)))
    status = folder.local_status()
    assert (status.state, status.reason, status.pid, status.finished, status.timestep) == (
        "completed",
        "all 30 timesteps were run",
        5,
        9.0,
        30,
    )
    assert status.notices == ("mind the gap", f"the last resume could not begin: {DIED}")
    assert folder.read_status() == status


def test_only_the_last_resume_that_could_not_begin_is_noted(folder: RunFolder) -> None:
    folder.write_status(_resuming(folder, notices=("mind the gap", "the last resume could not begin: no luck")))
    assert folder.local_status().notices == ("mind the gap", f"the last resume could not begin: {DIED}")
