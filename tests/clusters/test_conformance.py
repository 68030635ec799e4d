"""The conformance suite that every provider passes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from steppe.clusters import registry

Steppe = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """A provider that is ready for use."""

    name: str
    words: tuple[str, ...]
    existing: Callable[[], list[str]]
    """The names of the existing clusters."""
    is_deletable: bool = True


@pytest.fixture(params=["gke", "eks", "kind", "k3d", "kubeconfig"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = request.param
    if name == "gke":
        request.getfixturevalue("project")
        google = request.getfixturevalue("google")
        return Place(name, (), lambda: [key[-1] for key in google.clusters])
    if name == "eks":
        client = request.getfixturevalue("client")
        return Place(name, (), lambda: client("eks").list_clusters()["clusters"])
    if name == "kubeconfig":
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump({"current-context": "a", "contexts": [{"name": "a", "context": {}}]}))
        return Place(name, ("--kubeconfig", str(path)), lambda: ["first"], is_deletable=False)
    programs = request.getfixturevalue("programs")
    programs.install(name)
    (programs.state / "clusters").mkdir()
    return Place(name, (), lambda: programs.clusters)


def create(steppe: Steppe, place: Place, *words: str, name: str = "first") -> Any:
    return steppe("cluster", "create", "-n", name, "--provider", place.name, "-s", "1", *place.words, *words)


def test_a_cluster_is_made_found_listed_and_deleted(steppe: Steppe, place: Place) -> None:
    answer = create(steppe, place, "--namespace", "mine")
    assert answer.code == 0, answer.err
    assert place.existing() == ["first"]
    reachable = registry.find("first")
    assert (reachable.name, reachable.namespace, reachable.is_owned) == ("first", "mine", place.is_deletable)
    content = yaml.safe_load(reachable.kubeconfig.read_text())
    assert reachable.context in [context["name"] for context in content["contexts"]]
    assert reachable.spec.num_nodes == 1
    (row,) = json.loads(steppe("cluster", "list", "--json").out)["clusters"]
    assert (row["name"], row["provider"], row["state"]) == ("first", place.name, "ready")
    answer = steppe("cluster", "delete", "-c", "first", "--yes", "--force")
    assert answer.code == 0, answer.err
    assert place.existing() == ([] if place.is_deletable else ["first"])
    assert registry.names() == []


def test_a_dry_run_makes_and_remembers_nothing(steppe: Steppe, place: Place) -> None:
    answer = create(steppe, place, "--dry-run")
    assert answer.code == 0, answer.err
    assert answer.out
    assert registry.names() == []
    assert not place.is_deletable or place.existing() == []


def test_a_name_is_taken_once_and_can_be_used_again(steppe: Steppe, place: Place) -> None:
    assert create(steppe, place).code == 0
    answer = create(steppe, place)
    assert answer.code == 2
    assert 'there is a cluster "first" already' in answer.err
    assert steppe("cluster", "delete", "-c", "first", "--yes", "--force").code == 0
    assert create(steppe, place).code == 0


def test_delete_without_an_answer_does_nothing(steppe: Steppe, place: Place, answering: Callable[[str], None]) -> None:
    assert create(steppe, place).code == 0
    answering("no")
    assert steppe("cluster", "delete", "-c", "first").code == 1
    assert place.existing() == ["first"]
    assert registry.names() == ["first"]


@pytest.mark.parametrize(
    ("provider", "modules"),
    [("gke", ("google.auth", "google.cloud.container_v1")), ("eks", ("boto3", "botocore"))],
)
def test_a_missing_package_is_an_error_with_its_extra(
    steppe: Steppe, monkeypatch: pytest.MonkeyPatch, provider: str, modules: tuple[str, ...]
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    words = ("--location", "europe-west1-b", "--set", "project=p") if provider == "gke" else ("--location", "eu-west-1")
    answer = steppe("cluster", "create", "-n", "first", "--provider", provider, *words)
    assert answer.code == 2
    assert f'pip install "steppe[{provider}]"' in answer.err
    assert registry.names() == []
    # Users of neither cloud do not see this error.
    assert json.loads(steppe("cluster", "list", "--json").out)["notes"] == []
