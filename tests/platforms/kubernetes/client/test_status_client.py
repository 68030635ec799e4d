"""The client of the status server: errors of a Pod are told apart from errors of the cluster."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeAnswer, KubeError
from steppe.platforms.kubernetes.client.status_client import StatusClient

POD = {"metadata": {"name": "driver"}}


@pytest.fixture
def client_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a client whose Pods give this answer."""

    def answering(answer: KubeAnswer) -> StatusClient:
        kube = Kube("none", None, "space", "lab")
        secret = {"data": {"door": b64encode(b"t").decode()}}
        monkeypatch.setattr(kube, "get", lambda kind, name: secret)
        monkeypatch.setattr(kube, "ask_pod", lambda *_, **__: answer)
        return StatusClient(kube, "steppe-first")

    return answering


def test_an_error_of_the_pod_is_not_taken_for_one_of_the_cluster(client_of: Any):
    answer = KubeAnswer(401, json.dumps({"error": "the token is missing or wrong"}).encode())
    client = client_of(answer)
    assert client.status_at(POD) is None
    assert client.silence == "the Pod refuses: the token is missing or wrong"
    with pytest.raises(KubeError, match=r"^the Pod refuses: the token is missing or wrong$"):
        client.body_of(client.request("driver", "/log"))


@pytest.mark.parametrize("body", [b"", b"upstream connect error", b'["error"]', b"7"])
def test_an_error_that_no_pod_wrote_is_reported_as_it_is(client_of: Any, body: bytes):
    client = client_of(KubeAnswer(503, body))
    assert client.status_at(POD) is None
    assert 'the cluster "lab" refuses: ' in client.silence
