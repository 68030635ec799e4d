from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import select
import socket
import time

import pytest
import uvicorn
import uvloop
from processes import wait_until
from served import let_no_time_pass, one_policy, serving
from uvicorn.server import ServerState

from steppe.serve import question_batches
from steppe.serve.http.connections import MAX_HEAD_BYTES, MAX_HEADS, connection_class
from steppe.serve.limits import TrafficLimits


@pytest.fixture
def hasty(tmp_path):
    with serving(one_policy(tmp_path), tmp_path, TrafficLimits(request_seconds=0.4)) as served:
        served.infer()
        yield served


def still_answers(hasty):
    """Waits until the endpoint answers; on a busy machine even this question may not arrive in time."""

    def is_answered():
        try:
            return hasty.infer().status == 200
        except OSError:
            return False

    wait_until(is_answered, "it answers")


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /v2/mod",
        b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v2/models/pole/feedback HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n{",
    ],
)
def test_an_incomplete_request_times_out(hasty, start):
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=20) as sock:
        sock.sendall(start)
        answer = sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.4 s" in answer
        assert sock.recv(4096) == b""
    still_answers(hasty)


def test_a_client_that_never_reads_is_disconnected(hasty):
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", hasty.port))
        for _ in range(200):
            sock.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # Readable at once, but data that the server could not send is lost with the connection.
        with pytest.raises(ConnectionResetError):
            wait_for_reset(sock)
    still_answers(hasty)
    standing = wait_until(lambda: (reply := hasty.get("/standing")).status == 200 and reply.json, "it tells")
    assert standing["server"]["under_way"] == 1


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_that_never_reads_its_last_answer_is_disconnected(loops):
    async def check():
        loop, connections = asyncio.get_running_loop(), []
        kind = connection_class(None, TrafficLimits(request_seconds=5.0))
        config = uvicorn.Config(None, log_config=None)
        config.load()

        def connect():
            connections.append(kind(config, ServerState(), {}))
            return connections[-1]

        server = await loop.create_server(connect, "127.0.0.1", 0)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, server.sockets[0].getsockname())
            while not connections or connections[0].transport is None:
                await asyncio.sleep(0)
            connection = connections[0]
            connection.transport.write(bytes(64 << 20))
            connection.transport.close()
            begun = loop.time()
            connection.check(begun)
            received = await loop.sock_recv(sock, 1 << 16)
            while connection.transport.get_write_buffer_size() == connection._left:
                received += await loop.sock_recv(sock, 1 << 16)
            # It read a part of the answer, so its time starts anew.
            connection.check(begun + 6.0)
            assert connection.open_connections._addresses
            connection.check(begun + 10.0)
            await asyncio.sleep(0.01)
            assert connection.open_connections._addresses
            connection.check(begun + 12.0)
            while connection.open_connections._addresses:
                await asyncio.sleep(0.01)
        server.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(check())


def wait_for_reset(sock):
    """Sends a byte now and then until the other side has closed; reads nothing."""
    while True:
        try:
            sock.send(b" ", socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except BrokenPipeError as error:
            raise ConnectionResetError from error
        select.select([], [], [], 0.05)


def test_a_client_that_sends_without_reading_is_disconnected(one):
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert received.count(b"HTTP/1.1 200") < 5000
    assert one.infer().status == 200


def test_endless_headers_are_refused(one):
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        received = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(2 * MAX_HEAD_BYTES // 1000):
                sock.sendall(b"X-Filler: " + b"y" * 988 + b"\r\n")
            received = sock.recv(4096)
        assert not received or received.startswith(b"HTTP/1.1 431")
    assert one.infer().status == 200


@pytest.mark.parametrize("filler", [b"X: " + b"y" * 100_000 + b"\r\n", b"X: 12345678\r\n" * 8000], ids=["long", "many"])
@pytest.mark.parametrize("first", [b"GET /standing", b"POST /v2/models/pole/infer"])
def test_a_long_head_in_one_piece_is_refused(one, first, filler):
    body = question("q").partition(b"\r\n\r\n")[2]
    head = b"%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % (first, len(body))
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
            received = b""
            with contextlib.suppress(ConnectionError):
                sock.sendall(head + filler + b"\r\n" + body)
                received = sock.recv(4096)
            # If it arrives in several pieces the sender may not read the answer.
            assert not received or received.startswith(b"HTTP/1.1 431")
    assert one.infer().status == 200


def test_a_long_body_does_not_count_as_a_long_head(one):
    data = json.loads(question("q").partition(b"\r\n\r\n")[2]) | {"padding": "y" * 200_000}
    assert one.post("/v2/models/pole/infer", data).status == 200


@pytest.mark.parametrize("count", [200, 300, 3000])
def test_many_pipelined_requests_are_answered_or_refused(one, count, caplog):
    body = b'{"reward": 1, "id": "nobody"}'
    head = b"POST /v2/models/pole/feedback HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    lost = head + body  # which is answered later than the others come
    for request in (b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", question("q"), lost):
        with (
            socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock,
            contextlib.suppress(ConnectionError),
        ):
            sock.sendall(request * count)
            received = b""
            while received.count(b"HTTP/1.1 ") < count and (piece := sock.recv(65536)):
                received += piece
            refusal = b'{"error":"more than 256 requests came before the first was answered"}'
            assert received.count(b"HTTP/1.1 ") == count or received.endswith(refusal)
    assert one.infer().status == 200
    assert caplog.records == []


def test_batches_that_start_between_head_and_body_do_not_fail_the_request(tmp_path, monkeypatch, caplog):
    seldon = json.dumps({"data": {"ndarray": [[0.1, 0.2, 0.3, 0.4]]}}).encode()
    head = b"POST /api/v1.0/predictions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(seldon)
    requests = [question("q00"), head + seldon]
    with serving(one_policy(tmp_path), tmp_path) as served, contextlib.ExitStack() as stack:
        sockets = []
        for request in requests * 3:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=20))
            sock.sendall(request)
            assert status(sock) == 200
            sockets.append((sock, request))
        for sock, request in sockets:
            sock.sendall(request[:-5])
        # Answered after all of them on the same loop, so their heads have arrived.
        assert served.infer().status == 200
        with monkeypatch.context() as gathering:
            gathering.setattr(question_batches, "SLOW_SECONDS", 0.0)
            gathering.setattr(question_batches, "MAX_COST", float("inf"))
            for sock, request in sockets:
                sock.sendall(request[-5:])
                assert status(sock) == 200
            # And back.
            for sock, request in sockets:
                sock.sendall(request[:-5])
            assert served.infer().status == 200
        for sock, request in sockets:
            sock.sendall(request[-5:] + request)
            assert [status(sock), status(sock)] == [200, 200]
    assert caplog.records == []


def status(sock):
    """The body of one answer, read to its end."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += sock.recv(1)
    length = int(received.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    assert len(sock.recv(length, socket.MSG_WAITALL)) == length
    return int(received.split()[1])


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET * HTTP/1.1\r\n\r\n", b"\0" * 100])
def test_invalid_http_is_refused(one, sent):
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
        sock.sendall(sent)
        assert sock.recv(4096).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))
    assert one.infer().status == 200


def question(name, path="/v2/models/pole/infer"):
    tensor = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": [0.1, 0.2, 0.3, 0.4]}
    body = json.dumps({"id": name, "inputs": [tensor]}).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def answers(sock, count):
    """(status, id) of that many responses, in order."""
    stream, found = sock.makefile("rb"), []
    for _ in range(count):
        status = int(stream.readline().split()[1])
        headers = dict(line.split(b": ") for line in iter(stream.readline, b"\r\n"))
        found.append((status, json.loads(stream.read(int(headers[b"content-length"]))).get("id")))
    return found


def in_pieces(sock, data, rng):
    """Sends data in pieces, cut at random places."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    cuts = sorted(rng.sample(range(1, len(data)), rng.randrange(6)))
    for start, end in itertools.pairwise([0, *cuts, len(data)]):
        sock.sendall(data[start:end])
        time.sleep(0.003)


@pytest.mark.parametrize("seed", range(20))
def test_requests_are_answered_however_they_are_cut(one, seed):
    rng = random.Random(seed)
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
        # From here on the connection knows the head of such questions.
        for _ in range(2):
            sock.sendall(question("q00"))
            assert answers(sock, 1) == [(200, "q00")]
        sent, expected = b"", []
        for number in range(8):
            kind = rng.choice(["known", "known", "other", "health", "lost"])
            name = f"q{seed % 10}{number}" if kind == "known" else f"another {number}"
            if kind == "health":
                sent, name = sent + b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", None
            else:
                sent += question(name) if kind != "lost" else question(name, "/v2/models/nobody/infer")
            expected.append((404, None) if kind == "lost" else (200, name))
        in_pieces(sock, sent, rng)
        assert answers(sock, len(expected)) == expected


def test_a_known_head_inside_a_body_is_not_a_request(one):
    known = question("q00")
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
        for _ in range(2):
            sock.sendall(known)
            assert answers(sock, 1) == [(200, "q00")]
        # The fast path must not take a body for a question, wherever it is cut.
        head = b"POST /v2/models/pole/feedback HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(known)
        sock.sendall(known + head)
        time.sleep(0.05)
        sock.sendall(known)
        time.sleep(0.05)
        sock.sendall(known)
        assert answers(sock, 3) == [(200, "q00"), (400, None), (200, "q00")]


def test_more_heads_than_are_remembered_are_all_answered(one):
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
        for length in [*range(1, 3 * MAX_HEADS)] * 2:
            sock.sendall(question("q" * length))
            assert answers(sock, 1) == [(200, "q" * length)]


def test_a_known_head_does_not_bypass_the_limits(tmp_path, monkeypatch):
    let_no_time_pass(monkeypatch)
    with serving(one_policy(tmp_path), tmp_path, TrafficLimits(rate=2)) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as sock:
            statuses = []
            for _ in range(4):
                sock.sendall(question("q00"))
                statuses += [status for status, _ in answers(sock, 1)]
        assert statuses == [200, 200, 429, 429]
