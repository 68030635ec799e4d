"""A run folder and its copy in object storage: in memory for every order of events, and on a real server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from object_storage import BUCKET, Gate, client_of, contents
from processes import wait_until

from steppe.errors import MissingExtra, SteppeError, UserError
from steppe.experiments.process import pod_run
from steppe.experiments.run_folder import store
from steppe.platforms.kubernetes.storage import object_store, result_sync, sync_thread
from steppe.platforms.kubernetes.storage.object_store import INDEX, Index, ObjectStore, StoreError, stored_at
from steppe.platforms.kubernetes.storage.result_sync import Interrupted, ResultSync, Superseded
from steppe.platforms.kubernetes.storage.sync_thread import SyncThread
from steppe.records import checkpoints

pytest.importorskip("fsspec")
SMALLEST_PART = 5 << 20
"""The smallest part of an object in S3; Google accepts smaller ones."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Removes all waiting: another writer counts as gone at once, and retries follow without a pause."""
    monkeypatch.setattr(result_sync, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(result_sync, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(sync_thread, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(object_store, "FIRST_PAUSE", 0.0)


@pytest.fixture
def url():
    return f"memory://{uuid4().hex}/run"


def new_sync(url, folder, notes=None) -> ResultSync:
    folder.mkdir(parents=True, exist_ok=True)
    made = ResultSync(ObjectStore(url), folder, uuid4().hex, (notes if notes is not None else []).append)
    made.claim()
    made.fetch()
    return made


def train(folder, timestep) -> None:
    """Writes the files of a run at a timestep, in the order in which the run writes them."""
    (folder / "policy").mkdir(parents=True, exist_ok=True)
    (folder / "experiment.json").write_text("{}")
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"timestep": timestep}) + "\n")
    checkpoints.save(folder, timestep, {"weights": np.full(300, timestep)}, {"at": timestep}, keep=2)
    (folder / "policy" / "policy.safetensors").write_bytes(bytes([timestep % 256]) * 5000)
    (folder / "status.json").write_text(json.dumps({"timestep": timestep}))
    (folder / ".pod.json").write_text(json.dumps({"timestep": timestep}))


def stored(url) -> dict[str, bytes]:
    """All objects but the index, fetched with fsspec alone."""
    files, root = client_of(url)
    found = {path.removeprefix(root).lstrip("/"): files.cat_file(path) for path in files.find(root)}
    found.pop(INDEX)
    return found


def test_the_sync_and_the_run_use_the_same_file_names():
    assert (result_sync.NOTE_FILE, result_sync.REQUEST_FILE) == (pod_run.NOTE_FILE, store.REQUEST_FILE)
    assert result_sync.LAST == (store.SPEC_FILE, pod_run.NOTE_FILE, store.STATUS_FILE)


def test_the_store_has_the_files_of_the_run(place, tmp_path):
    folder = tmp_path / "run"
    sync = new_sync(place, folder)
    for timestep in (10, 20, 30):
        train(folder, timestep)
        sync.sync()
    (folder / ".lock").touch()
    (folder / "request.json").write_text("{}")
    sync.settle()
    assert stored(place) == contents(folder)
    assert not any(name.startswith("checkpoints/10/") for name in stored(place))
    assert ObjectStore(place).read_index().writer is None


def test_another_pod_resumes_from_the_store(place, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    sync = new_sync(place, first)
    train(first, 10)
    (first / "empty").touch()
    sync.settle()
    sync = new_sync(place, second)
    assert contents(second) == contents(first)
    assert checkpoints.load_latest(second).timestep == 10
    train(second, 20)
    sync.settle()
    assert stored(place) == contents(second)


def test_a_large_file_is_stored_in_parts(remote, tmp_path, monkeypatch):
    in_blocks_of(SMALLEST_PART, monkeypatch)
    folder = tmp_path / "run"
    sync = new_sync(remote, folder)
    train(folder, 10)
    (folder / "large").write_bytes(os.urandom(SMALLEST_PART * 2 + 12345))
    sync.settle()
    assert stored(remote) == contents(folder)
    new_sync(remote, tmp_path / "other")
    assert contents(tmp_path / "other") == contents(folder)


def in_blocks_of(size: int, monkeypatch) -> None:
    for module in (object_store, result_sync):
        monkeypatch.setattr(module, "BLOCK", size)


class Killed(BaseException):
    """The death of a writer."""


def kill_at(sync: ResultSync, moment: int, monkeypatch, *, after: bool) -> None:
    """Kills the writer at its n-th change of the store, before or after the change."""
    count = 0
    for name in ("write", "upload", "remove"):
        original = getattr(sync.store, name)

        def change(*arguments, original=original):
            nonlocal count
            count += 1
            if count == moment and not after:
                raise Killed
            result = original(*arguments)
            if count == moment:
                raise Killed
            return result

        monkeypatch.setattr(sync.store, name, change)


@pytest.mark.faults
@pytest.mark.parametrize("after", [False, True])
def test_a_writer_killed_at_any_moment_leaves_a_run_that_can_resume(url, tmp_path, monkeypatch, after):
    in_blocks_of(4096, monkeypatch)
    moment = 0
    while True:
        moment += 1
        place, folder = f"{url}-{moment}", tmp_path / f"run-{moment}"
        sync = new_sync(place, folder)
        for timestep in (10, 20):
            train(folder, timestep)
            sync.sync()
        train(folder, 30)
        with monkeypatch.context() as patches:
            kill_at(sync, moment, patches, after=after)
            try:
                sync.settle()
            except Killed:
                pass
            else:
                break
        notes: list[str] = []
        found = tmp_path / f"found-{moment}"
        again = new_sync(place, found, notes)
        assert notes == []
        said = json.loads((found / "status.json").read_text())["timestep"]
        noted = json.loads((found / ".pod.json").read_text())["timestep"]
        newest = checkpoints.load_latest(found)
        assert said in (20, 30)
        # All results that the status reports exist.
        assert newest.timestep >= max(said, noted)
        if 30 in (said, noted):
            assert (found / "policy" / "policy.safetensors").read_bytes() == bytes([30]) * 5000
        # The next sync repairs the rest.
        train(found, 40)
        again.settle()
        assert stored(place) == contents(found)
    assert moment > 12


@pytest.mark.faults
@pytest.mark.parametrize("after", [False, True])
def test_the_first_writer_leaves_all_or_nothing_if_it_is_killed(url, tmp_path, monkeypatch, after):
    moment, was_killed = 0, True
    while was_killed:
        moment += 1
        place, folder, found = f"{url}-{moment}", tmp_path / f"run-{moment}", tmp_path / f"found-{moment}"
        sync = new_sync(place, folder)
        train(folder, 10)
        was_killed = False
        with monkeypatch.context() as patches:
            kill_at(sync, moment, patches, after=after)
            try:
                sync.sync()
            except Killed:
                was_killed = True
        again = new_sync(place, found)
        assert contents(found) in ({}, contents(folder))
        again.settle()
        assert stored(place) == contents(found)
    assert moment > 6


@pytest.mark.faults
def test_a_pod_killed_during_an_upload_leaves_the_last_checkpoint(remote, tmp_path):
    folder = tmp_path / "run"
    sync = new_sync(remote, folder)
    train(folder, 10)
    sync.sync()
    (folder / "checkpoints" / "20").mkdir()
    (folder / "checkpoints" / "20" / "state.safetensors").write_bytes(os.urandom(4 * SMALLEST_PART))
    (folder / "checkpoints" / "20" / "state.json").write_text("{}")
    (folder / "status.json").write_text('{"timestep": 20}')
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from steppe.platforms.kubernetes.storage import object_store, result_sync\n"
        "result_sync.SILENT_SECONDS, result_sync.LOOK_SECONDS = 0.0, 0.01\n"
        "result_sync.BLOCK = object_store.BLOCK = int(sys.argv[3])\n"
        "made = result_sync.ResultSync(object_store.ObjectStore(sys.argv[1]), Path(sys.argv[2]), 'second')\n"
        "made.claim()\n"
        "sent = 0\n"
        "def sending():\n"
        "    global sent\n"
        "    sent += 1\n"
        "    if sent == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "upload = made.store.upload\n"
        "made.store.upload = lambda name, file, size, after: upload(name, file, size, sending)\n"
        "made.sync()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, remote, str(folder), str(SMALLEST_PART)], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    notes: list[str] = []
    new_sync(remote, tmp_path / "found", notes)
    assert notes == []
    assert checkpoints.load_latest(tmp_path / "found").timestep == 10
    assert json.loads((tmp_path / "found" / "status.json").read_text()) == {"timestep": 10}


@pytest.mark.faults
def test_a_pod_stops_if_another_has_become_the_writer(place, tmp_path):
    first = new_sync(place, tmp_path / "first")
    train(tmp_path / "first", 10)
    first.sync()
    new_sync(place, tmp_path / "second")
    train(tmp_path / "first", 20)
    with pytest.raises(Superseded):
        first.sync()
    assert json.loads(stored(place)["status.json"]) == {"timestep": 10}


def test_a_pod_waits_until_the_last_writer_has_released_the_run(url, tmp_path, monkeypatch):
    monkeypatch.setattr(result_sync, "SILENT_SECONDS", 3600.0)
    first = new_sync(url, tmp_path / "first")
    train(tmp_path / "first", 10)
    second = ResultSync(ObjectStore(url), tmp_path / "second", "second")
    waiting = threading.Thread(target=second.claim)
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    first.settle()
    waiting.join(120)
    assert not waiting.is_alive()
    second.fetch()
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


def test_a_pod_that_must_end_stops_waiting(url, tmp_path, monkeypatch):
    monkeypatch.setattr(result_sync, "SILENT_SECONDS", 30.0)
    new_sync(url, tmp_path / "first")
    with pytest.raises(Interrupted):
        ResultSync(ObjectStore(url), tmp_path / "second", "second").claim(lambda: True)


@pytest.mark.parametrize("harm", ["changed", "half", "gone"])
@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "checkpoints/20/state.safetensors"])
def test_damaged_objects_are_detected(url, tmp_path, harm, name):
    see_damage(url, tmp_path, harm, name)


def test_a_truncated_object_on_a_real_server_is_detected(remote, tmp_path):
    see_damage(remote, tmp_path, "half", "checkpoints/20/state.safetensors")


def see_damage(place, tmp_path, harm, name) -> None:
    folder = tmp_path / "run"
    sync = new_sync(place, folder)
    for timestep in (10, 20):
        train(folder, timestep)
        sync.sync()
    sync.settle()
    files, root = client_of(place)
    data = files.cat_file(f"{root}/{name}")
    if harm == "gone":
        files.rm_file(f"{root}/{name}")
    else:
        files.pipe_file(f"{root}/{name}", data[:-1] + b"?" if harm == "changed" else data[: len(data) // 2])
    notes: list[str] = []
    if name == "status.json":
        with pytest.raises(UserError, match=r"status\.json is damaged or gone.*bring back an earlier version"):
            new_sync(place, tmp_path / "other", notes)
        return
    other = new_sync(place, tmp_path / "other", notes)
    assert notes == other.damaged == [f"{place}/{name} is damaged or gone: it is not what was stored there"]
    if name.startswith("checkpoints"):
        assert checkpoints.load_latest(tmp_path / "other").timestep == 10


def test_a_damaged_index_is_an_error_and_not_an_empty_store(url, tmp_path):
    sync = new_sync(url, tmp_path / "run")
    sync.settle()
    sync.store.write(INDEX, b'{"format": "steppe-res')
    with pytest.raises(UserError, match=r"\.steppe-index\.json is damaged"):
        new_sync(url, tmp_path / "other")


def test_an_index_cannot_name_files_elsewhere():
    index = Index(files={"../../etc/passwd": object_store.StoredObject(1, "")})
    with pytest.raises(ValueError, match="elsewhere"):
        Index.parse(index.text().encode())


def test_a_lost_object_is_stored_again_at_the_end(url, tmp_path):
    folder = tmp_path / "run"
    notes: list[str] = []
    sync = new_sync(url, folder, notes)
    train(folder, 10)
    sync.sync()
    sync.store.remove(["policy/policy.safetensors"])
    sync.settle()
    assert stored(url) == contents(folder)
    assert "is stored again" in notes[-1]


def test_an_emptied_store_is_filled_again(url, tmp_path):
    folder = tmp_path / "run"
    sync = new_sync(url, folder)
    train(folder, 10)
    sync.sync()
    assert ObjectStore(url).erase() > 5
    sync.settle()
    assert stored(url) == contents(folder)


@pytest.mark.faults
def test_an_unreachable_store_is_waited_for(cloud, remote, tmp_path, monkeypatch):
    gate = Gate(cloud.port)
    gate.open()
    at(cloud.address(gate.port), monkeypatch)
    folder, notes = tmp_path / "run", []
    folder.mkdir()
    thread = SyncThread(ResultSync(ObjectStore(remote), folder, "first", notes.append), lambda: None, seconds=0.1)
    thread.begin()
    train(folder, 10)
    wait_until(lambda: "checkpoints/10/state.json" in known(cloud, remote, monkeypatch), "the first checkpoint")
    gate.shut()
    train(folder, 20)
    wait_until(lambda: thread.trouble, "trouble")
    assert re.match(rf"the results are not stored: cannot (read|write|remove) {remote}/", thread.trouble)
    assert notes[-1].endswith("this is tried again")
    ending = threading.Thread(target=thread.finish)
    ending.start()
    ending.join(3)
    # The run is not over before its results are stored.
    assert ending.is_alive()
    assert thread.phase == f"storing the results in {remote}"
    gate.open()
    ending.join(120)
    assert not ending.is_alive()
    assert notes[-1] == "the results are stored again"
    assert (thread.trouble, thread.phase) == ("", "")
    gate.shut()
    at(cloud.address(), monkeypatch)
    assert stored(remote) == contents(folder)


def at(variables, monkeypatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def known(cloud, url, monkeypatch) -> dict[str, object]:
    with monkeypatch.context() as direct:
        at(cloud.address(), direct)
        index = ObjectStore(url).read_index()
    return {} if index is None else dict(index.files)


def test_the_thread_stores_at_each_checkpoint(url, tmp_path):
    thread = SyncThread(ResultSync(ObjectStore(url), tmp_path / "run", "first"), lambda: None, seconds=1000)
    (tmp_path / "run").mkdir()
    thread.begin()
    for timestep in (10, 20):
        train(tmp_path / "run", timestep)
        wait_until(
            lambda timestep=timestep: f"checkpoints/{timestep}/state.json" in ObjectStore(url).read_index().files,
            f"checkpoint {timestep}",
            seconds=30,
        )
    thread.finish()


def test_the_thread_ends_the_training_if_another_pod_writes(url, tmp_path):
    (tmp_path / "run").mkdir()
    ended = threading.Event()
    thread = SyncThread(ResultSync(ObjectStore(url), tmp_path / "run", "first"), ended.set, seconds=0.05)
    thread.begin()
    new_sync(url, tmp_path / "other")
    assert ended.wait(30)
    with pytest.raises(Superseded):
        thread.finish()


@pytest.mark.parametrize(
    ("bucket", "has_keys", "sentence"),
    [
        ("no-such-bucket", True, "there is no such bucket; make it first"),
        (BUCKET, False, "there are no credentials for it"),
    ],
)
def test_an_unusable_store_is_an_error_before_the_training(cloud, tmp_path, monkeypatch, bucket, has_keys, sentence):
    # Otherwise the client would ask the cloud's metadata server.
    at({"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "HOME": str(tmp_path)}, monkeypatch)
    for name in () if has_keys else cloud.keys:
        monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=sentence):
        SyncThread(ResultSync(ObjectStore(cloud.place(bucket)), tmp_path / "run", "first"), lambda: None).begin()


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    # s3fs was never imported and cannot be.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtra, match=r'pip install "steppe\[storage\]"'):
        ObjectStore("s3://bucket/run")


def test_an_unknown_kind_of_store_is_refused():
    with pytest.raises(SteppeError, match="results cannot be stored in nowhere://bucket/run"):
        ObjectStore("nowhere://bucket/run")


def test_every_experiment_has_its_own_place_in_the_store():
    places = {
        stored_at(results, run, token)
        for results in ("s3://bucket/a", "s3://bucket/b")
        for run in ("steppe-first-1", "steppe-second-2")
        for token in ("one", "two")
    }
    assert len(places) == 8
    assert stored_at("s3://bucket/a/", "run", "one") == stored_at("s3://bucket/a", "run", "one")
    assert "one" not in stored_at("s3://bucket/a", "run", "one")


NAMES = (
    "a",
    "b/c",
    "b/d/e",
    "status.json",
    "experiment.json",
    "checkpoints/1/state.json",
    "checkpoints/1/state.safetensors",
)
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["write", "append"]), st.sampled_from(NAMES), st.binary(max_size=60)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.just(b"")),
    st.tuples(st.sampled_from(["sync", "killed", "fails"]), st.integers(1, 6), st.booleans()),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGES, max_size=25))
@example(changes=[("write", "a", b"\0"), ("killed", 2, True), ("write", "a", b""), ("killed", 2, False)])
def test_the_copy_is_the_folder_after_any_changes(changes, tmp_path, monkeypatch):
    """Files change at random; the store fails, and writers are killed and replaced, at any step."""
    url, folder = f"memory://{uuid4().hex}/run", tmp_path / uuid4().hex
    in_blocks_of(16, monkeypatch)
    sync = new_sync(url, folder)
    for what, name, detail in changes:
        if what in ("write", "append"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if what == "append" else "wb") as file:
                file.write(detail)
        elif what == "remove":
            (folder / name).unlink(missing_ok=True)
        elif what == "sync":
            sync.sync()
        else:
            with monkeypatch.context() as patches:
                kill_at(sync, name, patches, after=detail)
                with contextlib.suppress(Killed):
                    sync.sync()
            if what == "killed":
                notes: list[str] = []
                folder = tmp_path / uuid4().hex
                sync = new_sync(url, folder, notes)
                assert notes == []
    sync.settle()
    assert stored(url) == contents(folder)
    other = tmp_path / uuid4().hex
    new_sync(url, other)
    # A run without a status cannot resume, so nothing is fetched.
    assert contents(other) == (contents(folder) if (folder / "status.json").exists() else {})
    for each in (folder, other):
        shutil.rmtree(each)
