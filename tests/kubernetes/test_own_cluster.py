"""A cluster for one experiment: after its end the results are downloaded, then the cluster is deleted.

The program `kind` is a fake, whose clusters are all the testbed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import Workplace, end_watchers
from container_programs import Programs
from kube_testbed import Testbed
from processes import wait_until

from steppe.cli import main
from steppe.clusters import registry
from steppe.experiments.on_cluster import handover, watcher
from steppe.experiments.run_folder import locks
from steppe.platforms.kubernetes.manifests import naming

NAME = "made-for-it"
WATCHER = """
import sys
from steppe.experiments.on_cluster.watcher import main
from steppe.platforms.kubernetes.manifests import naming

naming.MANAGER = {manager!r}
sys.exit(main())
"""


@dataclass(frozen=True)
class OwnWorkplace(Workplace):
    """A project whose experiments describe their own cluster; commands run in this process."""

    capsys: pytest.CaptureFixture[str]
    programs: Programs

    def steppe(self, *words: str, exit_code: int = 0) -> str:
        self.capsys.readouterr()
        code = main(list(words))
        printed = self.capsys.readouterr()
        assert code == exit_code, f"{' '.join(words)} ended with {code}: {printed.out}{printed.err}"
        return printed.out + printed.err

    def new(self, name: str, *words: str, **fields: Any) -> None:
        pods = {"provider": "kind", "num_nodes": 1, "namespace": self.namespace, "kubernetes": self.pods}
        super().new(name, *words, platform="kubernetes", cluster={"name": NAME, **pods}, **fields)

    def folder_of(self, name: str) -> Path:
        return self.folder / "experiments" / name


@pytest.fixture
def workplace(
    testbed: Testbed,
    namespace: str,
    pods: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[OwnWorkplace]:
    # Objects of other tests on the testbed do not count as being on these clusters.
    monkeypatch.setattr(naming, "MANAGER", namespace)
    monkeypatch.setattr(handover, "WATCHER", ("-c", WATCHER.format(manager=namespace)))
    folder = tmp_path / "project"
    folder.mkdir()
    programs = Programs(tmp_path / "programs")
    programs.install("kind")
    programs.reach(json.loads(testbed.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json")))
    monkeypatch.setenv("PATH", f"{programs.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STEPPE_CLUSTERS", str(tmp_path / "clusters"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    monkeypatch.chdir(folder)
    made = OwnWorkplace(folder, testbed, namespace, pods, capsys, programs)
    made.steppe("init", "-n", "tests")
    yield made
    end_watchers(folder)


def test_a_cluster_made_for_an_experiment_is_deleted_after_the_download(workplace: OwnWorkplace) -> None:
    workplace.new("one", total_timesteps=4_000)
    printed = workplace.steppe("experiment", "start", "-e", "one")
    assert f'fetching the results from cluster "{NAME}"' in printed
    assert f'deleting cluster "{NAME}", which was made for this experiment' in printed
    assert 'experiment "one" is completed' in printed
    assert [call["words"][:2] for call in workplace.programs.calls("cluster")] == [
        ["create", "cluster"],
        ["delete", "cluster"],
    ]
    assert (workplace.programs.clusters, registry.names()) == ([], [])
    assert (workplace.folder_of("one") / "policy" / "policy.safetensors").is_file()
    # The cluster is gone, and commands still work from the downloaded results.
    assert workplace.status("one")["state"] == "completed"
    assert "starting" in workplace.steppe("experiment", "logs", "-e", "one")
    on = ("experiment", "resume", "-e", "one", "--set", "total_timesteps=8000")
    assert "--set platform" in workplace.steppe(*on, exit_code=2)
    workplace.steppe(*on, "--set", "platform=local")
    assert workplace.status("one")["timestep"] >= 8_000


def test_a_detached_run_is_downloaded_and_its_cluster_deleted(workplace: OwnWorkplace) -> None:
    workplace.new("alone", total_timesteps=4_000)
    started = workplace.steppe("experiment", "start", "-e", "alone", "--detach")
    folder = workplace.folder_of("alone")
    log = folder / handover.LOG_FILE
    assert "on this machine waits for its end, to fetch its results and delete cluster" in started
    wait_until(lambda: not workplace.programs.clusters, "the cluster is deleted", seconds=300, pause=0.5)
    wait_until(lambda: not registry.names(), "the cluster is forgotten")
    assert "completed: " in log.read_text()
    assert f'deleting cluster "{NAME}", which was made for this experiment' in log.read_text()
    assert (folder / "policy" / "policy.safetensors").is_file()
    assert workplace.status("alone")["state"] == "completed"
    assert "note" not in workplace.steppe("experiment", "list")
    wait_until(lambda: is_free(folder, watcher.LOCK_FILE), "the watcher ends")


def is_free(folder: Path, file: str) -> bool:
    if (descriptor := locks.acquire(folder, file=file)) is not None:
        locks.release(descriptor)
    return descriptor is not None


@pytest.mark.long
def test_an_unobserved_completion_is_reported_and_download_deletes_the_cluster(
    workplace: OwnWorkplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if this machine had been switched off after the start.
    monkeypatch.setattr(handover, "WATCHER", ("-c", ""))
    workplace.new("late", total_timesteps=4_000)
    workplace.steppe("experiment", "start", "-e", "late", "--detach")
    workplace.wait_for("late", "completed")
    listed = workplace.steppe("experiment", "list")
    assert "is still there; it is deleted when the results are fetched: steppe experiment download -e late" in listed
    assert workplace.programs.clusters == [NAME]
    workplace.steppe("experiment", "download", "-e", "late", "--to", str(tmp_path / "results"))
    assert (workplace.programs.clusters, registry.names()) == ([], [])
    here = workplace.folder_of("late") / "policy" / "policy.safetensors"
    assert (tmp_path / "results" / "policy" / "policy.safetensors").read_bytes() == here.read_bytes()
    assert "note" not in workplace.steppe("experiment", "list")


@pytest.mark.long
def test_a_cluster_with_other_experiments_is_not_deleted(workplace: OwnWorkplace) -> None:
    about = {naming.EXPERIMENT: "theirs", naming.PROJECT: "far"}
    other = {"name": "theirs", "labels": {naming.MANAGED_BY: naming.MANAGER}, "annotations": about}
    workplace.testbed.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": other}, namespace=workplace.namespace)
    workplace.new("one", total_timesteps=4_000)
    printed = workplace.steppe("experiment", "start", "-e", "one")
    assert f'cluster "{NAME}" stays, since experiment "theirs" of project "far" is on it too' in printed
    assert workplace.programs.clusters == [NAME]
    assert workplace.status("one")["state"] == "completed"
    # `--yes` alone does not delete it either.
    refused = workplace.steppe("cluster", "delete", "-c", NAME, "--yes", exit_code=2)
    assert 'what experiment "theirs" of project "far" has on it would be lost' in refused
    workplace.steppe("cluster", "delete", "-c", NAME, "--yes", "--force")
    assert (workplace.programs.clusters, registry.names()) == ([], [])


@pytest.mark.long
def test_deleting_an_experiment_deletes_the_cluster_that_was_made_for_it(workplace: OwnWorkplace) -> None:
    workplace.new("brief", total_timesteps=100_000_000)
    workplace.steppe("experiment", "start", "-e", "brief", "--detach")
    workplace.steppe("experiment", "stop", "-e", "brief")
    assert "it is deleted when the experiment has completed" in workplace.steppe("experiment", "list")
    workplace.steppe("experiment", "delete", "-e", "brief", "--force")
    assert (workplace.programs.clusters, registry.names()) == ([], [])
    assert not workplace.folder_of("brief").exists()
