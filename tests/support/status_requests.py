"""Asks a door as other Pods and clients do."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Iterator

from steppe.platforms.kubernetes.agreement import TOKEN_HEADER
from steppe.platforms.kubernetes.pod.status_server import StatusServer

TOKEN = "a-token-of-tests"
Ask = Callable[..., tuple[int, bytes]]


@contextlib.contextmanager
def opened(door: StatusServer) -> Iterator[Ask]:
    """(status, body) of every question, while the door is open."""
    port = door.open(0, "127.0.0.1")

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
    door.close()
