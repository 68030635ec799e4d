"""Takes over projects and experiments in the form that the old tfcli wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steppe.clusters.settings import linked
from steppe.experiments import lifecycle, old_client
from steppe.experiments.project import find_experiment, open_project
from steppe.experiments.run_folder.store import RunFolder
from steppe.spec_files import load_experiment
from steppe.specs.loading.files import read_project
from steppe.specs.running.cluster import ClusterSpec

ABOUT = {"name": "invaders", "remote_name": "marlene", "remote_id": "marlene-185", "cloud_provider": "google"}


def dumped(**changes: Any) -> dict[str, Any]:
    """An experiment with all fields, as the old program wrote it into the experiment's folder."""
    return {
        "file": "experiments/first_try/experiment.json",
        "name": "first_try",
        "name_hyphenated": "first-try",
        "path": "experiments/first_try/",
        "k8s_config": "experiments/first_try/experiment.yaml",
        "environment": {"type": "tensorforce.contrib.openai_gym.OpenAIGym", "gym_id": "CartPole-v0"},
        "network": [{"type": "dense", "size": 32}],
        "agent": {"type": "ppo_agent", "update_mode": {"unit": "timesteps", "batch_size": 64}},
        "cluster": {
            "name": "small_cluster",
            "machine_type": "custom-2-8192",
            "num_nodes": 3,
            "num_gpus": 0,
            "gpus_per_node": 0,
            "gpu_type": None,
            "status": "???",
            "primary_name": None,
            "location": "europe-west1-d",
        },
        "episodes": 10000,
        "total_timesteps": 1000000,
        "max_timesteps_per_episode": 1000,
        "deterministic": False,
        "repeat_actions": 1,
        "num_workers": 3,
        "num_parameter_servers": 1,
        "debug_logging": False,
        "run_mode": "single",
        "saver_frequency": "100e",
        "summary_frequency": "10e",
        "has_dedicated_cluster": True,
        "status": None,
    } | changes


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the old program, with an experiment that ran."""
    files: dict[str, Any] = {
        ".tensorforce.json": ABOUT,
        "configs/agents/dqn.json": {"type": "dqn_agent", "memory": {"type": "replay", "capacity": 1000}},
        "configs/clusters/small_cluster.json": {"name": "small_cluster", "cpus_per_node": 2, "memory_per_node": 8},
        "configs/disks/shared_disk.json": {"size": 200},
        "experiments/first_try/experiment.json": dumped(),
        "experiments/first_try/.experiment_running.json": dumped(status="stopped"),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "experiments/first_try/results").mkdir()
    (tmp_path / "experiments/first_try/results/model.ckpt-1.index").write_bytes(b"weights")
    (tmp_path / "configs/experiment.yaml.jinja").write_text("kind: Job")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_old_project_is_one_before_anything_is_written(old: Path) -> None:
    before = everything_in(old)
    project = open_project(old / "experiments" / "first_try")
    assert project.root == old
    assert [folder.name for folder in project.store.folders()] == ["first_try"]
    assert linked(old).project == "marlene-185"
    assert read_project(old) == {"name": "invaders", "remote_id": "marlene-185"}
    agent = load_experiment(None, {"name": "a", "environment": "CartPole-v1", "agent": "dqn"}, [], old).agent
    assert agent.settings["memory"] == {"type": "replay", "capacity": 1000}
    assert everything_in(old) == before


def test_init_takes_an_old_project_over_and_changes_no_file_of_it(old: Path) -> None:
    before = everything_in(old)
    found = old_client.take_over(old, None, None, None)
    assert found == [
        'its name, "invaders"',
        "its cloud project, marlene-185",
        "1 file in configs/agents/",
        "1 file in configs/clusters/",
        "1 experiment: first_try",
    ]
    about = json.loads((old / "steppe.json").read_text())
    assert about == {"name": "invaders", "remote_id": "marlene-185", "schema_version": 1}
    after = everything_in(old)
    assert after.pop("steppe.json")
    assert after == before


def test_options_override_the_old_project_file(old: Path) -> None:
    old_client.take_over(old, "mine", "cloud-2", None)
    assert read_project(old) == {"name": "mine", "remote_id": "cloud-2", "schema_version": 1}


def test_an_old_experiment_is_read_as_it_was_written(old: Path) -> None:
    folder = find_experiment("first_try", old)
    spec = folder.spec()
    assert (spec.environment.id, spec.agent.type, spec.run_mode) == ("CartPole-v0", "ppo", "single")
    assert (spec.episodes, spec.total_timesteps, spec.max_timesteps_per_episode) == (10_000, 1_000_000, 1000)
    assert spec.cluster == ClusterSpec(
        name="small_cluster", machine_type="custom-2-8192", num_nodes=3, location="europe-west1-d"
    )
    assert "summary_frequency" in spec.notices[0]
    assert folder.local_status().state == "created"
    # Lists read it in this way.
    assert folder.spec_data()["environment"]["id"] == "CartPole-v0"


def test_an_old_experiment_makes_a_new_one(old: Path) -> None:
    spec = load_experiment("experiments/first_try/experiment.json", {"summary_frequency": "60s"}, [], old)
    assert (spec.name, str(spec.summary_frequency)) == ("first_try", "60s")
    assert not any("summary_frequency" in notice for notice in spec.notices)


def test_starting_an_old_experiment_keeps_its_file(old: Path) -> None:
    folder = find_experiment("first_try", old)
    written = (folder.path / "experiment.json").read_bytes()
    told = " ".join(lifecycle.prepare(folder))
    assert "experiment.tfcli.json" in told
    assert 'summary_frequency "10e" has no effect' in told
    assert 'cluster "small_cluster" is described, and only platform "kubernetes" trains there' in told
    assert (folder.path / "experiment.tfcli.json").read_bytes() == written
    spec = folder.spec()
    assert (spec.environment.id, spec.total_timesteps) == ("CartPole-v0", 1_000_000)
    assert spec.seed is not None
    assert not old_client.made(folder)
    # The results of the old program stay where they were.
    assert (folder.path / "results" / "model.ckpt-1.index").read_bytes() == b"weights"
    # The next start finds nothing to take over.
    assert lifecycle.prepare(folder) == []


def test_a_field_that_is_wrong_in_an_old_experiment_is_still_named(old: Path) -> None:
    folder = RunFolder(old / "experiments" / "first_try")
    (folder.path / "experiment.json").write_text(json.dumps(dumped(episode=3)))
    with pytest.raises(Exception, match='unknown field "episode"'):
        folder.spec()
