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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from object_storage import BUCKET, Gate, client_of, contents
from processes import wait_until

from steppe.errors import MissingExtra, SteppeError, UserError
from steppe.experiments.process import pod_run
from steppe.experiments.run_folder import store
from steppe.platforms.kubernetes.storage import object_store as stores
from steppe.platforms.kubernetes.storage import result_sync as mirrors
from steppe.platforms.kubernetes.storage import sync_thread as keepers
from steppe.platforms.kubernetes.storage.object_store import INDEX, Index, ObjectStore, StoreTrouble, stored_at
from steppe.platforms.kubernetes.storage.result_sync import Interrupted, Mirror, Superseded
from steppe.platforms.kubernetes.storage.sync_thread import Keeper
from steppe.records import checkpoints

pytest.importorskip("fsspec")
SMALLEST_PART = 5 << 20
"""What S3 takes as a part of an object; Google takes smaller ones."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nobody is waited for, as if a minute had gone by, and nothing is tried a second time."""
    monkeypatch.setattr(mirrors, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(keepers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.0)


@pytest.fixture
def url():
    return f"memory://{uuid4().hex}/run"


def new_mirror(url, folder, told=None) -> Mirror:
    folder.mkdir(parents=True, exist_ok=True)
    made = Mirror(ObjectStore(url), folder, uuid4().hex, (told if told is not None else []).append)
    made.claim()
    made.fetch()
    return made


def train(folder, timestep) -> None:
    """What a run leaves at a timestep, in the order in which it writes."""
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


def test_files_are_called_as_a_run_calls_them():
    assert (mirrors.NOTE_FILE, mirrors.REQUEST_FILE) == (pod_run.NOTE_FILE, store.REQUEST_FILE)
    assert mirrors.LAST == (store.SPEC_FILE, pod_run.NOTE_FILE, store.STATUS_FILE)


def test_what_is_stored_is_what_the_run_has(place, tmp_path):
    folder = tmp_path / "run"
    mirror = new_mirror(place, folder)
    for timestep in (10, 20, 30):
        train(folder, timestep)
        mirror.sync()
    (folder / ".lock").touch()
    (folder / "request.json").write_text("{}")
    mirror.settle()
    assert stored(place) == contents(folder)
    assert not any(name.startswith("checkpoints/10/") for name in stored(place))
    assert ObjectStore(place).read_index().writer is None


def test_another_pod_goes_on_with_what_is_stored(place, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    mirror = new_mirror(place, first)
    train(first, 10)
    (first / "empty").touch()
    mirror.settle()
    mirror = new_mirror(place, second)
    assert contents(second) == contents(first)
    assert checkpoints.load_latest(second).timestep == 10
    train(second, 20)
    mirror.settle()
    assert stored(place) == contents(second)


def test_a_large_file_is_stored_in_parts(remote, tmp_path, monkeypatch):
    in_blocks_of(SMALLEST_PART, monkeypatch)
    folder = tmp_path / "run"
    mirror = new_mirror(remote, folder)
    train(folder, 10)
    (folder / "large").write_bytes(os.urandom(SMALLEST_PART * 2 + 12345))
    mirror.settle()
    assert stored(remote) == contents(folder)
    new_mirror(remote, tmp_path / "other")
    assert contents(tmp_path / "other") == contents(folder)


def in_blocks_of(size: int, monkeypatch) -> None:
    for module in (stores, mirrors):
        monkeypatch.setattr(module, "BLOCK", size)


class Killed(BaseException):
    """The end of a writer in the middle of what it does."""


def kill_at(mirror: Mirror, moment: int, monkeypatch, *, after: bool) -> None:
    """Has the writer end at its n-th change of the store, before it is made or after."""
    count = 0
    for name in ("write", "upload", "remove"):
        original = getattr(mirror.store, name)

        def change(*arguments, original=original):
            nonlocal count
            count += 1
            if count == moment and not after:
                raise Killed
            result = original(*arguments)
            if count == moment:
                raise Killed
            return result

        monkeypatch.setattr(mirror.store, name, change)


@pytest.mark.faults
@pytest.mark.parametrize("after", [False, True])
def test_a_writer_that_is_killed_at_any_moment_leaves_a_run_to_resume(url, tmp_path, monkeypatch, after):
    in_blocks_of(4096, monkeypatch)
    moment = 0
    while True:
        moment += 1
        place, folder = f"{url}-{moment}", tmp_path / f"run-{moment}"
        mirror = new_mirror(place, folder)
        for timestep in (10, 20):
            train(folder, timestep)
            mirror.sync()
        train(folder, 30)
        with monkeypatch.context() as patches:
            kill_at(mirror, moment, patches, after=after)
            try:
                mirror.settle()
            except Killed:
                pass
            else:
                break
        told: list[str] = []
        found = tmp_path / f"found-{moment}"
        again = new_mirror(place, found, told)
        assert told == []
        said = json.loads((found / "status.json").read_text())["timestep"]
        noted = json.loads((found / ".pod.json").read_text())["timestep"]
        newest = checkpoints.load_latest(found)
        assert said in (20, 30)
        # Whatever it says it has done is there.
        assert newest.timestep >= max(said, noted)
        if 30 in (said, noted):
            assert (found / "policy" / "policy.safetensors").read_bytes() == bytes([30]) * 5000
        # And the next one puts everything in order.
        train(found, 40)
        again.settle()
        assert stored(place) == contents(found)
    assert moment > 12


@pytest.mark.faults
@pytest.mark.parametrize("after", [False, True])
def test_a_first_writer_that_is_killed_leaves_all_or_nothing(url, tmp_path, monkeypatch, after):
    moment, was_killed = 0, True
    while was_killed:
        moment += 1
        place, folder, found = f"{url}-{moment}", tmp_path / f"run-{moment}", tmp_path / f"found-{moment}"
        mirror = new_mirror(place, folder)
        train(folder, 10)
        was_killed = False
        with monkeypatch.context() as patches:
            kill_at(mirror, moment, patches, after=after)
            try:
                mirror.sync()
            except Killed:
                was_killed = True
        again = new_mirror(place, found)
        assert contents(found) in ({}, contents(folder))
        again.settle()
        assert stored(place) == contents(found)
    assert moment > 6


@pytest.mark.faults
def test_a_pod_that_is_killed_in_the_middle_of_an_upload_leaves_the_checkpoint_before(remote, tmp_path):
    folder = tmp_path / "run"
    mirror = new_mirror(remote, folder)
    train(folder, 10)
    mirror.sync()
    (folder / "checkpoints" / "20").mkdir()
    (folder / "checkpoints" / "20" / "state.safetensors").write_bytes(os.urandom(4 * SMALLEST_PART))
    (folder / "checkpoints" / "20" / "state.json").write_text("{}")
    (folder / "status.json").write_text('{"timestep": 20}')
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from steppe.platforms.kubernetes import mirror, object_store\n"
        "mirror.SILENT_SECONDS, mirror.LOOK_SECONDS = 0.0, 0.01\n"
        "mirror.BLOCK = object_store.BLOCK = int(sys.argv[3])\n"
        "made = mirror.Mirror(object_store.ObjectStore(sys.argv[1]), Path(sys.argv[2]), 'second')\n"
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
    told: list[str] = []
    new_mirror(remote, tmp_path / "found", told)
    assert told == []
    assert checkpoints.load_latest(tmp_path / "found").timestep == 10
    assert json.loads((tmp_path / "found" / "status.json").read_text()) == {"timestep": 10}


@pytest.mark.faults
def test_a_pod_that_finds_another_writing_stops(place, tmp_path):
    first = new_mirror(place, tmp_path / "first")
    train(tmp_path / "first", 10)
    first.sync()
    new_mirror(place, tmp_path / "second")
    train(tmp_path / "first", 20)
    with pytest.raises(Superseded):
        first.sync()
    assert json.loads(stored(place)["status.json"]) == {"timestep": 10}


def test_a_pod_waits_for_the_one_before_to_let_go(url, tmp_path, monkeypatch):
    monkeypatch.setattr(mirrors, "SILENT_SECONDS", 3600.0)
    first = new_mirror(url, tmp_path / "first")
    train(tmp_path / "first", 10)
    second = Mirror(ObjectStore(url), tmp_path / "second", "second")
    waiting = threading.Thread(target=second.claim)
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    first.settle()
    waiting.join(120)
    assert not waiting.is_alive()
    second.fetch()
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


def test_a_pod_that_is_to_end_waits_no_more(url, tmp_path, monkeypatch):
    monkeypatch.setattr(mirrors, "SILENT_SECONDS", 30.0)
    new_mirror(url, tmp_path / "first")
    with pytest.raises(Interrupted):
        Mirror(ObjectStore(url), tmp_path / "second", "second").claim(lambda: True)


@pytest.mark.parametrize("harm", ["changed", "half", "gone"])
@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "checkpoints/20/state.safetensors"])
def test_damage_in_the_store_is_noticed(url, tmp_path, harm, name):
    see_damage(url, tmp_path, harm, name)


def test_a_half_object_on_a_real_server_is_noticed(remote, tmp_path):
    see_damage(remote, tmp_path, "half", "checkpoints/20/state.safetensors")


def see_damage(place, tmp_path, harm, name) -> None:
    folder = tmp_path / "run"
    mirror = new_mirror(place, folder)
    for timestep in (10, 20):
        train(folder, timestep)
        mirror.sync()
    mirror.settle()
    files, root = client_of(place)
    data = files.cat_file(f"{root}/{name}")
    if harm == "gone":
        files.rm_file(f"{root}/{name}")
    else:
        files.pipe_file(f"{root}/{name}", data[:-1] + b"?" if harm == "changed" else data[: len(data) // 2])
    told: list[str] = []
    if name == "status.json":
        with pytest.raises(UserError, match=r"status\.json is damaged or gone.*bring back an earlier version"):
            new_mirror(place, tmp_path / "other", told)
        return
    other = new_mirror(place, tmp_path / "other", told)
    assert told == other.damaged == [f"{place}/{name} is damaged or gone: it is not what was stored there"]
    if name.startswith("checkpoints"):
        assert checkpoints.load_latest(tmp_path / "other").timestep == 10


def test_an_index_that_is_damaged_is_no_empty_store(url, tmp_path):
    mirror = new_mirror(url, tmp_path / "run")
    mirror.settle()
    mirror.store.write(INDEX, b'{"format": "steppe-res')
    with pytest.raises(UserError, match=r"\.steppe-index\.json is damaged"):
        new_mirror(url, tmp_path / "other")


def test_an_index_leads_nowhere_else():
    index = Index(files={"../../etc/passwd": stores.Entry(1, "")})
    with pytest.raises(ValueError, match="elsewhere"):
        Index.parse(index.text().encode())


def test_an_object_that_vanished_is_stored_again_at_the_end(url, tmp_path):
    folder = tmp_path / "run"
    told: list[str] = []
    mirror = new_mirror(url, folder, told)
    train(folder, 10)
    mirror.sync()
    mirror.store.remove(["policy/policy.safetensors"])
    mirror.settle()
    assert stored(url) == contents(folder)
    assert "is stored again" in told[-1]


def test_a_store_that_was_emptied_is_filled_again(url, tmp_path):
    folder = tmp_path / "run"
    mirror = new_mirror(url, folder)
    train(folder, 10)
    mirror.sync()
    assert ObjectStore(url).erase() > 5
    mirror.settle()
    assert stored(url) == contents(folder)


@pytest.mark.faults
def test_a_store_that_is_away_is_waited_for(cloud, remote, tmp_path, monkeypatch):
    gate = Gate(cloud.port)
    gate.open()
    at(cloud.address(gate.port), monkeypatch)
    folder, told = tmp_path / "run", []
    folder.mkdir()
    keeper = Keeper(Mirror(ObjectStore(remote), folder, "first", told.append), lambda: None, seconds=0.1)
    keeper.begin()
    train(folder, 10)
    wait_until(lambda: "checkpoints/10/state.json" in known(cloud, remote, monkeypatch), "the first checkpoint")
    gate.shut()
    train(folder, 20)
    wait_until(lambda: keeper.trouble, "trouble")
    assert re.match(rf"the results are not stored: cannot (read|write|remove) {remote}/", keeper.trouble)
    assert told[-1].endswith("this is tried again")
    ending = threading.Thread(target=keeper.finish)
    ending.start()
    ending.join(3)
    # It is not over as long as the results are not there.
    assert ending.is_alive()
    assert keeper.phase == f"storing the results in {remote}"
    gate.open()
    ending.join(120)
    assert not ending.is_alive()
    assert told[-1] == "the results are stored again"
    assert (keeper.trouble, keeper.phase) == ("", "")
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


def test_a_keeper_stores_at_each_checkpoint(url, tmp_path):
    keeper = Keeper(Mirror(ObjectStore(url), tmp_path / "run", "first"), lambda: None, seconds=1000)
    (tmp_path / "run").mkdir()
    keeper.begin()
    for timestep in (10, 20):
        train(tmp_path / "run", timestep)
        wait_until(
            lambda timestep=timestep: f"checkpoints/{timestep}/state.json" in ObjectStore(url).read_index().files,
            f"checkpoint {timestep}",
            seconds=30,
        )
    keeper.finish()


def test_a_keeper_ends_the_training_where_another_pod_writes(url, tmp_path):
    (tmp_path / "run").mkdir()
    ended = threading.Event()
    keeper = Keeper(Mirror(ObjectStore(url), tmp_path / "run", "first"), ended.set, seconds=0.05)
    keeper.begin()
    new_mirror(url, tmp_path / "other")
    assert ended.wait(30)
    with pytest.raises(Superseded):
        keeper.finish()


@pytest.mark.parametrize(
    ("bucket", "has_keys", "sentence"),
    [
        ("no-such-bucket", True, "there is no such bucket; make it first"),
        (BUCKET, False, "there are no credentials for it"),
    ],
)
def test_a_store_that_cannot_be_used_is_found_before_the_training(
    cloud, tmp_path, monkeypatch, bucket, has_keys, sentence
):
    # Nobody is asked whether this machine is one of the cloud's.
    at({"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "HOME": str(tmp_path)}, monkeypatch)
    for name in () if has_keys else cloud.keys:
        monkeypatch.delenv(name)
    with pytest.raises(StoreTrouble, match=sentence):
        Keeper(Mirror(ObjectStore(cloud.place(bucket)), tmp_path / "run", "first"), lambda: None).begin()


def test_a_package_that_is_missing_is_named(monkeypatch):
    # As if it had never been imported, and could not be.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtra, match=r'pip install "steppe\[storage\]"'):
        ObjectStore("s3://bucket/run")


def test_an_unknown_kind_of_store_is_refused():
    with pytest.raises(SteppeError, match="results cannot be stored in nowhere://bucket/run"):
        ObjectStore("nowhere://bucket/run")


def test_two_experiments_never_share_a_place():
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
def test_the_copy_is_the_folder_after_any_changes(changes, tmp_path, monkeypatch):
    """Files change at will; the store fails, and writers are killed and replaced, at any of their steps."""
    url, folder = f"memory://{uuid4().hex}/run", tmp_path / uuid4().hex
    in_blocks_of(16, monkeypatch)
    mirror = new_mirror(url, folder)
    for what, name, detail in changes:
        if what in ("write", "append"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if what == "append" else "wb") as file:
                file.write(detail)
        elif what == "remove":
            (folder / name).unlink(missing_ok=True)
        elif what == "sync":
            mirror.sync()
        else:
            with monkeypatch.context() as patches:
                kill_at(mirror, name, patches, after=detail)
                with contextlib.suppress(Killed):
                    mirror.sync()
            if what == "killed":
                told: list[str] = []
                folder = tmp_path / uuid4().hex
                mirror = new_mirror(url, folder, told)
                assert told == []
    mirror.settle()
    assert stored(url) == contents(folder)
    other = tmp_path / uuid4().hex
    new_mirror(url, other)
    # Without a status there is nothing to go on from.
    assert contents(other) == (contents(folder) if (folder / "status.json").exists() else {})
    for each in (folder, other):
        shutil.rmtree(each)
