import hashlib
import json

import pytest
from door_client import TOKEN, opened

from steppe.experiments.store import LOG_FILE, REQUEST_FILE, STATUS_FILE, RunFolder
from steppe.platforms.kubernetes import door as doors
from steppe.platforms.kubernetes import pod
from steppe.platforms.kubernetes.door import Door
from steppe.runners import pods


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "run"
    (run / "policy").mkdir(parents=True)
    (run / "status.json").write_text('{"state": "running", "timestep": 5}')
    (run / "log.txt").write_text("first\nsecond\n")
    (run / "policy" / "weights").write_bytes(bytes(range(256)) * 100)
    (run / ".hidden").write_text("no")
    return run


@pytest.fixture
def ask(folder):
    with opened(Door(folder, TOKEN, lambda: {"is_over": False}, takes_requests=True)) as ask:
        yield ask


def test_the_door_calls_files_as_a_run_folder_does():
    assert (doors.STATUS_FILE, doors.LOG_FILE, doors.REQUEST_FILE) == (STATUS_FILE, LOG_FILE, REQUEST_FILE)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/status"), ("GET", "/files/log.txt"), ("POST", "/ask")])
def test_nothing_is_said_without_the_token(ask, method, path, token):
    assert ask(path, method, token)[0] == 401


def test_the_status_is_the_runs_own_and_what_the_pod_knows(ask):
    code, data = ask("/status")
    assert code == 200
    assert json.loads(data) == {"status": {"state": "running", "timestep": 5}, "is_over": False}


def test_the_log_is_read_from_where_it_was_left(ask):
    assert ask("/log?from=6") == (200, b"second\n")
    assert ask("/log?from=1000") == (200, b"")


def test_files_are_listed_with_size_and_checksum(ask, folder):
    files = {each["path"]: each for each in json.loads(ask("/files")[1])["files"]}
    assert set(files) == {"log.txt", "status.json", "policy/weights"}
    whole = (folder / "policy" / "weights").read_bytes()
    assert files["policy/weights"]["sha256"] == hashlib.sha256(whole).hexdigest()
    assert files["policy/weights"]["size"] == len(whole)


def test_one_file_can_be_listed_alone(ask, folder):
    (one,) = json.loads(ask("/files?name=policy/weights")[1])["files"]
    assert one in json.loads(ask("/files")[1])["files"]
    for name in (".hidden", "../run/log.txt", "nothing"):
        assert json.loads(ask(f"/files?name={name}")[1])["files"] == []


def test_a_checksum_follows_the_file(ask, folder):
    ask("/files")
    (folder / "log.txt").write_text("another\n")
    files = {each["path"]: each["sha256"] for each in json.loads(ask("/files")[1])["files"]}
    assert files["log.txt"] == hashlib.sha256(b"another\n").hexdigest()


def test_a_part_of_a_file_can_be_fetched(ask, folder):
    whole = (folder / "policy" / "weights").read_bytes()
    assert ask("/files/policy/weights", Range="bytes=25000-") == (206, whole[25000:])
    assert ask("/files/policy/weights", Range="bytes=10-19") == (206, whole[10:20])
    assert ask("/files/policy/weights", Range="bytes=99999999-") == (206, b"")
    assert ask("/files/policy/weights") == (200, whole)


@pytest.mark.parametrize(
    "name", [".hidden", "../run/log.txt", "policy/../log.txt/../../x", "/etc/passwd", "policy", "", "link"]
)
def test_nothing_else_is_shown(ask, folder, tmp_path, name):
    (tmp_path / "x").write_text("outside")
    (folder / "link").symlink_to(tmp_path / "x")
    assert ask(f"/files/{name}")[0] == 404


def test_a_request_reaches_the_run(ask, folder):
    assert ask("/ask", "POST", body='{"action": "pause"}')[0] == 200
    assert RunFolder(folder).asked() == "pause"


@pytest.mark.parametrize("body", ["", "[]", '{"action": "rm"}', "{"])
def test_a_request_that_makes_no_sense_is_refused(ask, folder, body):
    assert ask("/ask", "POST", body=body)[0] == 400
    assert RunFolder(folder).asked() is None


def test_a_driver_tells_who_has_joined_the_training_that_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(pod, "token", lambda key: TOKEN)
    driver = pod.Driver()
    driver._joined_file = tmp_path / "joined.json"
    driver._command = lambda: ["true"]
    assert driver._facts()["joined"] == {}
    told = {"worker": {"here": 1, "wanted": 2, "most": 1}}
    driver._joined_file.write_text(json.dumps(told))
    assert driver._facts()["joined"] == told
    assert driver._environment()[pods.JOINED_FILE_VARIABLE] == str(driver._joined_file)
    # Another training has to hear of them itself.
    assert driver._train() == 0
    assert driver._facts()["joined"] == {}
