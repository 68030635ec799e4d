"""Where an experiment is to run, and what it looks like there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from steppe.errors import UserError
from steppe.experiments import places
from steppe.experiments.store import RunFolder
from steppe.platforms.kubernetes import naming
from steppe.specs.cluster import ClusterSpec
from steppe.specs.environment import EnvironmentSpec


def test_what_pods_could_not_find_is_refused_before_a_cluster_is_made(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "level.txt").write_text("")
    environment = {"id": "worlds:make", "settings": {"level": str(tmp_path / "level.txt")}}
    cluster = ClusterSpec(name="new", provider="kind")
    spec = folder.spec().model_copy(update={"environment": EnvironmentSpec(**environment), "cluster": cluster})
    monkeypatch.setattr("steppe.clusters.lifecycle.ensure", lambda *_: pytest.fail("a cluster was made"))
    with pytest.raises(UserError, match=r"environment\.settings\.level names"):
        places.settle_place(folder, spec, None, lambda line: None)


def test_all_of_a_manifest_is_removed_by_its_own_words(folder: RunFolder):
    text = places.manifest(folder, None, "space")
    words = [line.split()[2:] for line in text.splitlines() if line.startswith("#   kubectl ")]
    (create, label, delete) = words
    name = create[3]
    assert label == ["label", "secret", name, "--namespace", "space", delete[-1]]
    assert delete[:2] == ["delete", "all,configmap,secret,pvc"]
    assert [each["metadata"]["labels"][naming.RUN] for each in yaml.safe_load_all(text)] == [delete[-1][11:]] * 4
