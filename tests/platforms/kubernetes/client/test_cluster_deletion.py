"""The experiments lost with a cluster; tests/kubernetes/test_own_cluster.py deletes real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kube_memory import MemoryKube

from steppe.platforms.kubernetes.client import cluster_deletion
from steppe.platforms.kubernetes.manifests import rendering


def test_config_maps_with_files_are_not_counted_as_experiments(
    planned: Any, packed: Any, monkeypatch: pytest.MonkeyPatch
):
    plan = planned(files=[packed("good.safetensors", b"x")])
    server = MemoryKube(rendering.root(plan), *rendering.carried(plan))
    monkeypatch.setattr(cluster_deletion, "_connected", lambda entry: server)
    monkeypatch.setattr(cluster_deletion, "_may_have_experiments", lambda entry: True)
    assert cluster_deletion.experiments_on(SimpleNamespace()) == ['"first" of project "project"']  # type: ignore[arg-type]
    assert cluster_deletion.experiments_on(SimpleNamespace(), but=plan.name) == []  # type: ignore[arg-type]
