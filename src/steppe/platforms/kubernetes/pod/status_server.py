"""The door of a Pod: tells over HTTP how the run is going, shows its files, and hears what is asked of it.

Every question shows a token, which is looked at before anything else. GET /status, /log?from=BYTES, /files or
/files?name=PATH, /files/PATH (with Range), /crew; POST /ask. The token of those who work for a driver opens /crew only.
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
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from steppe.errors import SteppeError
from steppe.files.durable import write_atomically
from steppe.platforms.kubernetes.agreement import TOKEN_HEADER
from steppe.platforms.kubernetes.pod.bounded_server import REQUEST_SECONDS, BoundedServer, Request

Json = dict[str, Any]
STATUS_FILE, LOG_FILE, REQUEST_FILE = "status.json", "log.txt", "request.json"
"""As a run folder calls them."""
WHOLE, CREW = "whole", "crew"
"""What a token gives a right to: everything, or what those who work for a driver must know."""
ACTIONS = ("pause", "stop")
IDLE_SECONDS = 60.0
BLOCK = 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Door:
    """Listens from `open` on, in a few threads of its own, until `close`."""

    def __init__(
        self,
        folder: Path,
        token: str,
        facts: Callable[[], Json],
        *,
        crew_token: str = "",
        crew_file: Path | None = None,
        takes_requests: bool,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        """`facts` are what the Pod knows beside the run's own status; `crew_file` says what workers must know.

        A request that takes longer than `request_seconds` to arrive is cut.
        """
        self.folder, self.token, self.facts = folder, token, facts
        self.crew_token, self.crew_file, self.takes_requests = crew_token, crew_file, takes_requests
        self._sums: dict[str, tuple[int, int, str]] = {}
        self._lock = threading.Lock()
        self.port: int | None = None
        self._request_seconds = request_seconds
        self._server: BoundedServer | None = None

    def open(self, port: int, host: str = "") -> int:
        """Begins to listen, and returns the port."""
        answer = partial(_answer, self)
        self._server = BoundedServer(self._right_of, TOKEN_HEADER, answer, self._request_seconds)
        self.port = self._server.open((host, port))
        return self.port

    def close(self) -> None:
        """Ends listening."""
        if self._server is not None:
            self._server.close()

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

    def crew(self) -> Json:
        """What those who work for this driver must know: whether it is over or another one, and what a learner says."""
        known = {name: value for name, value in self.facts().items() if name in ("is_over", "session")}
        if self.crew_file is not None and self.crew_file.exists():
            known |= json.loads(self.crew_file.read_text())
        return known

    def _right_of(self, token: str) -> str:
        is_whole = hmac.compare_digest(token.encode(), self.token.encode())
        is_crew = hmac.compare_digest(token.encode(), self.crew_token.encode()) and bool(self.crew_token)
        return WHOLE if is_whole else CREW if is_crew else ""

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


def _answer(door: Door, request: Request) -> None:
    request.connection.settimeout(IDLE_SECONDS)
    _Handler(door, request)


class _Handler(BaseHTTPRequestHandler):
    """Answers one whole request, whose token was looked at."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version = "steppe"
    sys_version = ""

    def __init__(self, door: Door, request: Request) -> None:
        self.door, self._received, self._right = door, bytes(request.data), request.right
        super().__init__(request.connection, request.address, None)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Reads what was received, instead of the connection."""
        super().setup()
        self.rfile.close()
        self.rfile = BytesIO(self._received)

    def end_headers(self) -> None:
        """One request a connection: one that is open waits for nothing, and holds no place."""
        self.send_header("Connection", "close")
        super().end_headers()

    def do_GET(self) -> None:
        """Answers a question."""
        try:
            self._give()
        except SteppeError as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error))

    def _give(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path == "/crew":
            self._answer(self.door.crew())
        elif self._right != WHOLE:
            self._refuse(HTTPStatus.FORBIDDEN, "this token opens /crew only")
        elif path == "/status":
            self._answer(self.door.status())
        elif path == "/log":
            begin = parse_qs(url.query).get("from", ["0"])[0]
            log = self.door.file(LOG_FILE) or self.door.folder / LOG_FILE
            self._send_part(log, int(begin) if begin.isdecimal() else 0, None)
        elif path == "/files":
            only = parse_qs(url.query).get("name", [None])[0]
            self._answer({"files": self.door.listed(only)})
        elif path.startswith("/files/") and (file := self.door.file(path.removeprefix("/files/"))) is not None:
            asked = _RANGE.fullmatch(self.headers.get("Range", ""))
            start, stop = (int(asked[1]), int(asked[2]) + 1 if asked[2] else None) if asked else (0, None)
            self._send_part(file, start, stop, is_partial=asked is not None)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing of that name")

    def do_POST(self) -> None:
        """Takes a request to the run."""
        text = self.rfile.read()
        if self._right != WHOLE:
            self._refuse(HTTPStatus.FORBIDDEN, "this token opens /crew only")
            return
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
            # Of a file that was cut short meanwhile less comes than was promised, and the caller sees that.
            while left and (block := file.read(min(BLOCK, left))):
                self.wfile.write(block)
                left -= len(block)


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
