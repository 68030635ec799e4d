"""The learner's server admits valid workers, serves many at once, and survives any message."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading

import msgpack
import numpy as np
import pytest
from processes import wait_until
from servers import Line, array, frame

from steppe.errors import UserError
from steppe.runners.engines.asynchronous.learner import inbox as inbox_module
from steppe.runners.engines.asynchronous.learner.inbox import Inbox, Over
from steppe.runners.engines.asynchronous.learner.membership import Membership
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer
from steppe.runners.engines.asynchronous.wire.access import LearnerAccess, access_from, trust_in, trust_only
from steppe.runners.engines.asynchronous.wire.protocol import LONGEST_LINE
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.asynchronous.worker import connection as connection_module
from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress, LearnerConnection, LearnerLost
from steppe.specs.spaces import Box, Discrete, to_json

SPACES = (Box((2,)), Discrete(3))
TOKEN = "0123456789abcdef"
HELLO = {"op": "hello", "protocol": "steppe-async", "version": 1}


@contextlib.contextmanager
def door(*, access=LearnerAccess(), size=4, patience=30.0, timeout=60.0, task=Task(least=4, most=4), offers=True):  # noqa: B008
    """A server whose batches are all taken; checks at the end that no thread is left."""
    before = threading.active_count()
    server = WorkerServer("127.0.0.1", 0, access, Inbox(size, patience), Membership(), timeout)
    if offers:
        open_for_work(server, task)
    try:
        yield server
    finally:
        server.close("the test is over")
        server.close("again")
        wait_until(lambda: threading.active_count() <= before, "all threads have ended")


def open_for_work(server, task):
    server.board.post({"w": np.arange(3.0)}, 0)
    server.board.note(0, {})
    server.board.offer(task, SPACES)


def address(server):
    return "{}:{}".format(*server.address)


@contextlib.contextmanager
def client(server):
    with socket.create_connection(server.address, timeout=30) as sock:
        yield Line(sock)


def said(line, message):
    line.write(message)
    return line.read()


def joined(line, name="w", **fields):
    assert said(line, HELLO) == {"op": "proceed"}
    spaces = {"observation_space": to_json(SPACES[0]), "action_space": to_json(SPACES[1])}
    return said(line, {"op": "join", "worker": name, "environments": 1, **spaces, **fields})


def batch(sequence=1, **fields):
    rows = {
        "observations": array(np.zeros((4, 1, 2))),
        "following": array(np.zeros((1, 2))),
        "actions": array(np.zeros((4, 1)), "int32"),
        "rewards": array(np.full((4, 1), float(sequence))),
        "terminated": array(np.zeros((4, 1)), "bool"),
        "truncated": array(np.zeros((4, 1)), "bool"),
    }
    counts = {"timesteps": 4, "sequence": sequence, "version": 0, "has": 0, "session": "s"}
    return {"op": "batch", **rows, **counts, "returns": [], "lengths": [], "evaluations": [], **fields}


def test_a_worker_receives_its_task_and_its_batches_arrive():
    with door() as server, client(server) as line:
        welcome = joined(line)
        assert (welcome["op"], welcome["number"], welcome["session"]) == ("welcome", 0, server.board.name)
        assert Task.from_json(welcome["task"]) == Task(least=4, most=4)
        news = said(line, {"op": "fetch", "has": -1, "session": ""})
        assert (news["op"], news["version"], news["policy"]["w"]["shape"]) == ("news", 0, [3])
        assert said(line, batch(has=0, session=server.board.name)) == {
            "op": "taken",
            "version": 0,
            "timestep": 0,
            "exploration": {},
        }
        assert server.inbox.take().rewards[0, 0] == 1.0
        assert said(line, {"op": "alive"}) == {"op": "noted"}
        assert server.membership.here == 1
        assert said(line, {"op": "leave"}) == {"op": "bye"}
        wait_until(lambda: server.membership.here == 0, "it has left")
        assert server.membership.lost == 0


def test_many_workers_are_served_at_once():
    with door(size=64) as server, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(client(server)) for _ in range(40)]
        for number, line in enumerate(lines):
            joined(line, f"w{number}")
        assert server.membership.here == 40
        for line in lines:
            line.write(batch())
        assert [line.read()["op"] for line in lines] == ["taken"] * 40
        assert len(server.inbox) == 40


def test_a_full_inbox_keeps_a_worker_waiting_and_then_drops_its_batch():
    with door(size=1, patience=0.1) as server, client(server) as line:
        joined(line)
        assert said(line, batch(1))["op"] == "taken"
        assert said(line, batch(2))["op"] == "dropped"
        assert (len(server.inbox), server.inbox.dropped) == (1, 1)
        server.inbox.take()
        assert said(line, batch(3))["op"] == "taken"


def test_a_batch_that_comes_again_after_a_break_is_taken_once():
    with door() as server:
        with client(server) as line:
            joined(line)
            line.write(batch(1))
            # The answer has arrived but is not read; without an answer the batch would not count as lost.
            assert line.sock.recv(1, socket.MSG_PEEK)
            assert len(server.inbox) == 1
        wait_until(lambda: server.membership.lost == 1, "the break is noticed")
        with client(server) as line:
            assert joined(line)["number"] == 0
            assert server.membership.lost == 0
            assert said(line, batch(1))["op"] == "taken"
            assert said(line, batch(2))["op"] == "taken"
        assert len(server.inbox) == 2


def test_a_batch_under_way_when_a_worker_died_is_counted_as_lost():
    with door() as server:
        for name in ("a", "b"):
            with client(server) as line:
                joined(line, name)
                said(line, batch(1))
                # The second batch is never complete.
                line.sock.sendall(frame(batch(2))[:50])
        wait_until(lambda: server.membership.lost == 2, "both are missed")
        assert (server.membership.here, len(server.inbox)) == (0, 2)


@pytest.mark.parametrize(("patience", "dropped"), [(30.0, 0), (3.0, 1)])
def test_a_worker_that_dies_while_its_batch_stands_in_line_loses_nothing_more(patience, dropped):
    with door(size=1, patience=patience) as server:
        with client(server) as line:
            joined(line)
            said(line, batch(1))
            line.write(batch(2))
            wait_until(lambda: server.inbox.waiting == 2, "it stands in line")
        if not dropped:
            assert [server.inbox.take().sequence, server.inbox.take().sequence] == [1, 2]
        wait_until(lambda: server.membership.here == 0, "it is missed")
        assert (server.membership.lost, server.inbox.dropped) == (0, dropped)


def test_a_worker_waits_for_a_learner_that_is_away_for_longer_than_any_answer_may_take(monkeypatch):
    monkeypatch.setattr(inbox_module, "WORD_SECONDS", 0.1)
    monkeypatch.setattr(connection_module, "ANSWER_SECONDS", 4.0)
    with door(size=1, patience=0.5, task=Task(least=4, most=4, patience=0.5)) as server:
        link = LearnerConnection(LearnerAddress(address(server), None, reconnect=0.0), SPACES, 1)
        link.join()
        assert link.ask(batch(1))["op"] == "taken"
        answers = []
        asking = threading.Thread(target=lambda: answers.append(link.ask(batch(2))))
        with server.inbox.paused():
            asking.start()
            asking.join(6.0)
            assert asking.is_alive()
            assert (server.inbox.waiting, server.membership.here, server.inbox.dropped) == (2, 1, 0)
            # The timeout has not passed yet.
            server.inbox.take()
        asking.join(60.0)
        link.close()
        assert [answer["op"] for answer in answers] == ["taken"]
        assert server.membership.lost == 0


def test_a_batch_of_a_failed_environment_is_counted_as_lost():
    with door() as server, client(server) as line:
        joined(line)
        assert said(line, {"op": "fault", "message": "the simulator has crashed"}) == {"op": "noted"}
        assert said(line, {"op": "leave"}) == {"op": "bye"}
        wait_until(lambda: server.membership.here == 0, "it has left")
        assert server.membership.lost == 1


def test_a_workers_output_is_in_the_learners_log(caplog):
    with door() as server, client(server) as line, caplog.at_level(logging.INFO, "steppe"):
        joined(line)
        lines = [[logging.INFO, "the simulator\n\x1bloads"], [logging.WARNING, "x" * (LONGEST_LINE + 50)]]
        assert said(line, {"op": "said", "lines": lines}) == {"op": "noted"}
    assert ("INFO", "worker 0: the simulator  loads") in logged(caplog)
    assert ("WARNING", "worker 0: " + "x" * LONGEST_LINE) in logged(caplog)


def logged(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize(
    "lines",
    [None, "a line", [[20, "one too many"]] * 12, [[20]], ["a line"], [[20, "a", "b"]], [["20", "a"]], [[999, "a"]]],
    ids=str,
)
def test_invalid_log_messages_are_refused(lines):
    with door() as server, client(server) as line:
        joined(line)
        answer = said(line, {"op": "said", "lines": lines})
        assert (answer["op"], answer["kind"]) == ("error", "protocol")
        assert 'the worker sent "lines"' in answer["message"]


def test_a_silent_worker_is_given_up():
    with door() as server, client(server) as line:
        joined(line, "silent")
        server.worker_timeout = 0.3
        with contextlib.suppress(OSError):
            # The new timeout applies after this last message.
            line.write({"op": "alive"})
        wait_until(lambda: server.membership.lost == 1, "it is given up")
        assert server.membership.take_hung() == {"silent"}


def test_the_first_worker_reports_the_spaces_and_waits_for_its_task():
    with door(offers=False) as server, client(server) as line:
        assert joined(line) == {"op": "wait"}
        assert server.board.wait_for_spaces(10) == SPACES
        open_for_work(server, Task(least=4, most=4))
        spaces = {"observation_space": to_json(SPACES[0]), "action_space": to_json(SPACES[1])}
        assert said(line, {"op": "join", "worker": "w", "environments": 1, **spaces})["op"] == "welcome"


def test_at_the_end_every_worker_hears_of_it_whatever_it_does():
    with door(size=1) as server, client(server) as idle, client(server) as waiting:
        joined(idle, "idle")
        joined(waiting, "waiting")
        said(idle, batch(1))
        waiting.write(batch(1))
        wait_until(lambda: server.membership.batches == 2, "it stands in line")
        closing = threading.Thread(target=server.close, args=("all is learned",))
        closing.start()
        assert idle.read()["op"] == waiting.read()["op"] == "over"
        idle.sock.close()
        waiting.sock.close()
        closing.join(30)
        assert server.membership.lost == 0


WRONG = {
    "another protocol": ({"op": "hello", "protocol": "steppe-env", "version": 1}, "protocol", "did not begin"),
    "no greeting": ({"op": "join"}, "protocol", "did not begin"),
    "another version": (HELLO | {"version": 2}, "version", "speaks version 1"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_messages_of_another_protocol_are_refused(wrong):
    message, kind, words = WRONG[wrong]
    with door() as server, client(server) as line:
        answer = said(line, message)
        assert (answer["op"], answer["kind"], answer["version"]) == ("error", kind, 1)
        assert words in answer["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"observation_space": to_json(Box((3,)))}, "observes"),
        ({"action_space": to_json(Discrete(4))}, "takes"),
        ({"environments": 0}, "environments"),
        ({"environments": 10**9}, "environments"),
        ({"worker": 3}, "worker"),
        ({"action_space": {"type": "box"}}, "no space"),
    ],
)
def test_workers_that_do_not_fit_are_refused(fields, words):
    with door() as server:
        with client(server) as line:
            answer = joined(line, **fields) if "worker" not in fields else joined(line, name=3)
            assert (answer["op"], words in answer["message"]) == ("error", True), answer
        assert server.membership.here == 0


@pytest.mark.parametrize(
    "message",
    [
        {"op": "batch"},
        batch(rewards=array(np.full((4, 1), np.nan))),
        batch(actions=array(np.full((4, 1), 7), "int32")),
        batch(has="x"),
        {"op": "dance"},
        {"op": "fetch"},
        {"no": "op"},
        ["a", "list"],
        3,
    ],
)
def test_nonsense_ends_one_connection_and_no_other(message):
    with door() as server, client(server) as good, client(server) as bad:
        joined(good, "good")
        joined(bad, "bad")
        assert said(bad, message)["kind"] == "protocol"
        assert said(good, batch(1))["op"] == "taken"
        wait_until(lambda: server.membership.here == 1, "the other is gone")
        assert len(server.inbox) == 1


def test_bytes_from_anywhere_are_survived():
    rng = np.random.default_rng(0)
    with door() as server:
        for size in (0, 1, 3, 4, 5, 100, 70_000):
            with socket.create_connection(server.address, timeout=30) as sock, contextlib.suppress(OSError):
                sock.sendall(rng.bytes(size))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
        with client(server) as line:
            joined(line)
            line.sock.sendall(b"\xff\xff\xff\xff" + bytes(1000))
            assert line.read()["kind"] == "protocol"
        with client(server) as line:
            assert joined(line, "w2")["op"] == "welcome"


def test_a_token_is_asked_for_and_no_other_is_taken():
    with door(access=LearnerAccess(TOKEN)) as server:
        for wrong in ({}, {"token": "0123456789abcdeg"}, {"token": 7}):
            with client(server) as line:
                assert said(line, HELLO | wrong)["kind"] == "token"
        with client(server) as line:
            assert said(line, HELLO | {"token": TOKEN}) == {"op": "proceed"}
        link = LearnerConnection(LearnerAddress(address(server), "wrong", reconnect=0.0), SPACES, 1)
        with pytest.raises(UserError, match=r"refuses the token.*name its file in token_file, or set STEPPE_LEARNER"):
            link.join()


def test_a_stranger_cannot_send_much_before_the_token():
    with door(access=LearnerAccess(TOKEN)) as server, client(server) as line:
        assert said(line, HELLO | {"padding": "x" * 100_000})["kind"] == "protocol"


def test_a_server_beyond_loopback_needs_a_token():
    with pytest.raises(UserError, match=r"whoever reaches 0\.0\.0\.0 could feed this learner; give a token"):
        WorkerServer("0.0.0.0", 0, LearnerAccess(), Inbox(1, 0.0), Membership(), 1.0)
    server = WorkerServer("0.0.0.0", 0, LearnerAccess(TOKEN), Inbox(1, 0.0), Membership(), 1.0)
    server.close("")


def test_a_port_in_use_is_named():
    with (
        door() as server,
        pytest.raises(UserError, match=rf"cannot listen for workers at 127.0.0.1:{server.address[1]}"),
    ):
        WorkerServer("127.0.0.1", server.address[1], LearnerAccess(), Inbox(1, 0.0), Membership(), 1.0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=learner"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def test_connections_can_be_encrypted(certificate, tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    with door(access=access_from(token_file, *certificate)) as server:
        at = address(server)
        for trust in (trust_in(certificate[0]), trust_only(certificate[0].read_text())):
            link = LearnerConnection(LearnerAddress(at, TOKEN, trust, 5.0), SPACES, 1)
            assert link.join().task.least == 4
            large = batch(1, padding="x" * 10_000)
            assert link.ask(large | {"has": -1, "session": ""})["op"] == "taken"
            link.listen()
            link.close()
        with pytest.raises(LearnerLost, match="TLS on both sides"):
            LearnerConnection(LearnerAddress(at, TOKEN, None, 0.2), SPACES, 1).join()
        other = subprocess.run(
            [
                *[
                    "openssl",
                    "req",
                    "-x509",
                    "-newkey",
                    "rsa:2048",
                    "-nodes",
                    "-days",
                    "1",
                    "-subj",
                    "/CN=x",
                    "-keyout",
                    "/dev/null",
                ]
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        with pytest.raises(UserError, match=r"is not trusted .*tls_ca"):
            LearnerConnection(LearnerAddress(at, TOKEN, trust_only(other), 5.0), SPACES, 1).join()
        link = LearnerConnection(LearnerAddress(at, TOKEN, trust_in(certificate[0]), 5.0), SPACES, 1)
        link.join()
        closing = threading.Thread(target=server.close, args=("all is learned",))
        closing.start()

        def ask_on() -> None:
            while True:
                link.ask({"op": "alive"})

        with pytest.raises(Over, match="all is learned"):
            ask_on()
        closing.join(30)


def test_messages_agree_with_the_msgpack_library(tmp_path):
    """Frames written by the msgpack library are those of the documentation."""
    with door() as server, client(server) as line:
        line.sock.sendall(frame(HELLO))
        head = line._exactly(4)
        assert msgpack.unpackb(line._exactly(int.from_bytes(head, "big"))) == {"op": "proceed"}
