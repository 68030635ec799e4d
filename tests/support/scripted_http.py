"""HTTP servers that say whatever a test wants, and know nothing of Steppe's code."""

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
    """One request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """Its JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Say:
    """An answer: plain values become JSON."""

    data: Any = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


HANG_UP = Say(status=0)
"""The request is read, and the connection closed without a word."""
Script = Callable[[Heard], Any]


@contextlib.contextmanager
def answering(script: Script, port: int = 0) -> Iterator[str]:
    """A server whose answers are what `script` returns: a `Say`, or plain values; its address.

    A failure in the script fails the test.
    """
    failures: list[BaseException] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: the second of two would wait for the first one's receipt

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                said = script(Heard(self.command, self.path, headers, body))
            except BaseException as error:
                failures.append(error)
                said = HANG_UP
            said = said if isinstance(said, Say) else Say(said)
            if said == HANG_UP:
                self.close_connection = True
                return
            data = said.data if isinstance(said.data, bytes) else json.dumps(said.data).encode()
            self.send_response(said.status)
            for name, value in (("content-length", str(len(data))), *said.headers):
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
