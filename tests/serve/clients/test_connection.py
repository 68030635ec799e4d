from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificate
from ports import free_port
from scripted_http import HANG_UP, Heard, Say, answering

from steppe.errors import UserError
from steppe.serve.clients import EndpointAccess, EndpointAway, EndpointFault, EpisodeLost
from steppe.serve.clients.connection import ClientConnection


def refused(said: Any, path: str = "/v2", **access: Any) -> Exception:
    with (
        answering(lambda heard: said) as url,
        contextlib.closing(ClientConnection(EndpointAccess(url, **access))) as connection,
    ):
        with pytest.raises(Exception) as caught:
            connection.ask("GET", path)
        return caught.value


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "is_encrypted"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "", False),
        ("127.0.0.1:8000", "127.0.0.1", 8000, "", False),
        ("https://policies.example/", "policies.example", 443, "", True),
        ("http://[::1]:80/team/policies/", "::1", 80, "/team/policies", False),
        ("grpcs://policies.example:9000", "policies.example", 9000, "", True),
    ],
)
def test_endpoint_urls_are_parsed(url: str, host: str, port: int, prefix: str, is_encrypted: bool) -> None:
    access = EndpointAccess(url)
    assert access.address == (is_encrypted, host, port, prefix)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:99999", "http://x?a=1", "http://me:secret@x"])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(UserError, match="is not the address of an endpoint"):
        _ = EndpointAccess(url).address


def test_a_token_is_never_shown() -> None:
    assert "secret" not in repr(EndpointAccess("http://x", token="secret"))


def test_one_connection_carries_many_requests_and_the_token() -> None:
    heard: list[Heard] = []

    def script(request: Heard) -> Any:
        heard.append(request)
        return {"path": request.path}

    with answering(script) as url:
        connection = ClientConnection(EndpointAccess(f"{url}/policies", token="t" * 16))
        assert connection.ask("GET", "/v2") == {"path": "/policies/v2"}
        first = connection._connection
        assert connection.ask("POST", "/v2/a", {"x": 1}) == {"path": "/policies/v2/a"}
        assert connection._connection is first
        connection.close()
        assert connection.ask("GET", "/v2") == {"path": "/policies/v2"}
        connection.close()
    assert [request.headers["authorization"] for request in heard] == ["Bearer " + "t" * 16] * 3
    assert heard[1].data == {"x": 1}


def test_a_refused_connection_means_away_with_nothing_sent() -> None:
    with pytest.raises(EndpointAway, match="connection refused") as caught:
        ClientConnection(EndpointAccess(f"http://127.0.0.1:{free_port()}")).ask("GET", "/v2")
    assert not caught.value.was_sent


def test_a_connection_lost_before_the_answer_means_away_and_maybe_sent() -> None:
    error = refused(HANG_UP)
    assert isinstance(error, EndpointAway)
    assert error.was_sent


def test_an_answer_that_times_out_means_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        connection = ClientConnection(EndpointAccess(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout=0.05))
        with pytest.raises(EndpointAway, match=r"no answer within 0\.05 s") as caught:
            connection.ask("GET", "/v2")
    assert caught.value.was_sent


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_endpoint_is_away_and_says_for_how_long(status: int) -> None:
    error = refused(Say({"error": "not now"}, status, (("retry-after", "2"),)))
    assert isinstance(error, EndpointAway)
    assert (str(error), error.pause, error.was_sent) == ("not now", 2.0, False)


@pytest.mark.parametrize("pause", ["soon", "-1", "nan", "86400"])
def test_senseless_retry_pauses_are_ignored(pause: str) -> None:
    error = refused(Say({}, 503, (("retry-after", pause),)))
    assert isinstance(error, EndpointAway)
    assert error.pause is None


def test_a_refusal_quotes_the_endpoint() -> None:
    seldon = {"status": {"code": 400, "info": "the shape is wrong", "status": "FAILURE"}}
    for said in ({"error": "the shape is wrong"}, seldon, {"detail": "the shape is wrong"}):
        error = refused(Say(said, 400))
        assert isinstance(error, UserError)
        assert str(error).endswith("refused what it was sent: the shape is wrong")


def test_a_missing_and_a_wrong_token_have_different_errors() -> None:
    said = Say({"error": "a token is needed"}, 401)
    assert "give its token by --token-file or STEPPE_SERVE_TOKEN" in str(refused(said))
    assert "give another token" in str(refused(said, token="x" * 16))


def test_an_unknown_path_is_a_user_error() -> None:
    error = refused(Say(b"<html>", 404), path="/v2/models/x")
    assert isinstance(error, UserError)
    assert "has no /v2/models/x (not found); check --url, --protocol and --model" in str(error)


def test_feedback_for_an_unknown_episode_raises_episode_lost() -> None:
    with (
        answering(lambda heard: Say({"error": "no such episode"}, 404)) as url,
        contextlib.closing(ClientConnection(EndpointAccess(url))) as connection,
        pytest.raises(EpisodeLost, match="no such episode"),
    ):
        connection.tell("/feedback", {"reward": 1})


def test_a_fault_of_the_endpoint_is_not_retried() -> None:
    error = refused(Say({"error": "division by zero"}, 500))
    assert isinstance(error, EndpointFault)
    assert "had an internal error (500): division by zero; see its log" in str(error)


@pytest.mark.parametrize("body", [b"hello", b"[1, 2]", b"[" * 100_000])
def test_a_reply_other_than_a_json_object_is_an_endpoint_fault(body: bytes) -> None:
    error = refused(Say(body))
    assert isinstance(error, EndpointFault)
    assert "is it an endpoint?" in str(error)


def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            sock, _ = listener.accept()
            try:
                with context.wrap_socket(sock, server_side=True) as line:
                    line.recv(10_000)
                    body = json.dumps({"name": "x"}).encode()
                    line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            except OSError:
                sock.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"https://localhost:{listener.getsockname()[1]}"
    with pytest.raises(UserError, match=r"is not trusted .* by --tls-ca"):
        ClientConnection(EndpointAccess(url)).ask("GET", "/v2")
    connection = ClientConnection(EndpointAccess(url, tls_ca=certificate[0]))
    assert connection.ask("GET", "/v2") == {"name": "x"}
    connection.close()
    thread.join(30)
    listener.close()


def test_a_file_without_certificates_is_named_in_the_error() -> None:
    with pytest.raises(UserError, match=r"cannot read the certificates in nowhere\.pem"):
        EndpointAccess("https://x", tls_ca="nowhere.pem").tls()


@pytest.mark.parametrize(
    ("bytes_said", "kind"),
    [(b"\x00\x00\x12\x04 settings\r\n", UserError), (b"HTTP/1\r\n", EndpointAway), (b"", EndpointAway)],
)
def test_a_server_that_does_not_speak_http_is_a_user_error(bytes_said: bytes, kind: type[Exception]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def say() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(bytes_said)

        thread = threading.Thread(target=say)
        thread.start()
        client = ClientConnection(EndpointAccess(f"http://127.0.0.1:{server.getsockname()[1]}"))
        with contextlib.closing(client), pytest.raises(kind) as caught:
            client.ask("GET", "/v2")
        thread.join()
    assert type(caught.value) is kind
    assert kind is EndpointAway or "does not speak HTTP" in str(caught.value)
