from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest
from ports import free_port
from processes import SECONDS
from served import ServedProcess, one_policy, question, router, serving

from steppe.errors import UserError
from steppe.serve import load_endpoint, question_batches
from steppe.serve.endpoint import Endpoint
from steppe.serve.grpc import messages
from steppe.serve.server import EndpointServer, ServerConfig
from steppe.specs.serving import GraphSpec


@contextlib.contextmanager
def process(graph, folder, **settings):
    served = ServedProcess(graph, folder / "state", **settings)
    try:
        yield served
    finally:
        served.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {key} -out {cert} -subj /CN=localhost"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(["openssl", *words.split(), "-addext", names], check=True, capture_output=True)
    return cert, key


def test_requests_in_progress_are_finished_after_sigterm(tmp_path):
    with process(one_policy(tmp_path), tmp_path) as served:
        served.infer()
        body = json.dumps(question()).encode()
        head = f"POST /v2/models/pole/feedback HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        infer = head.replace("feedback", "infer")
        with (
            socket.create_connection(("127.0.0.1", served.port), timeout=30) as slow,
            socket.create_connection(("127.0.0.1", served.port), timeout=30) as half,
        ):
            slow.sendall(head.encode() + body[:10])
            half.sendall(infer.encode() + body[:10])
            # Answered after both on the same loop, so both have arrived before the signal.
            assert served.infer().status == 200
            served.process.send_signal(signal.SIGTERM)
            wait_until(lambda: is_ending(served))
            slow.sendall(body[10:])
            answer = slow.recv(65536)
            assert b" 400 " in answer  # it is no feedback, but it was answered
            assert b"connection: close" in answer
            half.sendall(body[10:])
            assert b" 200 " in half.recv(65536)
        assert served.process.wait(SECONDS) == 0
        assert "ended" in served.process.stdout.read()


@contextlib.contextmanager
def begun_request(served):
    """A request whose body does not come."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as sock:
        sock.sendall(b"POST /v2/models/pole/feedback HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        # Answered on the same loop, so the other one has arrived.
        assert served.infer().status == 200
        yield


def is_ending(served):
    """Whether it says that it is not ready, or no longer answers."""
    try:
        return served.get("/v2/health/ready").status == 503
    except OSError:
        return True


def wait_until(holds, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_restart_under_load_loses_no_request_that_was_begun(tmp_path):
    graph, port = router(tmp_path), free_port()
    failures, answers, is_over = [], [], threading.Event()

    def ask(port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        while not is_over.is_set():
            try:
                connection.request("POST", "/v2/models/pole/infer", json.dumps(question()))
                response = connection.getresponse()
                response.read()
                (answers if response.status == 200 else failures).append(response.status)
            except (ConnectionError, http.client.RemoteDisconnected):
                # The server may close a connection without a request; any client then asks again.
                connection.close()
                time.sleep(0.01)
        connection.close()

    with process(graph, tmp_path, port=port) as first:
        threads = [threading.Thread(target=ask, args=(port,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(answers) > 200)
            first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(SECONDS) == 0
            with process(graph, tmp_path, port=port) as second:
                so_far = len(answers)
                wait_until(lambda: len(answers) > so_far + 200)
                is_over.set()
                assert second.infer().status == 200
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    assert failures == []


def test_a_second_signal_ends_it_at_once(tmp_path):
    # Draining alone would take longer than this test.
    limits = {"drain_seconds": 10 * SECONDS, "request_seconds": 10 * SECONDS}
    with process(one_policy(tmp_path), tmp_path, limits=limits) as served, begun_request(served):
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_ending(served))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(SECONDS) is not None


def test_draining_has_a_time_limit(tmp_path):
    limits = {"drain_seconds": 1.0}
    with process(one_policy(tmp_path), tmp_path, limits=limits) as served, begun_request(served):
        served.process.send_signal(signal.SIGTERM)
        # Less than the default.
        assert served.process.wait(25) == 0


def test_https_and_grpc_with_tls(tmp_path, certificate):
    cert, key = certificate
    with serving(one_policy(tmp_path), tmp_path, tls_cert=cert, tls_key=key, grpc_port=0) as served:
        assert served.server.url == f"https://127.0.0.1:{served.port}"
        trusting = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("127.0.0.1", served.port, context=trusting, timeout=30)
        for _ in range(3):
            connection.request("POST", "/v2/models/pole/infer", json.dumps(question()))
            response = connection.getresponse()
            assert response.status == 200
            response.read()
        connection.close()
        with pytest.raises(ssl.SSLError):
            http.client.HTTPSConnection("127.0.0.1", served.port, timeout=30).request("GET", "/v2")
        with pytest.raises((OSError, http.client.HTTPException)):
            served.infer()
        with grpc.secure_channel(
            f"localhost:{served.grpc_port}", grpc.ssl_channel_credentials(cert.read_bytes())
        ) as channel:
            call = channel.unary_unary(
                f"/{messages.INFERENCE}/ServerReady", response_deserializer=messages.ServerReadyResponse.FromString
            )
            assert call(b"", timeout=30).ready


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"host": "0.0.0.0"}, "token"),
        ({"host": "no.such.host.invalid"}, "no host"),
        ({"tls_cert": "x.pem"}, "--tls-key"),
        ({"tls_cert": "x.pem", "tls_key": "y.pem"}, "x.pem"),
    ],
)
def test_invalid_addresses_are_refused_before_anything_starts(tmp_path, wrong, words):
    endpoint = load_endpoint(GraphSpec.model_validate(one_policy(tmp_path)), folder=tmp_path / "state")
    with pytest.raises(UserError, match=words):
        EndpointServer(endpoint, ServerConfig(**({"port": 0} | wrong)))


def test_a_port_in_use_is_reported(tmp_path):
    endpoint = load_endpoint(GraphSpec.model_validate(one_policy(tmp_path)), folder=tmp_path / "state")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="--port"):
            EndpointServer(endpoint, ServerConfig(port=port))
        with pytest.raises(UserError, match="--grpc-port"):
            EndpointServer(endpoint, ServerConfig(port=0, grpc_port=port)).run()


def test_the_token_is_not_shown(tmp_path):
    assert "secret" not in repr(ServerConfig(token="a-secret-token-of-some-length"))


def test_serving_does_not_import_jax(tmp_path):
    graph = one_policy(tmp_path)
    with process(graph, tmp_path, grpc_port=0) as served:
        assert served.infer().status == 200
        assert served.get("/metrics").status == 200
        maps = Path(f"/proc/{served.process.pid}/maps").read_text()
    assert "jaxlib" not in maps
    assert "libtorch" not in maps


def test_waiting_questions_for_a_slow_policy_are_answered_together(tmp_path, monkeypatch):
    monkeypatch.setattr(question_batches, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(question_batches, "MAX_COST", float("inf"))
    sizes, several, is_sent = [], Endpoint.answers, threading.Event()

    def slow(self, questions):
        # As if the first took so long that all others arrived meanwhile.
        assert is_sent.wait(SECONDS)
        sizes.append(len(questions))
        return several(self, questions)

    monkeypatch.setattr(Endpoint, "answers", slow)
    with serving(one_policy(tmp_path), tmp_path) as served, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in range(20)]
        for sock in sockets:
            # Connections are accepted one by one, questions on them are answered together.
            sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            whole(sock)
        for number, sock in enumerate(sockets):
            shape = (1, 5) if number == 7 else (1, 4)
            body = json.dumps(question(id=f"client-{number}", shape=shape)).encode()
            head = f"POST /v2/models/pole/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
        is_sent.set()
        answers = [whole(sock) for sock in sockets]
    assert b" 400 " in answers.pop(7)
    numbers = [number for number in range(20) if number != 7]
    assert all(f'"client-{number}"'.encode() in answer for number, answer in zip(numbers, answers, strict=True))
    assert sum(sizes) == 19
    assert len(sizes) <= 3


def whole(sock):
    """Reads an answer to its end."""
    received = b""
    while not received.endswith(b"}"):
        piece = sock.recv(65536)
        assert piece
        received += piece
    return received
