"""Requests to a scripted API server: credentials that expire, and errors of the server, of Pods and of this machine."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted_http import Heard, Say, answering

from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeError

pytest.importorskip("kr8s")

TOKENS = """
import json, pathlib, sys
file = pathlib.Path(sys.argv[1])
number = int(file.read_text()) + 1 if file.exists() else 1
file.write_text(str(number))
about = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
print(json.dumps(about | {"status": {"token": f"token-{number}"}}))
"""
"""A program that prints another token each time."""


class Server:
    """Accepts the newest token only; `pod` is the answer of the Pod behind it."""

    def __init__(self) -> None:
        self.token = "token-1"
        self.pod = Say({"fine": True})
        self.heard: list[str] = []

    def __call__(self, heard: Heard) -> Any:
        self.heard.append(heard.path)
        if heard.path.startswith("/version"):
            return {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}
        if heard.headers.get("authorization") != f"Bearer {self.token}":
            return self.status(401, "Unauthorized")
        return self.pod if "/proxy/" in heard.path else {"items": []}

    def status(self, code: int, reason: str) -> Say:
        return Say({"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": reason}, code)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("NO_PROXY", "*")
    return Server()


@pytest.fixture
def kube(server: Server, tmp_path: Path) -> Iterator[Kube]:
    program = tmp_path / "tokens.py"
    program.write_text(TOKENS)
    fetch = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(program), str(tmp_path / "number")],
    }
    with answering(server) as address:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
            "clusters": [{"name": "lab", "cluster": {"server": address}}],
            "users": [{"name": "me", "user": {"exec": fetch}}],
        }
        with Kube(config, "lab", "space", "lab") as kube:
            yield kube


def test_an_expired_token_is_renewed_for_requests_to_pods_too(kube: Kube, server: Server):
    assert kube.listed("Pod") == []
    server.token = "token-2"
    taken: list[bytes] = []
    assert kube.ask_pod("driver", 8470, "/files/a", sink=taken.append).code == 200
    assert b"".join(taken) == b'{"fine": true}'
    server.token = "token-3"
    assert kube.listed("Pod") == []


def test_a_token_refused_by_the_pod_is_not_renewed(kube: Kube, server: Server):
    server.pod = Say({"error": "the token is wrong"}, 401)
    assert kube.ask_pod("driver", 8470, "/status") == (401, b'{"error": "the token is wrong"}')
    assert len([path for path in server.heard if "/proxy/" in path]) == 1


def test_a_missing_pod_is_told_apart_from_a_missing_file_of_a_pod(kube: Kube, server: Server):
    server.pod = Say({"error": "no such file"}, 404)
    assert kube.ask_pod("driver", 8470, "/files/a").code == 404
    server.pod = server.status(404, 'pods "driver" not found')
    with pytest.raises(KubeError, match='pods "driver" not found') as caught:
        kube.ask_pod("driver", 8470, "/files/a")
    assert caught.value.code == 404


def test_a_full_disk_is_not_an_error_of_the_cluster(kube: Kube):
    def full(block: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        kube.ask_pod("driver", 8470, "/files/a", sink=full)
    assert kube.ask_pod("driver", 8470, "/files/a").code == 200


def test_an_unreachable_cluster_is_an_error_with_a_kubectl_command(tmp_path: Path) -> None:
    config = tmp_path / "config"
    server = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "lab", "context": {"cluster": "c", "user": "u"}}
    content = {"current-context": "lab", "contexts": [context], "clusters": [server]}
    content["users"] = [{"name": "u", "user": {}}]
    config.write_text(yaml.safe_dump(content))
    with pytest.raises(KubeError, match="cannot be reached") as error, Kube(config, "lab", "default", "lab") as kube:
        kube.ask("GET", "/version")
    assert f"kubectl --kubeconfig {config} --context lab version" in str(error.value)
    assert "steppe cluster check" not in str(error.value)
