"""Requests to a status server, as other Pods and clients send them."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Iterator

from steppe.platforms.kubernetes.agreement import TOKEN_HEADER
from steppe.platforms.kubernetes.pod.status_server import StatusServer

TOKEN = "a-token-of-tests"
Ask = Callable[..., tuple[int, bytes]]


@contextlib.contextmanager
def opened(server: StatusServer) -> Iterator[Ask]:
    """Opens a server; yields a function that sends a request and returns (status, body)."""
    port = server.open(0, "127.0.0.1")

    def ask(
        path: str, method: str = "GET", token: str = TOKEN, body: str | None = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body=body, headers={TOKEN_HEADER: token, **headers})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data

    yield ask
    server.close()
