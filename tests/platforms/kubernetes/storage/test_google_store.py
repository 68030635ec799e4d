"""Google's object storage: its sign-in, its errors, and interrupted transfers."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from google_cloud import write_key
from google_storage import GoogleStorage
from google_storage_server import GOOGLE_KEY, key_at
from object_storage import BUCKET, Cloud, client_of, contents

from steppe.errors import MissingExtra
from steppe.platforms.kubernetes.storage import object_store, result_sync, store_client
from steppe.platforms.kubernetes.storage.object_store import INDEX, ObjectStore, StoredObject, StoreError
from steppe.platforms.kubernetes.storage.result_sync import ResultSync

pytest.importorskip("gcsfs")
PART = 1 << 20


@pytest.fixture
def cloud(signed_in, monkeypatch) -> Cloud:
    monkeypatch.setattr(object_store, "FIRST_PAUSE", 0.0)
    # Otherwise the client would ask the metadata server of Google's machines.
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return signed_in("gs")


@pytest.fixture
def google(cloud) -> GoogleStorage:
    assert cloud.google is not None
    return cloud.google


@pytest.fixture
def url(cloud) -> str:
    return cloud.place()


def upload(url: str, data: bytes, after_block=lambda: None) -> str:
    return ObjectStore(url).upload("large", io.BytesIO(data), len(data), after_block)


def held(google: GoogleStorage, url: str, name: str = "large") -> bytes:
    return google.buckets[BUCKET][f"{url.rpartition('/')[2]}/{name}"][0]


def test_objects_have_the_checksums_that_google_reports(url):
    data = os.urandom(PART)
    ObjectStore(url).write("large", data)
    client, root = client_of(url)
    assert client.info(f"{root}/large")["size"] == PART
    # gcsfs compares the checksum of its data with the reported one.
    client.pipe_file(f"{root}/other", data, consistency="md5")


def test_a_listing_with_many_pages_is_complete(google, url):
    store = ObjectStore(url)
    folder = url.rpartition("/")[2]
    for number in range(2345):
        google.keep(BUCKET, {"name": f"{folder}/{number:05}"}, b"x")
    assert len(store.sizes()) == 2345
    begin = len(google.asked)
    assert store.erase() == 2345
    # Google removes at most a hundred objects in a request.
    assert google.asked[begin:].count(("POST", "/batch/storage/v1")) >= 24
    assert store.sizes() == {}
    assert store.erase() == 0


@pytest.mark.faults
@pytest.mark.parametrize("code", [429, 503])
def test_temporary_errors_are_retried(google, url, code):
    store = ObjectStore(url)
    google.refusals.extend([code, code])
    store.write("a", b"first")
    assert store.read_index() is None
    assert held(google, url, "a") == b"first"


@pytest.mark.faults
def test_syncing_works_with_one_write_a_second(google, url, tmp_path, monkeypatch):
    """Google allows one write a second of each object, and the index is written at least twice for each change."""
    monkeypatch.setattr(result_sync, "SILENT_SECONDS", 0.0)
    google.seconds_between_writes = 1.0
    folder = tmp_path / "run"
    folder.mkdir()
    sync = ResultSync(ObjectStore(url), folder, "first")
    sync.claim()
    (folder / "status.json").write_text("{}")
    sync.settle()
    assert held(google, url, "status.json") == b"{}"
    assert json.loads(held(google, url, INDEX))["writer"] is None


@pytest.mark.faults
def test_an_interrupted_upload_resumes(google, url, monkeypatch):
    monkeypatch.setattr(object_store, "BLOCK", PART)
    data = os.urandom(3 * PART + 4567)
    # In the first part before any byte is kept, in the middle of the second, and in the last.
    google.cuts.extend([1000, PART, PART // 2 + 1000, PART, 77])
    upload(url, data)
    assert held(google, url) == data
    assert not google.cuts


def test_an_upload_that_google_has_lost_is_restarted(google, url, monkeypatch):
    monkeypatch.setattr(object_store, "BLOCK", PART)
    data, forgotten = os.urandom(3 * PART), []

    def forget() -> None:
        if not forgotten:
            forgotten.extend(google.uploads)
            google.uploads.clear()

    upload(url, data, forget)
    assert forgotten
    assert held(google, url) == data


def test_an_upload_that_is_always_lost_is_not_reported_as_a_missing_bucket(google, url, monkeypatch):
    monkeypatch.setattr(object_store, "BLOCK", PART)
    with pytest.raises(StoreError, match=r"it has forgotten an upload that was begun$") as raised:
        upload(url, os.urandom(2 * PART), google.uploads.clear)
    assert not raised.value.is_final


def test_an_upload_that_fails_leaves_nothing(google, url, monkeypatch):
    monkeypatch.setattr(object_store, "BLOCK", PART)
    ObjectStore(url).write("large", b"before")

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upload(url, os.urandom(3 * PART), fail)
    assert held(google, url) == b"before"
    assert list(google.uploads.values())[-1].is_cancelled


def test_a_large_object_is_fetched_in_parts(google, url, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "BLOCK", PART)
    data = os.urandom(2 * PART + 99)
    sha256 = upload(url, data)
    begin = len(google.asked)
    assert ObjectStore(url).download("large", tmp_path / "here", StoredObject(len(data), sha256)) == (len(data), sha256)
    assert contents(tmp_path)["here"] == data
    assert sum(path.startswith("/download/") for _, path in google.asked[begin:]) == 3


def refusal(url: str) -> str:
    """The message of a write's error, which is final and comes at once."""
    with pytest.raises(StoreError) as raised:
        ObjectStore(url).write("a", b"x")
    assert raised.value.is_final
    said = str(raised.value)
    assert "AWS" not in said
    assert "\n" not in said
    return said


def test_an_account_without_write_access_learns_the_role_it_needs(google, url):
    google.denied = {"storage.objects.create"}
    said = refusal(url)
    assert said.startswith(f"cannot write {url}/a: access is denied (trainer@cloud-7.iam.gserviceaccount.com does not ")
    assert "Permission 'storage.objects.create' denied" in said
    assert "roles/storage.objectUser" in said
    assert "http://" not in said


def test_an_account_without_list_access_learns_the_role_it_needs(google, url):
    google.denied = {"storage.objects.list"}
    with pytest.raises(StoreError, match=r"cannot list .*access is denied.*roles/storage\.objectUser"):
        ObjectStore(url).sizes()


def test_a_missing_bucket_is_an_error_with_the_command_to_make_it(cloud):
    assert refusal(cloud.place("nowhere")).endswith(
        "there is no such bucket; make it first (gcloud storage buckets create)"
    )


def test_a_missing_key_file_is_an_error_that_names_it(url, monkeypatch):
    monkeypatch.setenv(GOOGLE_KEY, "/secrets/key.json")
    said = refusal(url)
    assert said.startswith(f"cannot open {url}: there are no credentials for it")
    assert "/secrets/key.json was not found" in said
    assert f"give the file's path in kubernetes.env as {GOOGLE_KEY}" in said


@pytest.mark.parametrize("text", ["not JSON", '{"type": "service_account"}', "{}"])
def test_an_invalid_key_file_is_an_error(url, tmp_path, monkeypatch, text):
    (tmp_path / "key.json").write_text(text)
    monkeypatch.setenv(GOOGLE_KEY, str(tmp_path / "key.json"))
    said = refusal(url)
    assert "there are no credentials for it, or they are not accepted" in said
    assert "key.json" in said or "missing fields" in said


def test_a_revoked_key_is_an_error(cloud, url, tmp_path, monkeypatch):
    """A key that Google does not know, of the same account."""
    key = write_key(tmp_path / "key.json", f"http://127.0.0.1:{cloud.port}")
    monkeypatch.setenv(GOOGLE_KEY, str(key))
    assert "not accepted (invalid_grant: Invalid JWT Signature); mount a Secret" in refusal(url)


def test_an_error_without_a_key_explains_what_to_mount(url, tmp_path, monkeypatch):
    monkeypatch.delenv(GOOGLE_KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreError, match=rf"kubernetes\.volume_mounts, and .*{GOOGLE_KEY}") as raised:
        ObjectStore(url)
    # Not final, since a new Pod may have to wait a moment for its cloud identity.
    assert not raised.value.is_final


def test_an_unreachable_sign_in_is_not_reported_as_a_wrong_key(cloud, url, tmp_path, monkeypatch):
    key = tmp_path / "key.json"
    key.write_text(key_at(Path(cloud.keys[GOOGLE_KEY]), "http://127.0.0.1:9"))
    monkeypatch.setenv(GOOGLE_KEY, str(key))
    with pytest.raises(StoreError, match="cannot write") as raised:
        ObjectStore(url).write("a", b"x")
    assert not raised.value.is_final


def test_the_users_own_settings_of_the_sign_in_are_kept(google, url, monkeypatch):
    from fsspec.config import conf

    monkeypatch.setitem(conf, "gs", {"token": "anon"})
    said = refusal(url)
    assert "Anonymous caller does not have storage.objects.create access" in said


@pytest.mark.faults
def test_a_store_that_never_answers_is_an_error(google, url, monkeypatch):
    monkeypatch.setattr(store_client, "ANSWER_SECONDS", 0.5)
    store = ObjectStore(url)
    google.is_silent = True
    with pytest.raises(StoreError, match=rf"cannot write {url}/a: it does not answer$") as raised:
        store.write("a", b"x")
    assert not raised.value.is_final


@pytest.mark.faults
def test_permanent_errors_are_reported_without_tracebacks(google, url, caplog, capfd):
    google.refusals.extend([503] * 100)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match=r"cannot write .*: We encountered"):
        ObjectStore(url).write("a", b"x")
    # gcsfs has retried for half a minute, in six attempts; no further attempts are made.
    assert len(google.refusals) == 94
    assert caplog.records == []
    assert "Traceback" not in capfd.readouterr().err


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    with pytest.raises(MissingExtra, match=r'pip install "steppe\[storage\]"'):
        ObjectStore("gs://bucket/run")


def test_the_configured_proxy_is_used(cloud, google, url, monkeypatch):
    """The fake is the proxy as well: only a proxy can lead Google's own name to it."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{cloud.port}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{cloud.port}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://storage.googleapis.com")
    monkeypatch.setattr(object_store, "BLOCK", PART)
    data = os.urandom(PART + 1)
    upload(url, data)
    assert held(google, url) == data


def test_gcs_is_gs(google, url):
    ObjectStore(url.replace("gs://", "gcs://")).write("a", b"x")
    assert held(google, url, "a") == b"x"
