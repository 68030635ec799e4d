"""Google Cloud Storage on loopback: serves google_storage.py at a port, with the sign-in of a service account."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from google_cloud import write_key
from google_storage import ACCOUNT, GoogleStorage, Reply, Request

AS_GOOGLE = "/storage.googleapis.com"
"""If this is in its address, gcsfs behaves as with Google itself, and removes objects in batches."""

GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"


@contextlib.contextmanager
def google_storage(folder: Path, host: str = "127.0.0.1") -> Iterator[tuple[GoogleStorage, int, Path]]:
    """Serves a storage without buckets: (storage, port, key file of an account with all permissions)."""
    storage = GoogleStorage()
    key = write_key(folder / "key.json", "URL")
    server = ThreadingHTTPServer((host, 0), _handler(storage, json.loads(key.read_text())["private_key"]))
    server.daemon_threads = True
    key.write_text(key_at(key, f"http://127.0.0.1:{server.server_port}"))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield storage, server.server_port, key
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


def key_at(key: Path, url: str) -> str:
    """The content of a key file whose sign-in is at another address of this server."""
    return json.dumps(json.loads(key.read_text()) | {"token_uri": f"{url}/token"})


def _handler(storage: GoogleStorage, private_key: str) -> type[BaseHTTPRequestHandler]:
    public_key = _public(private_key)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: a second one would wait for the first one's acknowledgement

        def _answer(self) -> None:
            asked = urlsplit(self.path)
            path = asked.path.removeprefix(AS_GOOGLE)
            parameters = dict(parse_qsl(asked.query, keep_blank_values=True))
            length = int(self.headers.get("content-length") or 0)
            cut = storage.cuts.popleft() if storage.cuts and "upload_id" in parameters and length else length
            body = self._body(min(cut, length))
            if storage.is_silent:
                self._hang_up_when_left()
                return
            if path == "/token":
                self._send(_sign_in(storage, public_key, dict(parse_qsl(body.decode()))))
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            base = f"http://{headers['host']}{AS_GOOGLE if asked.path.startswith(AS_GOOGLE) else ''}"
            reply = storage.answer(Request(self.command, path, parameters, headers, body, base, len(body) == length))
            if len(body) == length:
                self._send(reply)
                return
            # Ends with a reset, as a broken connection does.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def _body(self, length: int) -> bytes:
            body = b""
            with contextlib.suppress(OSError):
                while len(body) < length and (block := self.rfile.read1(length - len(body))):
                    body += block
            return body

        def _hang_up_when_left(self) -> None:
            with contextlib.suppress(OSError):
                self.connection.recv(1)
            self.close_connection = True

        def _send(self, reply: Reply) -> None:
            # Google has reason phrases of its own for these two codes.
            self.send_response(reply.code, {308: "Resume Incomplete", 499: "Client Closed Request"}.get(reply.code))
            for name, value in reply.headers:
                self.send_header(name, value)
            if reply.code != 204:
                self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _sign_in(storage: GoogleStorage, public_key: str, form: dict[str, str]) -> Reply:
    """Returns a token for a request that was signed with the account's key."""
    from google.auth import jwt

    try:
        claims = jwt.decode(form["assertion"], certs=public_key)
    except ValueError:
        refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        return Reply(400, json.dumps(refusal).encode(), (("Content-Type", "application/json"),))
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert claims["iss"] == ACCOUNT
    assert "https://www.googleapis.com/auth/devstorage." in claims["scope"]
    token = f"ya29.{uuid4().hex}"
    storage.tokens.add(token)
    said = {"access_token": token, "expires_in": 3599, "token_type": "Bearer"}
    return Reply(200, json.dumps(said).encode(), (("Content-Type", "application/json"),))


def _public(private_key: str) -> str:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(private_key.encode(), None).public_key()
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(*form).decode()
