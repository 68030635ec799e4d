"""The notice if an experiment of one Pod starts on a cluster of several nodes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from scripted_http import Heard, Say, answering

from steppe.clusters import lifecycle as clusters
from steppe.clusters import registry
from steppe.experiments.locations import location_to_start
from steppe.experiments.on_cluster import idle_nodes, placement
from steppe.experiments.on_cluster.address import ClusterAddress, write_address
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.run_folder.store import RunFolder
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec

TAINTED = {"spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}}
PREFERRED = {"spec": {"taints": [{"key": "spot", "effect": "PreferNoSchedule"}]}}
DRAINED = {"spec": {"unschedulable": True}}


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPE_CLUSTERS", str(tmp_path / "clusters"))


def register(tmp_path: Path, server: str) -> None:
    """Registers the cluster "lab", with an API server at that address."""
    path = tmp_path / "config"
    content = {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "a-secret-token"}}],
    }
    path.write_text(json.dumps(content))
    spec = ClusterSpec(provider="kubeconfig", kubeconfig=str(path))
    registry.write(dataclasses.replace(clusters.plan(spec, "lab", ""), state="ready"))


def seen(tmp_path: Path, spec: ExperimentSpec, nodes: list[Any] | None) -> str:
    """The notice on a cluster with these nodes; None: nodes may not be listed."""

    def script(heard: Heard) -> Any:
        if heard.path.startswith("/version"):
            return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        assert heard.path == f"/api/v1/nodes?limit={idle_nodes.MOST_NODES}"
        return Say({"kind": "Status", "code": 403}, 403) if nodes is None else {"items": nodes}

    with answering(script) as server:
        register(tmp_path, server)
        return idle_nodes.notice_of(spec, "lab")


@pytest.mark.parametrize("mode", ["single", "multi-threaded"])
def test_idle_nodes_of_a_registered_cluster_are_noted(tmp_path: Path, spec: ExperimentSpec, mode: str) -> None:
    notice = seen(tmp_path, spec.model_copy(update={"run_mode": mode}), [{"spec": {}}, PREFERRED, TAINTED])
    assert notice == (
        f'run mode "{mode}" is one Pod, so that only one of the nodes of cluster "lab" has something to do'
    )


@pytest.mark.parametrize("nodes", [[], [{"spec": {}}], [{"spec": {}}, TAINTED, DRAINED], None])
def test_one_node_is_no_news_nor_are_nodes_that_cannot_be_seen(
    tmp_path: Path, spec: ExperimentSpec, nodes: Any
) -> None:
    assert seen(tmp_path, spec, nodes) == ""


def test_an_unreachable_cluster_gives_no_notice_of_idle_nodes(tmp_path: Path, spec: ExperimentSpec) -> None:
    register(tmp_path, "http://127.0.0.1:9")
    assert idle_nodes.notice_of(spec, "lab") == ""
    assert idle_nodes.notice_of(spec, "another") == ""


@pytest.mark.parametrize("mode", ["distributed", "async"])
def test_many_pods_are_no_news(tmp_path: Path, spec: ExperimentSpec, mode: str) -> None:
    register(tmp_path, "http://127.0.0.1:9")
    assert idle_nodes.notice_of(spec.model_copy(update={"run_mode": mode}), "lab") == ""


@pytest.mark.parametrize("resume", [False, True])
def test_idle_nodes_are_noted_at_every_start(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    spec = ClusterSpec(provider="kind", num_nodes=2)
    registry.write(dataclasses.replace(clusters.plan(spec, "pair", ""), state="ready"))
    registry.kubeconfig_path("pair").write_text(
        json.dumps({"current-context": "pair", "contexts": [{"name": "pair", "context": {}}]})
    )
    place = ClusterAddress("pair", "default", "steppe-first-1")
    monkeypatch.setattr(placement, "settle_address", lambda *_: place)
    monkeypatch.setattr(ClusterLocation, "start_at", lambda self, address, renew: address)
    if resume:
        write_address(folder, place)
    told: list[str] = []
    location_to_start(folder, "pair").start(resume=resume, tell=told.append)
    assert told == [
        'run mode "single" is one Pod, so that only one of the 2 nodes of cluster "pair" has something to do'
    ]
