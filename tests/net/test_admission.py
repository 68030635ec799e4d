"""Pending connections are limited separately: however many there are, clients that greet properly are admitted."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import wait_until
from servers import Line, frame, serving

from steppe.errors import UserError
from steppe.net.admission import GREETING_LIMIT, Admission, AdmissionLimits, AdmittedConnection, network_of
from steppe.net.credentials import server_tls, server_token
from steppe.net.hello import Greeting
from steppe.net.rated_log import RatedLog

TOKEN = "0123456789abcdef"
HELLO = {"op": "hello", "protocol": "steppe-env", "version": 1, "token": TOKEN}
ATTACKER = "127.0.0.2"


@contextlib.contextmanager
def admitting(
    limits: AdmissionLimits = AdmissionLimits(),  # noqa: B008
    *,
    tls: ssl.SSLContext | None = None,
) -> Iterator[tuple[tuple[str, int], list[AdmittedConnection]]]:
    """(address, admitted connections) of an admission in a thread, which sends each of them a welcome."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    address, members = listener.getsockname(), []

    def welcome(member: AdmittedConnection) -> None:
        members.append(member)
        member.sock.sendall(frame({"op": "welcome"}))

    admission = Admission(listener, Greeting("steppe-env", 1, TOKEN, "server", "client"), tls, welcome, limits)
    thread = threading.Thread(target=admission.serve)
    thread.start()
    try:
        yield address, members
    finally:
        admission.stop()
        thread.join(30)
        admission.stop()
        assert not thread.is_alive()
        for member in members:
            member.sock.close()


@contextlib.contextmanager
def held(address: tuple[str, int], count: int, source: str = ATTACKER) -> Iterator[list[socket.socket]]:
    """`count` silent connections."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(address, timeout=30, source_address=(source, 0)))
            for _ in range(count)
        ]


@contextlib.contextmanager
def flood(address: tuple[str, int], count: int) -> Iterator[None]:
    """Keeps `count` silent connections, and replaces those that are cut."""
    is_over = threading.Event()

    def run() -> None:
        with contextlib.ExitStack() as stack:
            kept: list[socket.socket] = []
            while not is_over.wait(0.001):
                with contextlib.suppress(OSError):
                    sock = socket.create_connection(address, timeout=30, source_address=(ATTACKER, 0))
                    kept.append(stack.enter_context(sock))
                if len(kept) > count:
                    kept.pop(0).close()

    with held(address, count):
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(30)


def greeted(address: tuple[str, int], source: str = "127.0.0.1", hello: object = HELLO) -> dict:
    """A server's answer to a greeting."""
    with socket.create_connection(address, timeout=30, source_address=(source, 0)) as sock:
        line = Line(sock)
        line.write(hello)  # type: ignore[arg-type]
        return line.read()


def is_cut(sock: socket.socket) -> bool:
    """Whether the other side has ended the connection."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_silent_connections_do_not_block_an_environment_server(caplog: pytest.LogCaptureFixture) -> None:
    with serving("CartPole-v1", token=TOKEN) as served:
        host, port = served.split(":")
        address = host, int(port)
        threads = threading.active_count()
        with flood(address, 300):
            # Only those of the flood.
            assert threading.active_count() <= threads + 1
            for _ in range(30):
                assert greeted(address)["op"] == "welcome"
            assert greeted(address, ATTACKER)["op"] == "welcome"
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) < 20
    assert any("cut before it had greeted, to make room for others" in record.message for record in lines)


def test_pending_connections_of_one_address_cut_only_each_other() -> None:
    with (
        admitting(AdmissionLimits(pending=8, pending_per_address=4)) as (address, _),
        held(address, 3, "127.0.0.3") as others,
        held(address, 20) as theirs,
    ):
        wait_until(lambda: sum(map(is_cut, theirs)) == 16, "all but four are cut")
        assert not any(map(is_cut, others))
        assert all(map(is_cut, theirs[:16])), "the oldest ones are"


def test_if_too_many_are_pending_the_busiest_address_loses_one() -> None:
    with (
        admitting(AdmissionLimits(pending=8, pending_per_address=6)) as (address, _),
        held(address, 2, "127.0.0.3") as others,
        held(address, 6) as theirs,
        held(address, 3, "127.0.0.4") as more,
    ):
        wait_until(lambda: sum(map(is_cut, theirs)) == 3, "three are cut")
        assert not any(map(is_cut, [*others, *more]))


def test_pending_connections_cannot_take_the_places_of_admitted_ones() -> None:
    limits = AdmissionLimits(connections=3, connections_per_address=2, pending=4, pending_per_address=4)
    with admitting(limits) as (address, members), contextlib.ExitStack() as stack:

        def comes(source: str) -> bool:
            sock = stack.enter_context(socket.create_connection(address, 30, source_address=(source, 0)))
            sock.sendall(frame(HELLO))
            return bool(sock.recv(100))

        stack.enter_context(held(address, 30))
        assert comes("127.0.0.1")
        assert comes("127.0.0.1")
        assert not comes("127.0.0.1"), "two are enough of one address"
        assert comes("127.0.0.3")
        assert not comes("127.0.0.4"), "three are enough"
        members[0].leave()
        members[0].leave()
        assert comes("127.0.0.4")
        assert not comes("127.0.0.5")


def test_a_slow_greeting_is_cut_at_the_deadline() -> None:
    with admitting(AdmissionLimits(greeting_seconds=0.5)) as (address, members), held(address, 1) as (sock,):
        with contextlib.suppress(OSError):
            for byte in frame(HELLO):
                sock.sendall(bytes([byte]))
                time.sleep(0.05)
        wait_until(lambda: is_cut(sock), "it is cut")
        assert not members


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (frame(HELLO | {"token": "another one, as long"}), "token"),
        (frame(HELLO | {"token": None}), "token"),
        (frame(HELLO | {"token": [TOKEN]}), "token"),
        (frame(HELLO | {"version": 2}), "version"),
        (frame(HELLO | {"version": True}), "version"),
        (frame(HELLO | {"protocol": "http"}), "protocol"),
        (frame([HELLO]), "protocol"),
        (frame(HELLO) + b"x", "protocol"),
        (frame(HELLO | {"more": [0] * 17}), "protocol"),
        (frame(HELLO | {str(i): i for i in range(17)}), "protocol"),
        (frame(HELLO | {"more": "x" * GREETING_LIMIT}), "protocol"),
        (frame(HELLO)[:3] + b"\xff" + b"\xdd\xff\xff\xff\xff" * 51, "protocol"),
        (b"GET / HTTP/1.1\r\n\r\n", "protocol"),
        (b"\0\0\0\0", "protocol"),
    ],
)
def test_anything_but_a_greeting_is_refused_with_a_sentence(sent: bytes, kind: str) -> None:
    with admitting() as (address, members), held(address, 1) as (sock,):
        sock.sendall(sent)
        answer = Line(sock).read()
        assert (answer["op"], answer["kind"], answer["version"]) == ("error", kind, 1)
        assert TOKEN not in answer["message"]
        assert sock.recv(1) == b""
        assert not members


def test_a_greeting_may_come_in_pieces_and_with_fields_of_later_versions() -> None:
    with admitting() as (address, _), held(address, 1) as (sock,):
        for byte in frame(HELLO | {"more": {"a": [1, 2]}}):
            sock.sendall(bytes([byte]))
        assert Line(sock).read() == {"op": "welcome"}


def test_a_connection_that_has_greeted_is_handed_on_when_admission_stops() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    members: list[AdmittedConnection] = []
    admission = Admission(listener, Greeting("steppe-env", 1, TOKEN, "server", "client"), None, members.append)
    with held(listener.getsockname(), 2) as (greets, is_silent):
        greets.sendall(frame(HELLO))
        admission.stop()
        admission.serve()
        assert len(members) == 1
        assert is_silent.recv(1) == b""
        members[0].sock.sendall(b"over")
        assert greets.recv(4) == b"over"
        members[0].sock.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def test_endless_handshakes_do_not_delay_others(certificate: tuple[Path, Path]) -> None:
    trust = ssl.create_default_context(cafile=certificate[0])
    with admitting(tls=server_tls(*certificate)) as (address, members), held(address, 40) as strangers:
        for number, sock in enumerate(strangers):
            # Nothing, or the beginning of a handshake, or something else.
            sock.sendall([b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n"][number % 3])
        for number in range(3):
            with trust.wrap_socket(socket.create_connection(address, 30), server_hostname="127.0.0.1") as sock:
                sock.sendall(frame(HELLO))
                assert Line(sock).read() == {"op": "welcome"}
                wait_until(lambda: len(members) > number, "it is a member")  # noqa: B023
                members[number].sock.sendall(b"more")
                assert sock.recv(4) == b"more"
        with trust.wrap_socket(socket.create_connection(address, 30), server_hostname="127.0.0.1") as sock:
            sock.sendall(frame(HELLO | {"token": "wrong"}))
            assert Line(sock).read()["kind"] == "token"


def test_the_server_refuses_a_token_too_long_for_a_greeting(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("x" * 2048)
    assert len(frame(HELLO | {"token": server_token(file)})) < GREETING_LIMIT
    file.write_text("é" * 1025)
    with pytest.raises(UserError, match="has 2,050 bytes; use at most 2048"):
        server_token(file)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_connections_are_counted_by_network(host: str, network: str) -> None:
    assert network_of(host) == network


def test_many_refusals_are_one_log_line_with_their_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("steppe.net.rated_log.time.monotonic", lambda: now[0])
    rated = RatedLog(logging.getLogger("rated"), 5.0)
    write: Callable[..., None] = rated.warning
    for number in range(10):
        write("%s: no", number)
        rated.flush()
    assert (caplog.messages, rated.due) == (["0: no"], 105.0)
    now[0] = 105.0
    rated.flush()
    write("%s: no", 10)
    assert caplog.messages == ["0: no", "9: no (9 such connections since the last line)"]
    rated.flush(at_once=True)
    assert (caplog.messages[2:], rated.due) == (["10: no"], None)
