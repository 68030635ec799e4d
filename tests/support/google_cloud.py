"""A fake of Google's cloud on loopback: the REST API of GKE and the sign-in of service accounts."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

AUTHORITY = base64.b64encode(b"a certificate").decode()
_PARENT = r"/v1/projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)/clusters"


@dataclass
class GoogleCloud:
    """The clusters of the fake, and the requests to it."""

    clusters: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    """(project, location, name) -> the cluster as the API writes it."""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    """(method, path, body) of each request, in order."""
    refusal: tuple[int, str, str] | None = None
    """(HTTP code, status, message) of the error that answers every request, except the sign-in."""
    failure: str | None = None
    """Why the creation of the next cluster fails."""
    looks_until_done: int = 2
    """How many requests for the state it takes until a cluster is made or deleted."""
    token: str = "a-token-of-google"
    endpoint: str = "127.0.0.1:9"
    authority: str = AUTHORITY
    url: str = ""
    _looks: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """(HTTP code, JSON) for one request of GKE's API."""
        self.asked.append((method, path, body))
        if self.refusal is not None:
            code, status, message = self.refusal
            return _error(code, status, message)
        if (match := re.fullmatch(_PARENT, path)) is not None:
            where = match["project"], match["location"]
            return self._create(where, body["cluster"]) if method == "POST" else self._list(where)
        if (match := re.fullmatch(_PARENT + "/(?P<name>[^/]+)", path)) is not None:
            key = match["project"], match["location"], match["name"]
            return self._get(key) if method == "GET" else self._delete(key)
        return _error(404, "NOT_FOUND", f"no method at {path}")

    def _create(self, where: tuple[str, str], cluster: dict[str, Any]) -> tuple[int, Any]:
        key = (*where, cluster["name"])
        if key in self.clusters:
            return _error(409, "ALREADY_EXISTS", f"Already exists: {'/'.join(key)}.")
        pools = cluster["nodePools"]
        made = {
            **cluster,
            "status": "PROVISIONING",
            "location": where[1],
            "endpoint": self.endpoint,
            "masterAuth": {"clusterCaCertificate": self.authority},
            "currentMasterVersion": "1.33.5-gke.100",
            "currentNodeCount": sum(pool["initialNodeCount"] for pool in pools),
        }
        self.clusters[key] = made
        self._looks[key] = 0
        return 200, {"name": "operation-1", "operationType": "CREATE_CLUSTER", "status": "RUNNING"}

    def _list(self, where: tuple[str, str]) -> tuple[int, Any]:
        found = [
            cluster
            for (project, location, _), cluster in self.clusters.items()
            if project == where[0] and where[1] in ("-", location)
        ]
        return 200, {"clusters": found}

    def _get(self, key: tuple[str, str, str]) -> tuple[int, Any]:
        if key not in self.clusters:
            return _error(404, "NOT_FOUND", f"Not found: projects/{key[0]}/locations/{key[1]}/clusters/{key[2]}.")
        cluster = self.clusters[key]
        self._looks[key] = self._looks.get(key, 0) + 1
        if self._looks[key] > self.looks_until_done:
            if cluster["status"] == "PROVISIONING":
                cluster["status"] = "ERROR" if self.failure else "RUNNING"
                cluster["statusMessage"] = self.failure or ""
            elif cluster["status"] == "STOPPING":
                del self.clusters[key]
                return self._get(key)
        return 200, cluster

    def _delete(self, key: tuple[str, str, str]) -> tuple[int, Any]:
        if key not in self.clusters:
            return self._get(key)
        self.clusters[key]["status"] = "STOPPING"
        self._looks[key] = 0
        return 200, {"name": "operation-2", "operationType": "DELETE_CLUSTER", "status": "RUNNING"}


def serve_google(cloud: GoogleCloud) -> ThreadingHTTPServer:
    """Serves the fake at a free port of loopback until it is shut down; `cloud.url` is its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_DELETE(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            if self.path == "/token":
                self._sign_in(parse_qs(text))
            else:
                self._answer(json.loads(text))

        def log_message(self, *_: object) -> None:
            pass

        def _sign_in(self, form: dict[str, list[str]]) -> None:
            assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
            claims = json.loads(base64.urlsafe_b64decode(form["assertion"][0].split(".")[1] + "=="))
            assert claims["iss"] == "trainer@cloud-7.iam.gserviceaccount.com"
            self._send(200, {"access_token": cloud.token, "expires_in": 3600, "token_type": "Bearer"})

        def _answer(self, body: Any) -> None:
            if self.headers["Authorization"] != f"Bearer {cloud.token}":
                self._send(*_error(401, "UNAUTHENTICATED", "Request had invalid authentication credentials."))
                return
            self._send(*cloud.answer(self.command, urlsplit(self.path).path, body))

        def _send(self, code: int, data: Any) -> None:
            text = json.dumps(data).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def write_key(path: Path, url: str) -> Path:
    """Writes the key of a service account that signs in at the fake."""
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    private = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    key = {
        "type": "service_account",
        "project_id": "cloud-7",
        "private_key_id": "1",
        "private_key": private,
        "client_email": "trainer@cloud-7.iam.gserviceaccount.com",
        "client_id": "7",
        "token_uri": f"{url}/token",
    }
    path.write_text(json.dumps(key))
    return path


def _error(code: int, status: str, message: str) -> tuple[int, Any]:
    return code, {"error": {"code": code, "message": message, "status": status}}
