"""What is told of a cluster before it is deleted; tests/kubernetes/test_own_cluster.py deletes real ones."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from steppe.platforms.kubernetes.client import cluster_deletion
from steppe.platforms.kubernetes.client.kubeapi import Answer
from steppe.platforms.kubernetes.manifests import rendering


class Server:
    """An API server that has these ConfigMaps."""

    def __init__(self, maps: list[dict[str, Any]]) -> None:
        self.maps = maps

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, method: str, place: str, body: Any = None) -> Answer:
        return Answer(200, json.dumps({"items": self.maps}).encode())


def test_files_that_go_along_with_an_experiment_are_not_counted_as_one(
    planned: Any, packed: Any, monkeypatch: pytest.MonkeyPatch
):
    plan = planned(files=[packed("good.safetensors", b"x")])
    server = Server([rendering.root(plan), *rendering.carried(plan)])
    monkeypatch.setattr(cluster_deletion, "_opened", lambda entry: server)
    monkeypatch.setattr(cluster_deletion, "_can_be_asked", lambda entry: True)
    assert cluster_deletion.experiments_on(SimpleNamespace()) == ['"first" of project "project"']  # type: ignore[arg-type]
    assert cluster_deletion.experiments_on(SimpleNamespace(), but=plan.name) == []  # type: ignore[arg-type]
