"""The cluster on which an experiment runs, and its Kubernetes objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from container_programs import Programs

from steppe.clusters import registry
from steppe.errors import UserError
from steppe.experiments.on_cluster import placement
from steppe.experiments.on_cluster.address import write_address
from steppe.experiments.run_folder.store import RunFolder
from steppe.platforms.kubernetes.manifests import naming
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.running.cluster import ClusterSpec


def test_files_that_pods_could_not_find_are_refused_before_a_cluster_is_made(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "level.txt").write_text("")
    environment = {"id": "worlds:make", "settings": {"level": str(tmp_path / "level.txt")}}
    cluster = ClusterSpec(name="new", provider="kind")
    spec = folder.spec().model_copy(update={"environment": EnvironmentSpec(**environment), "cluster": cluster})
    monkeypatch.setattr("steppe.clusters.lifecycle.ensure", lambda *_: pytest.fail("a cluster was made"))
    with pytest.raises(UserError, match=r"environment\.settings\.level names"):
        placement.settle_address(folder, spec, None, lambda line: None)


def test_a_manifest_says_how_it_is_applied_however_large_it_is(folder: RunFolder):
    # By default kubectl keeps a copy in an annotation, which has a limit of 256 kB.
    assert "#   kubectl apply --server-side -f FILE\n" in placement.manifest(folder, None, "space")


def test_a_cluster_in_a_file_of_the_project_is_made_where_there_is_none_yet(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    programs = Programs(tmp_path / "programs")
    programs.install("kind")
    monkeypatch.setenv("PATH", str(programs.folder))
    monkeypatch.setenv("STEPPE_CLUSTERS", str(tmp_path / "clusters"))
    (tmp_path / "steppe.json").write_text('{"name": "project"}')
    (tmp_path / "configs" / "clusters").mkdir(parents=True)
    about = {"type": "cluster", "provider": "kind", "num_nodes": 2, "namespace": "space"}
    (tmp_path / "configs" / "clusters" / "lab.json").write_text(json.dumps(about))
    place = placement.settle_address(folder, folder.spec(), "lab", lambda line: None)
    assert (place.cluster, place.namespace, place.project) == ("lab", "space", "project")
    assert programs.clusters == ["lab"]
    # It is shared: it was named, and not described only in the experiment.
    assert not place.owns_cluster
    assert registry.read("lab").spec.num_nodes == 2
    # The next experiment uses it.
    placement.settle_address(folder, folder.spec(), "lab", lambda line: None)
    assert len(programs.calls("create")) == 1


@pytest.mark.parametrize(
    "words", ["small_cluster", "small-cluster", "small_cluster.json", "configs/clusters/small_cluster"]
)
def test_a_cluster_file_is_named_as_it_is_called_or_by_its_path(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
):
    programs = Programs(tmp_path / "programs")
    programs.install("kind")
    monkeypatch.setenv("PATH", str(programs.folder))
    monkeypatch.setenv("STEPPE_CLUSTERS", str(tmp_path / "clusters"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steppe.json").write_text('{"name": "project"}')
    (tmp_path / "configs" / "clusters").mkdir(parents=True)
    # Without a name of its own, as the old client's files are.
    about = {"provider": "kind", "num_nodes": 2}
    (tmp_path / "configs" / "clusters" / "small_cluster.json").write_text(json.dumps(about))
    assert "kind: Job" in placement.manifest(folder, words, None)
    place = placement.settle_address(folder, folder.spec(), words, lambda line: None)
    assert place.cluster == "small-cluster"
    assert programs.clusters == ["small-cluster"]
    # The next start finds it by either of its names.
    assert placement.settle_address(folder, folder.spec(), words, lambda line: None).cluster == "small-cluster"
    assert len(programs.calls("create")) == 1
    write_address(folder, place)
    assert placement.settle_address(folder, folder.spec(), words, lambda line: None) == place


def test_the_name_inside_a_cluster_file_is_the_clusters(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STEPPE_CLUSTERS", str(tmp_path / "clusters"))
    (tmp_path / "steppe.json").write_text('{"name": "project"}')
    (tmp_path / "configs" / "clusters").mkdir(parents=True)
    about = {"name": "the_lab", "provider": "kind"}
    (tmp_path / "configs" / "clusters" / "mini.json").write_text(json.dumps(about))
    programs = Programs(tmp_path / "programs")
    programs.install("kind")
    monkeypatch.setenv("PATH", str(programs.folder))
    assert placement.settle_address(folder, folder.spec(), "mini", lambda line: None).cluster == "the-lab"


def test_the_command_in_a_manifest_deletes_all_its_objects(folder: RunFolder):
    text = placement.manifest(folder, None, "space")
    words = [line.split()[2:] for line in text.splitlines() if line.startswith("#   kubectl ")]
    (create, label, _, delete) = words
    name = create[3]
    assert label == ["label", "secret", name, "--namespace", "space", delete[-1]]
    assert delete[:2] == ["delete", "all,configmap,secret,pvc,networkpolicy"]
    assert [each["metadata"]["labels"][naming.RUN] for each in yaml.safe_load_all(text)] == [delete[-1][11:]] * 5
