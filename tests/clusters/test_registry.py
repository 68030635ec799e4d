"""The registry of clusters, and contexts of a kubeconfig."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from steppe.clusters import registry
from steppe.errors import ClusterError, SteppeError, UserError

Steppe = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A kubeconfig with two contexts."""
    path = tmp_path / "config"
    contexts = [
        {"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        {"name": "plain", "context": {"cluster": "c", "user": "u"}},
    ]
    content = {
        "current-context": "lab",
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "a-secret-token"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def register(steppe: Steppe, config: Path, *words: str, name: str = "lab") -> None:
    answer = steppe("cluster", "create", "-n", name, "--provider", "kubeconfig", "--kubeconfig", str(config), *words)
    assert answer.code == 0, answer.err


def test_the_current_context_is_registered_with_its_namespace(steppe: Steppe, config: Path) -> None:
    register(steppe, config)
    reachable = registry.find("lab")
    assert (reachable.kubeconfig, reachable.context, reachable.namespace) == (config, "lab", "team")
    assert not reachable.is_owned


def test_context_and_namespace_can_be_chosen(steppe: Steppe, config: Path) -> None:
    register(steppe, config, "--context", "plain", name="one")
    register(steppe, config, "--context", "plain", "--namespace", "mine", name="two")
    assert registry.find("one").namespace == "default"
    assert (registry.find("two").context, registry.find("two").namespace) == ("plain", "mine")


def test_nothing_secret_is_remembered_and_nobody_else_may_read_it(steppe: Steppe, config: Path) -> None:
    register(steppe, config)
    (path,) = registry.folder().iterdir()
    assert "a-secret-token" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_kubeconfig_variable_names_several_files(
    steppe: Steppe, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text(yaml.safe_dump({"contexts": [{"name": "far", "context": {}}]}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "absent"), str(other), str(config)]))
    assert steppe("cluster", "create", "-n", "lab", "--provider", "kubeconfig").code == 0
    assert steppe("cluster", "create", "-n", "far", "--context", "far").code == 0
    assert registry.find("lab").kubeconfig == config
    assert registry.find("far").kubeconfig == other


def test_an_unknown_context_names_the_nearest(steppe: Steppe, config: Path) -> None:
    answer = steppe("cluster", "create", "-n", "lab", "--kubeconfig", str(config), "--context", "plian")
    assert answer.code == 2
    assert 'did you mean "plain"?' in answer.err


@pytest.mark.parametrize(
    ("content", "words"),
    [("[1, 2]", "is no kubeconfig"), ("{", "is no kubeconfig"), ("{}", "has no current context; name one")],
)
def test_an_invalid_kubeconfig_is_refused(steppe: Steppe, tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad"
    path.write_text(content)
    answer = steppe("cluster", "create", "-n", "lab", "--kubeconfig", str(path))
    assert answer.code == 2
    assert words in answer.err


def test_an_error_without_a_kubeconfig_names_the_searched_paths(steppe: Steppe) -> None:
    answer = steppe("cluster", "create", "-n", "lab", "--provider", "kubeconfig")
    assert answer.code == 2
    assert ".kube/config; give its path with --kubeconfig or in KUBECONFIG" in answer.err


def test_deleting_a_registered_cluster_only_forgets_it(
    steppe: Steppe, config: Path, answering: Callable[[str], None]
) -> None:
    register(steppe, config)
    before = config.read_text()
    answering("y")
    answer = steppe("cluster", "delete", "-c", "lab")
    assert "The cluster itself stays as it is." in answer.out
    assert 'forgot cluster "lab"' in answer.out
    assert config.read_text() == before
    assert registry.names() == []


def test_delete_all_keeps_registered_clusters(steppe: Steppe, config: Path) -> None:
    register(steppe, config)
    assert "Steppe made no clusters from here" in steppe("cluster", "delete", "--all", "--yes").out
    assert registry.names() == ["lab"]


def test_forget_asks_no_provider(steppe: Steppe, config: Path, answering: Callable[[str], None]) -> None:
    register(steppe, config)
    # Forgetting works even if the provider's program is not installed.
    record = registry.read("lab")
    registry.write(dataclasses.replace(record, provider="k3d", is_owned=True, place={}))
    answering("no")
    assert steppe("cluster", "delete", "-c", "lab", "--forget").code == 1
    assert registry.names() == ["lab"]
    answer = steppe("cluster", "delete", "-c", "lab", "--forget", "--yes")
    assert (answer.code, registry.names()) == (0, [])
    assert "note: if it is still there, delete it where it is: k3d" in answer.out


def test_forget_removes_a_damaged_record_and_refuses_an_unknown_name(steppe: Steppe) -> None:
    registry.folder().mkdir(parents=True)
    (registry.folder() / "broken.json").write_text("{}")
    assert steppe("cluster", "delete", "-c", "broken", "--forget", "--yes").code == 0
    answer = steppe("cluster", "delete", "-c", "broken", "--forget", "--yes")
    assert (answer.code, registry.names()) == (2, [])
    assert 'no cluster "broken"' in answer.err
    assert "name it with -c" in steppe("cluster", "delete", "--all", "--forget").err


def test_delete_needs_the_name_of_a_cluster(steppe: Steppe) -> None:
    for words in ((), ("-c", "a", "--all")):
        answer = steppe("cluster", "delete", *words)
        assert answer.code == 2
        assert "say which cluster to delete" in answer.err


def test_list_reports_a_missing_context(steppe: Steppe, config: Path) -> None:
    register(steppe, config)
    config.write_text("{}")
    answer = steppe("cluster", "list")
    assert "gone" in answer.out
    assert 'has no context "lab" any more' in answer.out


def test_list_does_not_report_an_unasked_server_as_ready(steppe: Steppe, config: Path) -> None:
    register(steppe, config)
    row = next(line for line in steppe("cluster", "list").out.splitlines() if line.startswith("lab"))
    assert row.split()[1:3] == ["kubeconfig", "unknown"]
    (entry,) = json.loads(steppe("cluster", "list", "--json").out)["clusters"]
    assert not entry["is_asked"]


def test_list_without_clusters_explains_how_to_make_one(steppe: Steppe) -> None:
    assert "make one: steppe cluster create" in steppe("cluster", "list").out
    assert json.loads(steppe("cluster", "list", "--json").out) == {"clusters": [], "notes": []}


def test_an_unknown_name_is_an_error_with_the_nearest_name(steppe: Steppe, config: Path) -> None:
    register(steppe, config, name="laboratory")
    with pytest.raises(UserError, match=r'no cluster "laboratry"; did you mean "laboratory"\?'):
        registry.find("laboratry")
    with pytest.raises(UserError, match="no cluster"):
        registry.find("../../etc/passwd")


def test_the_error_of_a_provider_is_shown_if_it_may_have_the_cluster(
    steppe: Steppe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise ClusterError("kind failed: Docker is not running")

    monkeypatch.setattr(registry.provider("kind"), "discover", refused)
    answer = steppe("cluster", "delete", "-c", "lab", "--yes")
    assert answer.code == 1
    assert 'cluster "lab" is not known here, and not every provider can be asked: kind failed: Docker is' in answer.err


@pytest.mark.parametrize(
    "file", ["large_cluster", "single_node", "single_node_2xgpu", "single_node_gpu", "small_cluster"]
)
@pytest.mark.parametrize("is_named", [True, False])
def test_every_shipped_cluster_file_is_valid_even_with_an_old_name(
    steppe: Steppe, config: Path, here: Path, file: str, is_named: bool
) -> None:
    assert steppe("init").code == 0
    if is_named:
        path = here / "configs" / "clusters" / f"{file}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "name": file}))
    answer = steppe("cluster", "create", "-f", file, "--kubeconfig", str(config))
    assert answer.code == 0, answer.err
    name = file.replace("_", "-")
    assert registry.names() == [name]
    # The old name still finds the cluster.
    assert registry.find(file).name == name
    assert steppe("cluster", "delete", "-c", file, "--yes").out == f'forgot cluster "{name}"\n'
    assert registry.names() == []


def test_an_invalid_name_is_an_error_with_a_valid_one(steppe: Steppe, config: Path) -> None:
    answer = steppe("cluster", "create", "-n", "my_lab", "--kubeconfig", str(config))
    assert answer.code == 2
    assert 'did you mean "my-lab"?' in answer.err


@pytest.mark.parametrize("name", ["Big", "a_b", "-a", "a-", "1a", "a" * 41, "../a", ""])
def test_names_that_no_cloud_accepts_are_refused(steppe: Steppe, config: Path, name: str) -> None:
    answer = steppe("cluster", "create", f"--name={name}", "--kubeconfig", str(config))
    assert answer.code == 2
    assert "name" in answer.err


def test_a_name_is_taken_once(steppe: Steppe, config: Path) -> None:
    register(steppe, config)
    answer = steppe("cluster", "create", "-n", "lab", "--kubeconfig", str(config))
    assert answer.code == 2
    assert 'there is a cluster "lab" already' in answer.err


def test_a_broken_record_is_reported_and_does_not_hide_the_others(steppe: Steppe, config: Path) -> None:
    register(steppe, config)
    (registry.folder() / "broken.json").write_text("{}")
    with pytest.raises(SteppeError, match="does not describe a cluster"):
        registry.find("broken")
    answer = steppe("cluster", "list")
    assert answer.code == 0
    assert "lab" in answer.out
    assert "does not describe a cluster" in answer.out


def test_an_error_without_a_provider_lists_the_choices(steppe: Steppe) -> None:
    answer = steppe("cluster", "create", "-n", "lab")
    assert answer.code == 2
    assert '--provider "gke", "eks", "kind", "k3d" or "kubeconfig"' in answer.err


def test_dry_run_of_a_registration_writes_nothing(steppe: Steppe, config: Path) -> None:
    answer = steppe("cluster", "create", "-n", "lab", "--kubeconfig", str(config), "--dry-run")
    assert "nothing is sent" in answer.out
    assert registry.names() == []


def test_flags_and_set_come_before_the_file(steppe: Steppe, config: Path, here: Path) -> None:
    assert steppe("init").code == 0
    words = ("-f", "small_cluster", "--kubeconfig", str(config), "--set", "kubernetes.image=localhost/steppe:1")
    assert steppe("cluster", "create", *words, "-m", "big").code == 0
    spec = registry.find("small-cluster").spec
    assert (spec.machine_type, spec.cpus_per_node, spec.num_nodes) == ("big", None, 3)
    assert spec.kubernetes.image == "localhost/steppe:1"


def test_a_wrong_field_names_the_file(steppe: Steppe, here: Path) -> None:
    Path("bad.json").write_text('{"num_node": 3}')
    answer = steppe("cluster", "create", "-f", "bad.json", "-n", "lab")
    assert answer.code == 2
    assert 'unknown field "num_node" in bad.json' in answer.err
    assert 'did you mean "num_nodes"?' in answer.err
