"""The door of a Pod: tells over HTTP how the run is going, shows its files, and hears what is asked of it.

Every question shows a token. GET /status, /log?from=BYTES, /files or /files?name=PATH, /files/PATH (with Range), /crew;
POST /ask.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from steppe.errors import SteppeError
from steppe.platforms.kubernetes.words import TOKEN_HEADER
from steppe.records.durable import write_atomically

Json = dict[str, Any]
STATUS_FILE, LOG_FILE, REQUEST_FILE = "status.json", "log.txt", "request.json"
"""As a run folder calls them."""
ACTIONS = ("pause", "stop")
IDLE_SECONDS = 60.0
BLOCK = 1 << 20
LARGEST_QUESTION = 4096
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Door:
    """Listens from `open` on, in threads of its own, until `close`."""

    def __init__(
        self,
        folder: Path,
        token: str,
        facts: Callable[[], Json],
        *,
        crew_file: Path | None = None,
        takes_requests: bool,
    ) -> None:
        """`facts` are what the Pod knows beside the run's own status."""
        self.folder, self.token, self.facts = folder, token, facts
        self.crew_file, self.takes_requests = crew_file, takes_requests
        self._sums: dict[str, tuple[int, int, str]] = {}
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def open(self, port: int, host: str = "") -> int:
        """Begins to listen; the port."""
        handler = type("Handler", (_Handler,), {"door": self})
        self._server = _Server((host, port), handler)
        threading.Thread(target=self._server.serve_forever, name="door", daemon=True).start()
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Ends listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def status(self) -> Json:
        """The run's own status, None before there is one, and what the Pod knows."""
        return {"status": read_status(self.folder), **self.facts()}

    def listed(self, only: str | None = None) -> list[Json]:
        """Every finished file with its size and its checksum, or only the one of that name."""
        found = []
        paths = (
            sorted(_files(self.folder)) if only is None else [path for path in [self.file(only)] if path is not None]
        )
        for path in paths:
            name = path.relative_to(self.folder).as_posix()
            # A running experiment may remove or replace it meanwhile.
            with contextlib.suppress(OSError):
                found.append({"path": name, **self._described(name, path)})
        return found

    def file(self, name: str) -> Path | None:
        """The file of that name, if it is one that is shown."""
        path = self.folder / name
        return path if is_shown(name) and path.is_file() and _is_inside(path, self.folder) else None

    def ask(self, action: str) -> None:
        """Leaves a request where the run looks for it."""
        text = json.dumps({"action": action, "time": time.time()}) + "\n"
        write_atomically(self.folder / REQUEST_FILE, text)

    def _described(self, name: str, path: Path) -> Json:
        about = path.stat()
        with self._lock:
            known = self._sums.get(name)
        if known is not None and known[:2] == (about.st_size, about.st_mtime_ns):
            return {"size": about.st_size, "sha256": known[2]}
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        with self._lock:
            self._sums[name] = (about.st_size, about.st_mtime_ns, digest)
        return {"size": size, "sha256": digest}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hung up is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version = "steppe"
    sys_version = ""
    door: Door

    def do_GET(self) -> None:
        """Answers a question."""
        if not self._is_let_in():
            return
        try:
            self._give()
        except SteppeError as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error))

    def _give(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path == "/status":
            self._answer(self.door.status())
        elif path == "/log":
            begin = parse_qs(url.query).get("from", ["0"])[0]
            log = self.door.file(LOG_FILE) or self.door.folder / LOG_FILE
            self._send_part(log, int(begin) if begin.isdecimal() else 0, None)
        elif path == "/files":
            only = parse_qs(url.query).get("name", [None])[0]
            self._answer({"files": self.door.listed(only)})
        elif path == "/crew" and self.door.crew_file is not None and self.door.crew_file.exists():
            self._answer({**self.door.facts(), **json.loads(self.door.crew_file.read_text())})
        elif path.startswith("/files/") and (file := self.door.file(path.removeprefix("/files/"))) is not None:
            asked = _RANGE.fullmatch(self.headers.get("Range", ""))
            start, stop = (int(asked[1]), int(asked[2]) + 1 if asked[2] else None) if asked else (0, None)
            self._send_part(file, start, stop, is_partial=asked is not None)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing of that name")

    def do_POST(self) -> None:
        """Takes a request to the run."""
        if not self._is_let_in():
            return
        length = self.headers.get("Content-Length", "0")
        text = self.rfile.read(min(int(length), LARGEST_QUESTION) if length.isdecimal() else 0)
        if self.path != "/ask" or not self.door.takes_requests:
            self._refuse(HTTPStatus.NOT_FOUND, "nothing can be asked of this Pod")
            return
        try:
            action = json.loads(text)["action"]
        except (ValueError, KeyError, TypeError):
            action = None
        if action not in ACTIONS:
            self._refuse(HTTPStatus.BAD_REQUEST, f"an action is one of {', '.join(ACTIONS)}")
            return
        self.door.ask(action)
        self._answer({"asked": action})

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the log is the run's."""

    def _is_let_in(self) -> bool:
        shown = self.headers.get(TOKEN_HEADER, "")
        if hmac.compare_digest(shown.encode(), self.door.token.encode()):
            return True
        self.close_connection = True
        self._refuse(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
        return False

    def _answer(self, data: Json, code: HTTPStatus = HTTPStatus.OK) -> None:
        body = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: HTTPStatus, sentence: str) -> None:
        self._answer({"error": sentence}, code)

    def _send_part(self, path: Path, start: int, stop: int | None, is_partial: bool = False) -> None:
        """The bytes from `start` to `stop` of a file as it is now; it may grow meanwhile."""
        try:
            file = path.open("rb")
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing of that name")
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            stop = min(size, stop) if stop is not None else size
            start = min(start, stop)
            self.send_response(HTTPStatus.PARTIAL_CONTENT if is_partial else HTTPStatus.OK)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(stop - start))
            if is_partial:
                self.send_header("Content-Range", f"bytes {start}-{max(start, stop - 1)}/{size}")
            self.end_headers()
            file.seek(start)
            left = stop - start
            while left and (block := file.read(min(BLOCK, left))):
                self.wfile.write(block)
                left -= len(block)
            if left:
                # It was cut short: the caller must not take it for the whole.
                self.close_connection = True


def is_shown(name: str) -> bool:
    """Whether a path is one of a result: relative, and without anything hidden."""
    path = Path(name)
    return bool(name) and not path.is_absolute() and not any(part.startswith(".") for part in path.parts)


def read_status(folder: Path) -> Json | None:
    """What status.json says now; None where there is none."""
    try:
        data = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _files(folder: Path) -> list[Path]:
    found = []
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return [path for path in found if path.is_file() and _is_inside(path, folder) and path.name != REQUEST_FILE]


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether it really lies there, whatever links say."""
    return path.resolve().is_relative_to(folder.resolve())
