"""Clusters that are gone, and clusters made for one experiment; tests/kubernetes tests whole runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from steppe.clusters import lifecycle as clusters
from steppe.clusters import registry
from steppe.errors import ClusterError
from steppe.experiments.locations import location_of
from steppe.experiments.on_cluster import ephemeral_cluster, placement
from steppe.experiments.on_cluster.address import ClusterAddress, address_of
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.run_folder.store import RunFolder, Status, Store
from steppe.files.run_files import CLUSTER_FILE
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec


@pytest.fixture
def placed(store: Store, spec: ExperimentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A running experiment on a cluster of its own that is no longer registered."""
    monkeypatch.setenv("STEPPE_CLUSTERS", str(tmp_path / "clusters"))
    folder = store.folder("first")
    folder.create(spec)
    folder.write_status(Status(state="running", created=1.0, timestep=10))
    place = ClusterAddress("gone", "default", "steppe-first-1", start=1, owns_cluster=True)
    (folder.path / CLUSTER_FILE).write_text(json.dumps(dataclasses.asdict(place)))
    return folder


def remember(folder: RunFolder) -> None:
    spec = ClusterSpec(provider="kind", num_nodes=1)
    registry.write(dataclasses.replace(clusters.plan(spec, "gone", str(folder.path)), state="ready"))


def test_an_experiment_on_a_cluster_that_is_gone_counts_as_failed_until_it_is_registered_again(
    placed: RunFolder,
) -> None:
    seen = location_of(placed).status()
    assert seen.state == "failed"
    assert 'cluster "gone", where it is, is not known here any more; register it again' in seen.reason
    # The failure is only shown: with the cluster back, the status is as before.
    assert placed.read_status().state == "running"
    with pytest.raises(ClusterError, match="is not known here any more"):
        ClusterLocation(placed).files_there()


def test_an_experiment_on_a_cluster_that_is_gone_can_be_deleted(placed: RunFolder) -> None:
    location_of(placed).delete()
    assert ephemeral_cluster.note_of(placed, location_of(placed).status()) == ""


def test_a_cluster_knows_the_experiment_it_was_made_for(placed: RunFolder, store: Store) -> None:
    remember(placed)
    (registry.folder() / "broken.json").write_text("{}")
    assert ephemeral_cluster.made_for(placed) == "gone"
    assert ephemeral_cluster.made_for(store.folder("second")) is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("completed", "it is deleted when the results are fetched: steppe experiment download -e"),
        ("failed", "it is deleted when the experiment has completed, or is deleted itself"),
        ("running", ""),
    ],
)
def test_an_idle_cluster_made_for_an_experiment_is_noted(placed: RunFolder, state: str, words: str) -> None:
    remember(placed)
    status = dataclasses.replace(placed.read_status(), state=state)
    assert words in ephemeral_cluster.note_of(placed, status)
    assert bool(words) == bool(ephemeral_cluster.note_of(placed, status))


def test_a_cluster_whose_deletion_was_interrupted_is_noted(placed: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(placed)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClusterLocation, "fetch", lambda *_, **__: None)
    monkeypatch.setattr(clusters, "entry", killed)
    status = dataclasses.replace(placed.read_status(), state="completed")
    placed.write_status(status)
    with pytest.raises(KeyboardInterrupt):
        ClusterLocation(placed).bring_home(lambda line: None)
    assert address_of(placed) is None
    note = ephemeral_cluster.note_of(placed, status)
    assert "is still there; the results are here, so delete it with: steppe cluster delete -c gone" in note
    assert ephemeral_cluster.note_of(placed, dataclasses.replace(status, state="running")) == ""


@pytest.mark.parametrize(
    ("experiment", "name"),
    [("CartPole-v1_ppo.1", "steppe-cartpole-v1-ppo-1"), ("x" * 60, f"steppe-{'x' * 33}"), ("a" * 32 + "--b", None)],
)
def test_clusters_get_names_that_every_provider_takes(experiment: str, name: str | None) -> None:
    made = placement.name_for(experiment)
    assert name in (None, made)
    assert registry.valid_name(made) == made
