import contextlib
import hashlib
import http.client
import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from status_requests import TOKEN, opened

from steppe.experiments.run_folder.store import RunFolder
from steppe.files.run_files import LOG_FILE, REQUEST_FILE, STATUS_FILE
from steppe.platforms.kubernetes.agreement import TOKEN_HEADER
from steppe.platforms.kubernetes.pod import roles, status_server
from steppe.platforms.kubernetes.pod.status_server import StatusServer
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
    with opened(StatusServer(folder, TOKEN, lambda: {"is_over": False}, takes_requests=True)) as ask:
        yield ask


def test_the_status_server_and_the_run_folder_use_the_same_file_names():
    assert (status_server.STATUS_FILE, status_server.LOG_FILE, status_server.REQUEST_FILE) == (
        STATUS_FILE,
        LOG_FILE,
        REQUEST_FILE,
    )


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/status"), ("GET", "/files/log.txt"), ("POST", "/ask")])
def test_every_request_needs_the_token(ask, method, path, token):
    assert ask(path, method, token)[0] == 401


def test_the_status_has_the_runs_own_and_the_facts_of_the_pod(ask):
    code, data = ask("/status")
    assert code == 200
    assert json.loads(data) == {"status": {"state": "running", "timestep": 5}, "is_over": False}


def test_the_log_can_be_read_from_an_offset(ask):
    assert ask("/log?from=6") == (200, b"second\n")
    assert ask("/log?from=1000") == (200, b"")


def test_files_are_listed_with_size_and_checksum(ask, folder):
    files = {each["path"]: each for each in json.loads(ask("/files")[1])["files"]}
    assert set(files) == {"log.txt", "status.json", "policy/weights"}
    whole = (folder / "policy" / "weights").read_bytes()
    assert files["policy/weights"]["sha256"] == hashlib.sha256(whole).hexdigest()
    assert files["policy/weights"]["size"] == len(whole)


def test_a_single_file_can_be_listed(ask, folder):
    (one,) = json.loads(ask("/files?name=policy/weights")[1])["files"]
    assert one in json.loads(ask("/files")[1])["files"]
    for name in (".hidden", "../run/log.txt", "nothing"):
        assert json.loads(ask(f"/files?name={name}")[1])["files"] == []


def test_a_changed_file_has_a_new_checksum(ask, folder):
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
def test_other_files_are_not_shown(ask, folder, tmp_path, name):
    (tmp_path / "x").write_text("outside")
    (folder / "link").symlink_to(tmp_path / "x")
    assert ask(f"/files/{name}")[0] == 404


def test_a_request_reaches_the_run(ask, folder):
    assert ask("/ask", "POST", body='{"action": "pause"}')[0] == 200
    assert RunFolder(folder).asked() == "pause"


@pytest.mark.parametrize("body", ["", "[]", '{"action": "rm"}', "{"])
def test_an_invalid_request_is_refused(ask, folder, body):
    assert ask("/ask", "POST", body=body)[0] == 400
    assert RunFolder(folder).asked() is None


def test_a_driver_reports_who_has_joined_its_current_training(tmp_path, monkeypatch):
    monkeypatch.setattr(roles, "token", lambda key: TOKEN)
    driver = roles.Driver()
    driver._joined_file = tmp_path / "joined.json"
    driver._command = lambda: ["true"]
    assert driver._facts()["joined"] == {}
    told = {"worker": {"here": 1, "wanted": 2, "most": 1}}
    driver._joined_file.write_text(json.dumps(told))
    assert driver._facts()["joined"] == told
    assert driver._environment()[pods.JOINED_FILE_VARIABLE] == str(driver._joined_file)
    # A new training starts without members.
    assert driver._train() == 0
    assert driver._facts()["joined"] == {}


@contextlib.contextmanager
def half_requests(port, count, sent=b"GET /status HTTP/1.1\r\nHost: x\r\n"):
    """Yields `count` connections that have each sent a part of a request, including those that are cut meanwhile."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)))
            connections[-1].sendall(sent)
        yield connections


def ended(connection):
    """Whether the other side has closed a connection within the connection's timeout."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_incomplete_requests_take_no_threads_and_block_nobody(folder):
    server = StatusServer(folder, TOKEN, lambda: {"is_over": False}, takes_requests=True)
    with opened(server) as ask:
        before = threading.active_count()
        with half_requests(server.port, 600) as connections:
            assert ask("/status")[0] == 200
            assert threading.active_count() == before
            assert before < 40
            # The oldest was cut to make room.
            assert ended(connections[0])
            connections[-1].sendall(f"{TOKEN_HEADER}: {TOKEN}\r\n\r\n".encode())
            assert connections[-1].recv(12) == b"HTTP/1.1 200"


def test_a_slow_request_is_dropped_at_its_deadline(folder):
    server = StatusServer(folder, TOKEN, dict, takes_requests=True, request_seconds=1.0)
    sent = {
        "head": b"GET /status HTTP/1.1\r\nX: ",
        "body": f"POST /ask HTTP/1.1\r\n{TOKEN_HEADER}: {TOKEN}\r\nContent-Length: 4000\r\n\r\n".encode(),
    }
    for part in sent.values():
        with opened(server) as ask, half_requests(server.port, 1, part) as (connection,):
            connection.settimeout(0.1)
            deadline = time.monotonic() + 60
            is_cut = False
            # Each byte arrives less than a second after the one before.
            while not is_cut and time.monotonic() < deadline:
                try:
                    connection.sendall(b"x")
                    is_cut = ended(connection)
                except TimeoutError:
                    pass
                except OSError:
                    is_cut = True
            assert is_cut
            assert ask("/status")[0] == 200


@pytest.mark.parametrize(
    "sent", [b"POST /ask HTTP/1.1\r\nContent-Length: 4000\r\n\r\n", b"\0\xff nothing of HTTP\r\n\r\n"]
)
def test_the_token_is_checked_before_the_rest_of_a_request(folder, sent):
    server = StatusServer(folder, TOKEN, dict, takes_requests=True)
    with opened(server), half_requests(server.port, 1, sent) as (connection,):
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_an_oversized_request_is_refused_before_it_has_arrived(folder):
    server = StatusServer(folder, TOKEN, dict, takes_requests=True)
    long_body = f"POST /ask HTTP/1.1\r\n{TOKEN_HEADER}: {TOKEN}\r\nContent-Length: 10000000\r\n\r\n".encode()
    with opened(server), half_requests(server.port, 1, long_body) as (connection,):
        assert connection.recv(12) == b"HTTP/1.1 413"
    with opened(server), half_requests(server.port, 1, b"GET /" + b"x" * 20_000) as (connection,):
        assert connection.recv(12) == b"HTTP/1.1 431"


def test_a_request_that_fails_ends_no_thread(folder):
    def facts():
        raise RuntimeError

    server = StatusServer(folder, TOKEN, facts, takes_requests=True)
    with opened(server) as ask:
        for _ in range(40):
            with pytest.raises((http.client.HTTPException, OSError)):
                ask("/status")
        assert ask("/log?from=0")[0] == 200


def test_the_token_of_workers_is_valid_for_their_configuration_only(folder, tmp_path):
    pool_file = tmp_path / "crew.json"
    pool_file.write_text('{"plan": {"num_envs": 1}, "hung": []}')
    facts = {"is_over": False, "session": "one", "status": {"state": "running"}}
    server = StatusServer(
        folder, TOKEN, lambda: facts, pool_token="a-token-of-workers", pool_file=pool_file, takes_requests=True
    )
    with opened(server) as ask:
        code, body = ask("/crew", token="a-token-of-workers")
        assert code == 200
        assert json.loads(body) == {"is_over": False, "session": "one", "plan": {"num_envs": 1}, "hung": []}
        for path in ("/status", "/log", "/files", "/files/policy/weights", "/nothing"):
            assert ask(path, token="a-token-of-workers")[0] == 403
        assert ask("/ask", "POST", "a-token-of-workers", '{"action": "stop"}')[0] == 403
        assert not (folder / REQUEST_FILE).exists()


def test_an_empty_token_is_invalid_without_workers(folder):
    with opened(StatusServer(folder, TOKEN, dict, takes_requests=True)) as ask:
        assert ask("/crew", token="")[0] == 401


def test_the_server_can_close_while_a_client_connects(folder):
    """The connection wakes the server's thread, which then ends before `close` has woken it."""
    server = StatusServer(folder, TOKEN, dict, takes_requests=False)
    port = server.open(0, "127.0.0.1")
    inner, waker = server._server, server._server._waker

    def send(data):
        with socket.create_connection(("127.0.0.1", port)):
            inner._threads[0].join()
        return waker.send(data)

    inner._waker = SimpleNamespace(send=send, close=waker.close)
    server.close()
