"""steppe.Cluster manages the same clusters as the commands; kind is a fake program on PATH."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from container_programs import Programs

import steppe as package
from steppe.clusters import registry
from steppe.errors import ClusterError, UserError


@pytest.fixture
def made(programs: Programs) -> package.Cluster:
    programs.install("kind")
    return package.Cluster.create(name="here", provider="kind", num_nodes=2)


def test_a_cluster_is_made_and_tells_its_state(made: package.Cluster, steppe: Callable[..., Any]) -> None:
    status = made.status()
    assert (made.name, status.state, status.provider, status.is_own) == ("here", "ready", "kind", True)
    assert [each.name for each in package.Cluster.list()] == ["here"]
    assert package.Cluster.open("here").status() == status
    assert repr(made) == "Cluster('here')"
    assert "here" in steppe("cluster", "list").out


def test_progress_is_reported(programs: Programs) -> None:
    programs.install("kind")
    told: list[str] = []
    package.Cluster.create(name="here", provider="kind", tell=told.append)
    assert told


def test_a_cluster_with_experiments_is_deleted_only_by_force(made: package.Cluster, programs: Programs) -> None:
    with pytest.raises(ClusterError, match=r"not known whether experiments are on it.*force=True"):
        made.delete()
    assert programs.clusters
    made.delete(force=True)
    assert programs.clusters == []
    with pytest.raises(UserError, match='no cluster "here"'):
        package.Cluster.open("here")


def test_a_cluster_is_forgotten_and_stays(made: package.Cluster, programs: Programs) -> None:
    made.forget()
    assert (registry.names(), bool(programs.clusters)) == ([], True)


def test_a_cluster_file_is_read_and_fields_come_before_it(programs: Programs) -> None:
    programs.install("kind")
    package.Project.create(".")
    cluster = package.Cluster.create("small_cluster", provider="kind", num_nodes=1)
    assert cluster.name == "small-cluster"


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(UserError, match="wrong cluster name"):
        package.Cluster("No Name")
