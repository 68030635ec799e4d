from __future__ import annotations

import json
import socket
import threading

import pytest
from served import let_no_time_pass, one_policy, question, serving

from steppe.serve.admission import is_local_name
from steppe.serve.limits import TrafficLimits

TOKEN = "a-token-of-enough-letters"


def test_unknown_paths_and_wrong_methods_say_what_to_use(one):
    assert "/openapi.json" in one.get("/v3/nothing").json["error"]
    for method, path in (("GET", "/v2/models/pole/infer"), ("DELETE", "/v2/models/pole"), ("POST", "/metrics")):
        reply = one.ask(method, path)
        assert reply.status == 405
        assert reply.headers["allow"] in ("GET", "POST")
    assert one.ask("HEAD", "/v2/health/live").status == 200


def test_a_long_body_is_refused_and_the_connection_can_be_used_again(tmp_path):
    with serving(one_policy(tmp_path), tmp_path, TrafficLimits(body_bytes=1000)) as served:
        for size in (1001, 3000, 70_000, 3_000_000):
            reply = served.post("/v2/models/pole/infer", b" " * size) if size < 5000 else refused(served, size)
            assert reply.status == 413
        assert served.infer().status == 200


def refused(served, size):
    """Sends a body that the server does not read to its end: the answer may come before all is sent."""
    with socket.create_connection(("127.0.0.1", served.port)) as sock:
        sock.sendall(
            f"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        status = int(sock.recv(4096).split()[1])
    return type("Reply", (), {"status": status})


def test_a_chunked_body_is_limited_as_it_arrives(tmp_path):
    with serving(one_policy(tmp_path), tmp_path, TrafficLimits(body_bytes=1000)) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.sendall(
                b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            sock.sendall(b"".join(b"%x\r\n%s\r\n" % (400, b" " * 400) for _ in range(12)))
            assert b" 413 " in sock.recv(4096)
        body = json.dumps(question()).encode()
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.sendall(
                b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            sock.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            assert b" 200 " in sock.recv(4096)


def test_a_compressed_bomb_is_refused(one):
    import zlib

    packed = zlib.compress(b" " * (17 << 20), 9)
    assert len(packed) < 60_000
    assert one.post("/v2/models/pole/infer", packed, Content_Encoding="deflate").status == 413


def test_all_but_probes_and_the_page_need_the_token(tmp_path):
    with serving(one_policy(tmp_path), tmp_path, token=TOKEN) as served:
        asked = [("GET", "/v2"), ("GET", "/standing"), ("GET", "/metrics"), ("GET", "/openapi.json")]
        asked += [("POST", "/v2/models/pole/infer"), ("POST", "/api/v1.0/predictions")]
        for method, path in asked:
            reply = served.ask(method, path, question())
            assert reply.status == 401
            assert reply.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in reply.body.decode()
            assert served.ask(method, path, question(), Authorization="Bearer wrong").status == 401
        for path in ("/", "/v2/health/live", "/v2/health/ready"):
            assert served.get(path).status == 200
        for header in ({"Authorization": f"Bearer {TOKEN}"}, {"X_Auth_Token": TOKEN}):
            for _ in range(2):
                assert served.post("/v2/models/pole/infer", question(), **header).status == 200
            assert served.post("/v2/models/pole/infer", question(), Authorization="Bearer wrong").status == 401
        assert TOKEN not in served.get("/standing", Authorization=f"Bearer {TOKEN}").body.decode()


def test_pages_of_other_sites_are_refused(one):
    own = f"http://127.0.0.1:{one.port}"
    assert one.post("/v2/models/pole/infer", question(), Origin="http://evil.example").status == 403
    assert one.post("/v2/models/pole/infer", question(), Origin=own).status == 200


def ask_raw(served, head, body=b""):
    """The status of a request whose first lines are given as bytes."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as sock:
        sock.sendall(head + b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        return int(sock.recv(4096).split()[1])


def test_without_a_token_only_names_of_this_machine_are_accepted(one):
    body, port = json.dumps(question()).encode(), one.port
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "[::1]", "LocalHost", "steppe.localhost", "localhost."):
        for own in (host, f"{host}:{port}", f"{host}:1"):
            assert ask_raw(one, f"POST /v2/models/pole/infer HTTP/1.1\r\nHost: {own}".encode(), body) == 200
    evil = f"evil.example:{port}"
    for host in (
        evil,
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "x",
        "",
        "10.0.0.1",
        "[::2]",
    ):
        for line in (b"POST /v2/models/pole/infer", b"POST /api/v1.0/predictions", b"POST /v2/models/pole/feedback"):
            assert ask_raw(one, line + b" HTTP/1.1\r\nHost: " + host.encode(), body) == 403
    for path in ("/standing", "/metrics", "/v2", "/openapi.json", "/v2/models/pole"):
        assert ask_raw(one, f"GET {path} HTTP/1.1\r\nHost: {evil}\r\nOrigin: http://{evil}".encode()) == 403
    reply = one.post("/v2/repository/models/pole/load", {}, Host=evil, Origin=f"http://{evil}")
    assert reply.status == 403
    assert reply.json["error"].startswith(f'"{evil}" is not a name of this machine')
    for path in ("/", "/v2/health/live", "/v2/health/ready", "/ping"):
        assert ask_raw(one, f"GET {path} HTTP/1.1\r\nHost: {evil}".encode()) == 200


def test_a_request_with_two_host_headers_is_refused(one):
    for line, status in (
        ("GET /standing HTTP/1.0\r\nX: y", 200),
        ("GET /standing HTTP/1.1\r\nX: y", 200),
        ("GET /standing HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("GET /standing HTTP/1.1\r\nHost: evil.example\r\nHost: localhost", 400),
        ("GET http://localhost/standing HTTP/1.1\r\nHost: localhost", 200),
        ("GET http://127.0.0.1:8000/standing?x=/@localhost HTTP/1.1\r\nHost: evil.example", 200),
        ("GET http://evil.example/standing HTTP/1.1\r\nHost: localhost", 403),
        ("GET http://localhost@evil.example/standing HTTP/1.1\r\nHost: localhost", 403),
        ("GET http://evil.example:8000/standing HTTP/1.0\r\nX: y", 403),
    ):
        assert ask_raw(one, line.encode()) == status, line


def test_a_known_head_does_not_bypass_the_host_check(one):
    body = json.dumps(question()).encode()
    ask = b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s"
    with socket.create_connection(("127.0.0.1", one.port), timeout=30) as sock:
        for host, status in [(b"localhost", b"200"), (b"evil.here", b"403")] * 3:
            sock.sendall(ask % (host, len(body), body))
            assert sock.recv(4096).split()[1] == status


def test_a_token_allows_any_host_and_a_configured_host_needs_none(tmp_path):
    with serving(one_policy(tmp_path), tmp_path, token=TOKEN) as served:
        for name in ("serving.example", "10.0.0.7:8000"):
            assert served.get("/standing", Host=name, Authorization=TOKEN).status == 200
    assert is_local_name(b"My-Machine:8000", "my-machine")
    assert not is_local_name(b"my-machine:8000@evil", "my-machine")
    assert not is_local_name(b"my-machine.evil", "my-machine")


def test_too_many_requests_a_second_are_told_when_to_retry(tmp_path, monkeypatch):
    let_no_time_pass(monkeypatch)
    with serving(one_policy(tmp_path), tmp_path, TrafficLimits(rate=5.0)) as served:
        replies = [served.infer() for _ in range(30)]
        assert [reply.status for reply in replies[:5]] == [200] * 5
        late = next(reply for reply in replies if reply.status == 429)
        assert int(late.headers["retry-after"]) >= 1
        assert "5 requests a second" in late.json["error"]
        assert served.get("/v2/health/ready").status == 200


def test_requests_beyond_the_limit_are_refused(tmp_path):
    limits = TrafficLimits(concurrent=1)
    with serving(one_policy(tmp_path), tmp_path, limits) as served:
        head = b"POST /v2/models/pole/feedback HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.sendall(head)  # under way until its body comes
            for _ in range(200):
                reply = served.infer()
                if reply.status == 503:
                    break
            assert reply.status == 503
            assert reply.headers["retry-after"] == "1"
            assert served.get("/v2/health/live").status == 200
            sock.sendall(b"{}")
            assert b" 400 " in sock.recv(4096)
        assert served.infer().status == 200


def test_an_internal_error_does_not_reveal_details(tmp_path, monkeypatch):
    from steppe.serve.endpoint import Endpoint

    with serving(one_policy(tmp_path), tmp_path) as served:
        served.infer()

        def fail(self, question):
            raise RuntimeError("a secret inside")

        monkeypatch.setattr(Endpoint, "answer", fail)
        for path, body in (
            ("/v2/models/pole/infer", question()),
            ("/api/v1.0/predictions", {"data": {"ndarray": [[1, 2, 3, 4]]}}),
        ):
            reply = served.post(path, body)
            assert reply.status == 500
            assert b"secret" not in reply.body
        monkeypatch.undo()
        assert served.infer().status == 200


@pytest.mark.parametrize("pieces", [1, 7])
def test_requests_on_one_connection_are_answered_in_order(one, pieces):
    body = json.dumps(question()).encode()
    ask = b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = ask + live + ask + ask + live
    with socket.create_connection(("127.0.0.1", one.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(sent) // pieces)
        for start in range(0, len(sent), size):
            sock.sendall(sent[start : start + size])
        received = b""
        while received.count(b"HTTP/1.1 200") < 5 or not received.endswith(b"}"):
            piece = sock.recv(65536)
            assert piece
            received += piece
    kinds = [b"outputs" in each for each in received.split(b"HTTP/1.1 200")[1:]]
    assert kinds == [True, False, True, True, False]


def test_many_concurrent_clients_get_their_own_answers(one):
    results = {}

    def ask(number):
        results[number] = one.infer(id=f"client-{number}").json["id"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"client-{number}" for number in range(64)}
