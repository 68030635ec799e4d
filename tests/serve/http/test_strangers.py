"""Clients that hold connections without sending requests do not disturb others."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket

import pytest
from processes import wait_until
from served import ServedProcess, one_policy, question, serving

from steppe.serve.admission import SHORT
from steppe.serve.http.open_connections import LOG_SECONDS, OpenConnections
from steppe.serve.limits import TrafficLimits
from steppe.serve.server import OTHER_FILES

TOKEN = "a-token-of-enough-letters"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@contextlib.contextmanager
def silent(port, count, *addresses):
    """Opens that many connections from each address, and sends nothing."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(address, 0)))
            for address in addresses
            for _ in range(count)
        ]


def open_ones(sockets):
    """How many of them the server has not closed."""
    count = 0
    for sock in sockets:
        readable, _, _ = select.select([sock], [], [], 0)
        count += not readable
    return count


class Honest:
    """A client with a persistent connection."""

    def __init__(self, port, address="127.0.0.1", headers=SHOWN):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(address, 0))
        self._headers = headers

    def infer(self):
        self._connection.request("POST", "/v2/models/pole/infer", json.dumps(question()), self._headers)
        response = self._connection.getresponse()
        response.read()
        return response.status

    def feedback(self):
        """Sends a question that takes the ASGI path."""
        self._connection.request("POST", "/v2/models/pole/feedback", "{}", self._headers)
        response = self._connection.getresponse()
        response.read()
        return response.status

    def close(self):
        self._connection.close()


@pytest.mark.parametrize("first", [Honest.infer, Honest.feedback])
def test_silent_connections_lock_nobody_out(tmp_path, first, caplog):
    limits = TrafficLimits(connections=32, connections_per_address=24)
    with serving(one_policy(tmp_path), tmp_path, limits, token=TOKEN) as served, contextlib.ExitStack() as stack:
        before = Honest(served.port)
        stack.callback(before.close)
        assert first(before) in (200, 400)
        sockets = stack.enter_context(silent(served.port, 100, "127.0.0.2"))
        sockets += stack.enter_context(silent(served.port, 20, *(f"127.0.0.{last}" for last in range(3, 9))))
        # An earlier client, and new ones from an address of their own and from the silent clients' addresses.
        assert before.infer() == 200
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.9"):
            client = Honest(served.port, address)
            stack.callback(client.close)
            assert client.infer() == 200
            assert client.infer() == 200
        assert wait_until(lambda: open_ones(sockets) <= 16, "strangers have half of the places at most")
        assert before.infer() == 200
    lines = [record for record in caplog.records if "turned away" in record.getMessage()]
    assert 1 <= len(lines) < 10


def test_one_address_cannot_hold_all_connections(tmp_path):
    limits = TrafficLimits(connections=32)
    with serving(one_policy(tmp_path), tmp_path, limits) as served, contextlib.ExitStack() as stack:
        # An eighth of all; their requests were admitted, so none of them is cut off for the next.
        for _ in range(4):
            client = Honest(served.port, "127.0.0.2")
            stack.callback(client.close)
            assert client.infer() == 200
        with silent(served.port, 1, "127.0.0.2") as (sock,):
            answer = whole_reply(sock)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"this address has 4 connections already" in answer
        assert served.infer().status == 200
        client.close()
        late = Honest(served.port, "127.0.0.2")
        stack.callback(late.close)
        assert wait_until(lambda: is_answered(late), "a place is free again")


def whole_reply(sock):
    """One reply with its body, in however many pieces it arrives."""
    reply = b""
    while (length := re.search(rb"(?is)content-length: *(\d+).*?\r\n\r\n", reply)) is None or (
        len(reply) < length.end() + int(length[1])
    ):
        piece = sock.recv(4096)
        assert piece, f"the connection ended after {reply!r}"
        reply += piece
    return reply


def is_answered(client):
    try:
        return client.infer() == 200
    except (OSError, http.client.HTTPException):
        client.close()
        return False


def test_a_wrong_token_or_a_probe_does_not_prove_a_connection(tmp_path):
    limits = TrafficLimits(connections=16)
    with (
        serving(one_policy(tmp_path), tmp_path, limits, token=TOKEN) as served,
        silent(served.port, 2, "127.0.0.2") as sockets,
    ):
        for request in (b"GET /v2/health/live", b"GET /standing", b"POST /v2/models/pole/infer"):
            for sock in sockets:
                sock.sendall(request + b" HTTP/1.1\r\nHost: x\r\nAuthorization: wrong\r\nContent-Length: 0\r\n\r\n")
                assert whole_reply(sock).startswith((b"HTTP/1.1 200", b"HTTP/1.1 401"))
        with silent(served.port, 2, "127.0.0.2"):
            for sock in sockets:
                assert b"no request came on this one" in whole_reply(sock)


def test_silent_connections_cannot_use_up_the_files_of_a_process(tmp_path):
    """With far fewer files than connections are allowed by default."""
    state = tmp_path / "state"
    starting = ["prlimit", f"--nofile={OTHER_FILES + 64}", "--"]
    served = ServedProcess(one_policy(tmp_path), state, prefix=starting, token=TOKEN)
    try:
        with silent(served.port, 100, *(f"127.0.0.{last}" for last in range(2, 7))):
            client = Honest(served.port)
            assert client.infer() == 200
            client.close()
        assert "Traceback" not in served.log
        assert "Too many open files" not in served.log
    finally:
        served.close()


class Cuttable:
    def __init__(self):
        self.is_cut = False

    def cut(self, message):
        self.is_cut = True


def test_closed_connections_make_room_and_log_lines_are_rate_limited(caplog):
    now = [0.0]
    connections = OpenConnections(TrafficLimits(connections=4, connections_per_address=3), clock=lambda: now[0])
    opened = []
    for number in range(1000):
        opened.append(Cuttable())
        assert connections.add(opened[-1], f"10.0.0.{number % 2}") is None
        connections.remove(opened[-1]) if number < 900 else None
    # Two silent connections may stay: the last ones.
    assert [each.is_cut for each in opened[900:]] == [True] * 98 + [False] * 2
    assert len(caplog.records) == 1
    now[0] = LOG_SECONDS
    connections.add(Cuttable(), "10.0.0.3")
    assert "98 connections were turned away, the last from 10.0.0.0" in caplog.records[1].getMessage()
    for each in opened:
        connections.remove(each)
    trusted = [Cuttable() for _ in range(4)]
    for number, each in enumerate(trusted):
        assert connections.add(each, f"10.0.1.{number}") is None
        connections.trust(each)
    assert "too many connections" in connections.add(Cuttable(), "10.0.2.0")
    connections.remove(trusted[0])
    assert connections.add(Cuttable(), "10.0.2.0") is None


def test_large_requests_that_arrive_slowly_leave_room_for_others(tmp_path):
    body = json.dumps(question([0.5] * 40_000, (10_000, 4))).encode()
    head = f"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    limits = TrafficLimits(total_bytes=int(3.5 * (len(body) - SHORT)))
    with serving(one_policy(tmp_path), tmp_path / "state", limits=limits) as served, contextlib.ExitStack() as stack:

        def begin(address):
            sock = stack.enter_context(
                socket.create_connection(("127.0.0.1", served.port), timeout=30, source_address=(address, 0))
            )
            sock.sendall(head + body[:-1])
            return sock

        def large():
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
            with contextlib.closing(connection):
                connection.request("POST", "/v2/models/pole/infer", body)
                response = connection.getresponse()
                return response.status, response.getheader("Retry-After"), json.loads(response.read()).get("error")

        slow = [begin(address) for address in ("127.0.0.2", "127.0.0.3", "127.0.0.4")]
        wait_until(lambda: large()[0] == 503, "there is no room left")
        status, pause, error = large()
        assert (status, pause) == (503, "1")
        assert "MB of requests are in progress" in error
        assert served.infer().status == 200
        for sock in slow:
            sock.sendall(body[-1:])
            assert sock.recv(12) == b"HTTP/1.1 200"
        assert large()[0] == 200
