"""What a client makes of the answers of a Pod's door."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from steppe.platforms.kubernetes.client.asking import Doors
from steppe.platforms.kubernetes.client.kubeapi import Answer, Kube, KubeError

POD = {"metadata": {"name": "driver"}}


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The doors of Pods that give this answer, on a cluster that is never asked for anything else."""

    def answering(answer: Answer) -> Doors:
        kube = Kube("none", None, "space", "lab")
        secret = {"data": {"door": b64encode(b"t").decode()}}
        monkeypatch.setattr(kube, "get", lambda kind, name: secret)
        monkeypatch.setattr(kube, "ask_pod", lambda *_, **__: answer)
        return Doors(kube, "steppe-first")

    return answering


def test_a_pod_that_refuses_is_not_taken_for_the_cluster(doors: Any):
    answer = Answer(401, json.dumps({"error": "the token is missing or wrong"}).encode())
    asked = doors(answer)
    assert asked.status_at(POD) is None
    assert asked.silence == "the Pod refuses: the token is missing or wrong"
    with pytest.raises(KubeError, match=r"^the Pod refuses: the token is missing or wrong$"):
        asked.expect(asked.ask("driver", "/log"))


@pytest.mark.parametrize("body", [b"", b"upstream connect error", b'["error"]', b"7"])
def test_what_is_no_words_of_a_pod_is_told_as_it_came(doors: Any, body: bytes):
    asked = doors(Answer(503, body))
    assert asked.status_at(POD) is None
    assert 'the cluster "lab" refuses: ' in asked.silence
