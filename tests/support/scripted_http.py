"""HTTP servers whose answers a test scripts, independent of Steppe's code."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Heard:
    """A request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """The JSON in the body."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Say:
    """An answer; plain values become JSON."""

    data: Any = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


HANG_UP = Say(status=0)
"""The server reads the request and closes the connection without an answer."""
Script = Callable[[Heard], Any]


@contextlib.contextmanager
def answering(script: Script, port: int = 0) -> Iterator[str]:
    """Runs a server that answers each request with the script's return value, a `Say` or plain values.

    Yields its address. A failure in the script fails the test.
    """
    failures: list[BaseException] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body go in one packet: a second one would wait for the first one's acknowledgement

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                answer = script(Heard(self.command, self.path, headers, body))
            except BaseException as error:
                failures.append(error)
                answer = HANG_UP
            answer = answer if isinstance(answer, Say) else Say(answer)
            if answer == HANG_UP:
                self.close_connection = True
                return
            data = answer.data if isinstance(answer.data, bytes) else json.dumps(answer.data).encode()
            self.send_response(answer.status)
            for name, value in (("content-length", str(len(data))), *answer.headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
    if failures:
        raise failures[0]
