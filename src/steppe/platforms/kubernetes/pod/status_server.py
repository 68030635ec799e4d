"""The HTTP status server of a Pod: reports the status of the run, shows its files, and takes requests to the run.

Every request carries a token, which is checked first. GET /status, /log?from=BYTES, /files or /files?name=PATH,
/files/PATH (with Range), /crew; POST /ask. The token of the Pods that work for a driver is valid for /crew only.
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
from steppe.platforms.kubernetes.pod.bounded_server import REQUEST_SECONDS, BoundedServer, PendingRequest

Json = dict[str, Any]
STATUS_FILE, LOG_FILE, REQUEST_FILE = "status.json", "log.txt", "request.json"
"""The names of these files in a run folder."""
EVERYTHING, POOL_ONLY = "everything", "pool"
"""The rights of tokens: all requests, or only /crew, for the Pods that work for a driver."""
ACTIONS = ("pause", "stop")
IDLE_SECONDS = 60.0
BLOCK = 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class StatusServer:
    """Listens from `open` until `close`, in a few threads of its own."""

    def __init__(
        self,
        folder: Path,
        token: str,
        facts: Callable[[], Json],
        *,
        pool_token: str = "",
        pool_file: Path | None = None,
        takes_requests: bool,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        """`facts` returns what the Pod knows beside the run's own status; `pool_file` has the configuration of workers.

        A request that takes longer than `request_seconds` to arrive is dropped.
        """
        self.folder, self.token, self.facts = folder, token, facts
        self.pool_token, self.pool_file, self.takes_requests = pool_token, pool_file, takes_requests
        self._sums: dict[str, tuple[int, int, str]] = {}
        self._lock = threading.Lock()
        self.port: int | None = None
        self._request_seconds = request_seconds
        self._server: BoundedServer | None = None

    def open(self, port: int, host: str = "") -> int:
        """Starts listening; returns the port."""
        answer = partial(_answer, self)
        self._server = BoundedServer(self._right_of, TOKEN_HEADER, answer, self._request_seconds)
        self.port = self._server.open((host, port))
        return self.port

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    def status(self) -> Json:
        """The run's own status, None before there is one, and the facts of the Pod."""
        return {"status": read_status(self.folder), **self.facts()}

    def listed(self, only: str | None = None) -> list[Json]:
        """Every finished file with its size and checksum, or only the file of that name."""
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
        """The file of that name if it may be shown, else None."""
        path = self.folder / name
        return path if is_shown(name) and path.is_file() and _is_inside(path, self.folder) else None

    def ask(self, action: str) -> None:
        """Writes a request into the file in which the run looks for it."""
        text = json.dumps({"action": action, "time": time.time()}) + "\n"
        write_atomically(self.folder / REQUEST_FILE, text)

    def pool_answer(self) -> Json:
        """The answer to the pool: whether the run is over, the driver's session, and the configuration of workers."""
        known = {name: value for name, value in self.facts().items() if name in ("is_over", "session")}
        if self.pool_file is not None and self.pool_file.exists():
            known |= json.loads(self.pool_file.read_text())
        return known

    def _right_of(self, token: str) -> str:
        is_full = hmac.compare_digest(token.encode(), self.token.encode())
        is_pool = hmac.compare_digest(token.encode(), self.pool_token.encode()) and bool(self.pool_token)
        return EVERYTHING if is_full else POOL_ONLY if is_pool else ""

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


def _answer(server: StatusServer, request: PendingRequest) -> None:
    request.connection.settimeout(IDLE_SECONDS)
    _StatusHandler(server, request)


class _StatusHandler(BaseHTTPRequestHandler):
    """Answers one complete request, whose token was checked."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version = "steppe"
    sys_version = ""

    def __init__(self, server: StatusServer, request: PendingRequest) -> None:
        self.status_server, self._received, self._right = server, bytes(request.data), request.right
        super().__init__(request.connection, request.address, None)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Reads the bytes that were received, instead of the connection."""
        super().setup()
        self.rfile.close()
        self.rfile = BytesIO(self._received)

    def end_headers(self) -> None:
        """Allows one request a connection, so that no idle connection takes the place of another."""
        self.send_header("Connection", "close")
        super().end_headers()

    def do_GET(self) -> None:
        """Answers a GET request."""
        try:
            self._give()
        except SteppeError as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error))

    def _give(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path == "/crew":
            self._answer(self.status_server.pool_answer())
        elif self._right != EVERYTHING:
            self._refuse(HTTPStatus.FORBIDDEN, "this token opens /crew only")
        elif path == "/status":
            self._answer(self.status_server.status())
        elif path == "/log":
            begin = parse_qs(url.query).get("from", ["0"])[0]
            log = self.status_server.file(LOG_FILE) or self.status_server.folder / LOG_FILE
            self._send_part(log, int(begin) if begin.isdecimal() else 0, None)
        elif path == "/files":
            only = parse_qs(url.query).get("name", [None])[0]
            self._answer({"files": self.status_server.listed(only)})
        elif path.startswith("/files/") and (file := self.status_server.file(path.removeprefix("/files/"))) is not None:
            asked = _RANGE.fullmatch(self.headers.get("Range", ""))
            start, stop = (int(asked[1]), int(asked[2]) + 1 if asked[2] else None) if asked else (0, None)
            self._send_part(file, start, stop, is_partial=asked is not None)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing of that name")

    def do_POST(self) -> None:
        """Passes a request on to the run."""
        text = self.rfile.read()
        if self._right != EVERYTHING:
            self._refuse(HTTPStatus.FORBIDDEN, "this token opens /crew only")
            return
        if self.path != "/ask" or not self.status_server.takes_requests:
            self._refuse(HTTPStatus.NOT_FOUND, "nothing can be asked of this Pod")
            return
        try:
            action = json.loads(text)["action"]
        except (ValueError, KeyError, TypeError):
            action = None
        if action not in ACTIONS:
            self._refuse(HTTPStatus.BAD_REQUEST, f"an action is one of {', '.join(ACTIONS)}")
            return
        self.status_server.ask(action)
        self._answer({"asked": action})

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing: the log belongs to the run."""

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
        """Sends the bytes from `start` to `stop` of a file as it is now; it may grow meanwhile."""
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
            # If the file was truncated meanwhile, the caller sees that less arrives than was announced.
            while left and (block := file.read(min(BLOCK, left))):
                self.wfile.write(block)
                left -= len(block)


def is_shown(name: str) -> bool:
    """Whether a path can be that of a result: relative and without hidden parts."""
    path = Path(name)
    return bool(name) and not path.is_absolute() and not any(part.startswith(".") for part in path.parts)


def read_status(folder: Path) -> Json | None:
    """The content of status.json; None if it does not exist or is unreadable."""
    try:
        data = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return [path for path in found if path.is_file() and _is_inside(path, folder) and path.name != REQUEST_FILE]


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder after links are resolved."""
    return path.resolve().is_relative_to(folder.resolve())
