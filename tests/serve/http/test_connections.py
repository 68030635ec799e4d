from __future__ import annotations

import contextlib
import select
import socket

import pytest
from served import one_policy, serving

from steppe.serve.admission import TrafficLimits
from steppe.serve.http.connections import LONGEST_HEAD


@pytest.fixture
def hasty(tmp_path):
    with serving(one_policy(tmp_path), tmp_path, TrafficLimits(request_seconds=0.4)) as served:
        served.infer()
        yield served


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /v2/mod",
        b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v2/models/pole/feedback HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v2/models/pole/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n{",
    ],
)
def test_a_request_that_does_not_arrive_is_not_waited_for(hasty, start):
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=20) as sock:
        sock.sendall(start)
        answer = sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.4 s" in answer
        assert sock.recv(4096) == b""
    assert hasty.infer().status == 200


def test_a_client_that_never_reads_is_hung_up_on(hasty):
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", hasty.port))
        for _ in range(200):
            sock.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        # Readable at once, but what the server never got rid of is lost with the connection.
        with pytest.raises(ConnectionResetError):
            wait_for_reset(sock)
    assert hasty.infer().status == 200
    assert hasty.get("/standing").json["server"]["under_way"] == 1


def wait_for_reset(sock):
    """Sends a byte now and then until the other side is gone; reads nothing."""
    while True:
        try:
            sock.send(b" ", socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except BrokenPipeError as error:
            raise ConnectionResetError from error
        select.select([], [], [], 0.05)


def test_more_requests_than_anybody_reads_are_hung_up_on(one):
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert received.count(b"HTTP/1.1 200") < 5000
    assert one.infer().status == 200


def test_endless_headers_are_refused(one):
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        received = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(2 * LONGEST_HEAD // 1000):
                sock.sendall(b"X-Filler: " + b"y" * 988 + b"\r\n")
            received = sock.recv(4096)
        assert not received or received.startswith(b"HTTP/1.1 431")
    assert one.infer().status == 200


def test_more_connections_than_there_may_be_are_refused(tmp_path):
    limits = TrafficLimits(connections=3)
    with serving(one_policy(tmp_path), tmp_path, limits) as served, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as sock:
            assert b" 503 " in sock.recv(4096)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET * HTTP/1.1\r\n\r\n", b"\0" * 100])
def test_what_is_not_http_is_refused(one, sent):
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as sock:
        sock.sendall(sent)
        assert sock.recv(4096).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))
    assert one.infer().status == 200
