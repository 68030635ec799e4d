"""Pods with results in object storage: their manifests, the reader's server, and the status of a driver."""

from __future__ import annotations

import hashlib
import json

import pytest
from pydantic import ValidationError
from status_requests import TOKEN, opened

from steppe.errors import StateError
from steppe.platforms.kubernetes.manifests import rendering
from steppe.platforms.kubernetes.pod.stored_run import StoredRun
from steppe.platforms.kubernetes.storage import result_sync, stored_results, sync_thread
from steppe.platforms.kubernetes.storage.object_store import ObjectStore
from steppe.platforms.kubernetes.storage.result_sync import ResultSync
from steppe.platforms.kubernetes.storage.stored_status import StoredStatusServer
from steppe.specs.running.kubernetes import KubernetesSpec

URL = "s3://bucket/path"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://my-bucket/a/b.c/", "gs://my-bucket/a/b.c"),
        ("abfs://container/path", "abfs://container/path"),
    ],
)
def test_results_is_a_url_with_a_bucket(given, kept):
    assert KubernetesSpec(results=given).results == kept


@pytest.mark.parametrize(
    "given",
    [
        "bucket/path",
        "s3://",
        "s3:///path",
        "s3://key:secret@bucket/path",
        "s3://bucket/a b",
        "s3://bucket/../other",
        "s3://bucket/path?x=1",
        "https://bucket.s3.amazonaws.com/path",
        "file:///tmp/results",
        "memory://results",
    ],
)
def test_other_urls_are_refused(given):
    with pytest.raises(ValidationError, match="is no object storage; write s3://bucket/path"):
        KubernetesSpec(results=given)


def test_results_in_object_storage_need_no_claim(planned):
    plan = planned(kubernetes={"results": URL, "env_from_secrets": ["keys"]})
    kinds = [manifest["kind"] for manifest in rendering.render(plan)]
    assert "PersistentVolumeClaim" not in kinds
    (driver,) = rendering.jobs(plan)
    pod = driver["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "results"]
    assert volume == {"name": "results", "emptyDir": {}}
    told = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert told["STEPPE_POD_STORE"] == URL
    assert told["STEPPE_POD_HEAD"] == plan.name


def test_storage_limits_the_disk_space_on_the_node(planned):
    (driver,) = rendering.jobs(planned(kubernetes={"results": URL, "storage": 2.0}))
    assert {"name": "results", "emptyDir": {"sizeLimit": "2048Mi"}} in driver["spec"]["template"]["spec"]["volumes"]


@pytest.mark.parametrize("role", ["reader", "eraser"])
def test_a_reader_of_object_storage_has_the_credentials(planned, role):
    plan = planned(cluster={"kubernetes": {"results": URL, "env_from_secrets": ["keys"]}})
    pod = rendering.reader(plan, role=role)
    assert pod["metadata"]["name"] == f"{plan.name}-{role}"
    (container,) = pod["spec"]["containers"]
    assert container["command"][-1] == role
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "STEPPE_POD_STORE", "value": URL} in container["env"]
    assert {"name": "results", "emptyDir": {}} in pod["spec"]["volumes"]
    assert not any(mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] == "results")


def test_without_object_storage_readers_get_no_credentials(planned):
    plan = planned(kubernetes={"env_from_secrets": ["keys"]})
    assert "PersistentVolumeClaim" in [manifest["kind"] for manifest in rendering.render(plan)]
    (container,) = rendering.reader(plan)["spec"]["containers"]
    assert "envFrom" not in container
    assert not [each for each in container["env"] if each["name"] == "STEPPE_POD_STORE"]


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (URL, None, "are in s3://bucket/path, and cannot be on a disk of the cluster from now on"),
        (None, URL, "leave kubernetes.results out"),
        (URL, "gs://bucket/path", "set kubernetes.results to s3://bucket/path"),
    ],
)
def test_the_place_of_results_cannot_change(planned, before, after, sentence):
    plans = [planned(kubernetes={} if results is None else {"results": results}) for results in (before, after)]
    with pytest.raises(StateError, match=sentence):
        stored_results.check_location(*plans)
    stored_results.check_location(plans[0], plans[0])


@pytest.fixture
def url(place, monkeypatch):
    monkeypatch.setattr(result_sync, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(result_sync, "LOOK_SECONDS", 0.01)
    return place


@pytest.fixture
def sync(url, tmp_path):
    """The sync of a stored run."""
    run = tmp_path / "run"
    (run / "policy").mkdir(parents=True)
    (run / "status.json").write_text('{"state": "completed", "timestep": 5}')
    (run / "log.txt").write_text("first\nsecond\n")
    (run / "policy" / "weights").write_bytes(bytes(range(256)) * 100)
    (run / ".pod.json").write_text("{}")
    made = ResultSync(ObjectStore(url), run, "writer")
    made.claim()
    made.settle()
    return made


@pytest.fixture
def ask(url, tmp_path):
    with opened(StoredStatusServer(url, tmp_path / "reader", TOKEN, {"role": "reader"})) as ask:
        yield ask


def test_a_reader_shows_the_stored_files(sync, ask):
    assert json.loads(ask("/status")[1]) == {"status": {"state": "completed", "timestep": 5}, "role": "reader"}
    files = {each["path"]: each for each in json.loads(ask("/files")[1])["files"]}
    whole = (sync.folder / "policy" / "weights").read_bytes()
    assert set(files) == {"status.json", "log.txt", "policy/weights"}
    assert files["policy/weights"]["sha256"] == hashlib.sha256(whole).hexdigest()
    assert files["policy/weights"]["size"] == len(whole)
    assert json.loads(ask("/files?name=policy/weights")[1])["files"] == [files["policy/weights"]]
    assert ask("/files/policy/weights") == (200, whole)
    assert ask("/files/policy/weights", Range="bytes=25000-") == (206, whole[25000:])
    assert ask("/log?from=6") == (200, b"second\n")


@pytest.mark.parametrize("name", [".pod.json", "../run/log.txt", "/etc/passwd", "policy", "", "other"])
def test_a_reader_shows_no_other_files(sync, ask, name):
    assert ask(f"/files/{name}")[0] == 404


def test_a_reader_shows_changed_files(sync, ask):
    assert ask("/log") == (200, b"first\nsecond\n")
    again = ResultSync(sync.store, sync.folder, "again")
    again.claim()
    (sync.folder / "log.txt").write_text("third\n")
    again.settle()
    assert ask("/log") == (200, b"third\n")


def test_a_reader_shows_the_versions_that_a_killed_writer_has_stored(sync, ask):
    """After a kill an announced object may be the old version, the new one, or missing."""
    index = sync.store.read_index()
    new = b"another\n"
    entry = type(index.files["log.txt"])(len(new), hashlib.sha256(new).hexdigest())
    index.coming = {"log.txt": [entry], "policy/weights": [entry], "never": [entry]}
    sync.store.write_index(index)
    sync.store.write("log.txt", new)
    files = {each["path"]: each["sha256"] for each in json.loads(ask("/files")[1])["files"]}
    assert files["log.txt"] == entry.sha256
    assert files["policy/weights"] == index.files["policy/weights"].sha256
    assert "never" not in files
    assert ask("/files/log.txt") == (200, new)


def test_a_reader_reports_damaged_files(sync, ask, url):
    sync.store.write("policy/weights", b"half")
    code, body = ask("/files/policy/weights")
    assert code == 502
    assert json.loads(body)["error"] == f"{url}/policy/weights is damaged or gone: it is not what was stored there"
    assert ask("/files/log.txt")[0] == 200


def test_a_reader_answers_without_its_store(tmp_path):
    server = StoredStatusServer("nowhere://bucket/run", tmp_path, TOKEN, {"role": "reader"})
    assert server.status() == {"status": None, "role": "reader"}


def test_a_run_is_not_over_before_it_is_stored(sync, url, tmp_path, monkeypatch):
    # The thread must not sync meanwhile, which would clear its trouble.
    monkeypatch.setattr(sync_thread, "LOOK_SECONDS", 3600.0)
    run = StoredRun(url, tmp_path / "again", "next", lambda: None)
    assert run.begin()
    assert run.shown() == {"state": "completed", "timestep": 5}
    thread = run._sync_thread
    assert thread is not None
    thread.phase, thread.trouble = "storing the results", "the store is away"
    assert run.shown() == {
        "state": "running",
        "timestep": 5,
        "phase": "storing the results",
        "notices": ["the store is away"],
    }
    thread.phase = thread.trouble = ""
    assert run.finish()
    assert run.shown() == {"state": "completed", "timestep": 5}


def test_problems_of_the_store_are_in_the_log_of_the_run(sync, url, tmp_path):
    (sync.folder / "experiment.json").write_text("{}")
    sync = ResultSync(sync.store, sync.folder, "again")
    sync.claim()
    sync.settle()
    sync.store.write("policy/weights", b"half")
    run = StoredRun(url, tmp_path / "again", "next", lambda: None)
    assert run.begin()
    assert run.finish()
    log = (tmp_path / "again" / "log.txt").read_text()
    assert f"the results are kept in {url}" in log
    assert "policy/weights is damaged or gone" in log


def test_an_unusable_store_fails_the_run(tmp_path):
    run = StoredRun("nowhere://bucket/run", tmp_path / "run", "first", lambda: None)
    with pytest.raises(Exception, match="results cannot be stored in nowhere://bucket/run"):
        run.begin()
    shown = run.shown()
    assert shown is not None
    assert shown["state"] == "failed"
    assert "results cannot be stored in nowhere://bucket/run" in shown["reason"]
