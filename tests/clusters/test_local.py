"""kind and k3d, with fake programs on PATH, since neither can run without Docker."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Callable
from typing import Any

import pytest
from container_programs import Programs

from steppe.clusters import lifecycle, registry
from steppe.specs.running.cluster import ClusterSpec

Steppe = Callable[..., Any]


@pytest.mark.parametrize("provider", ["kind", "k3d"])
def test_an_error_without_the_program_explains_its_installation(
    steppe: Steppe, programs: Programs, provider: str
) -> None:
    answer = steppe("cluster", "create", "-n", "here", "--provider", provider)
    assert answer.code == 2
    assert f'provider "{provider}" needs the program "{provider}" on this machine; install it: https://' in answer.err
    assert registry.names() == []


@pytest.mark.parametrize("provider", ["kind", "k3d"])
def test_a_cluster_is_made_listed_and_deleted(steppe: Steppe, programs: Programs, provider: str) -> None:
    programs.install(provider)
    answer = steppe("cluster", "create", "-n", "here", "--provider", provider, "-s", "2")
    assert answer.code == 0, answer.err
    reachable = registry.find("here")
    assert reachable.context == f"{provider}-here"
    assert stat.S_IMODE(reachable.kubeconfig.stat().st_mode) == 0o600
    (row,) = json.loads(steppe("cluster", "list", "--json").out)["clusters"]
    assert (row["name"], row["state"], row["made_by"]) == ("here", "ready", "steppe")
    assert steppe("cluster", "delete", "-c", "here", "--yes", "--force").code == 0
    assert programs.clusters == []
    assert not reachable.kubeconfig.exists()


def test_kind_gets_as_many_nodes_as_asked_for(steppe: Steppe, programs: Programs) -> None:
    programs.install("kind")
    assert steppe("cluster", "create", "-n", "here", "--provider", "kind", "-s", "3").code == 0
    (call,) = programs.calls("create")
    roles = [node["role"] for node in json.loads(call["given"])["nodes"]]
    assert roles == ["control-plane", "worker", "worker"]
    assert "--kubeconfig" in call["words"]


def test_k3d_leaves_the_users_kubeconfig_alone(steppe: Steppe, programs: Programs) -> None:
    programs.install("k3d")
    words = ("--cpus-per-node", "2", "--memory-per-node", "4", "-s", "2")
    assert steppe("cluster", "create", "-n", "here", "--provider", "k3d", *words).code == 0
    (call,) = programs.calls("create")
    assert {"--kubeconfig-update-default=false", "--agents-memory", "4g"} <= set(call["words"])


@pytest.mark.parametrize("provider", ["kind", "k3d"])
def test_dry_run_prints_the_command_that_is_run(steppe: Steppe, programs: Programs, provider: str) -> None:
    programs.install(provider)
    words = ("cluster", "create", "-n", "here", "--provider", provider, "-s", "2")
    shown = steppe(*words, "--dry-run").out
    assert steppe(*words).code == 0
    (call,) = programs.calls("create")
    command, _, config = shown.partition("\n")
    assert command.split() == [provider, *call["words"]]
    if provider == "kind":
        assert json.loads(config) == json.loads(call["given"])


def test_the_error_of_the_program_is_the_reason(steppe: Steppe, programs: Programs) -> None:
    programs.install("kind")
    (programs.state / "failing").write_text("Cannot connect to the Docker daemon")
    answer = steppe("cluster", "create", "-n", "here", "--provider", "kind")
    assert answer.code == 1
    assert "failed to create cluster: Cannot connect to the Docker daemon" in answer.err
    assert registry.names() == []


def test_a_namesake_is_recognised_by_its_certificate(steppe: Steppe, programs: Programs) -> None:
    programs.install("kind")
    assert steppe("cluster", "create", "-n", "here", "--provider", "kind").code == 0
    (programs.state / "clusters" / "here").write_text("authority of another")
    answer = steppe("cluster", "delete", "-c", "here", "--yes")
    assert answer.code == 2
    assert "a namesake" in answer.err
    assert programs.clusters == ["here"]


@pytest.mark.parametrize("provider", ["kind", "k3d"])
def test_the_remains_of_an_interrupted_command_are_replaced_or_deleted(
    steppe: Steppe, programs: Programs, provider: str
) -> None:
    programs.install(provider)
    steppe("cluster", "list")
    begun = lifecycle.plan(ClusterSpec(provider=provider, num_nodes=1), "here")
    registry.write(begun)
    (programs.state / "clusters" / "here").write_text("half a cluster")
    lifecycle.create(begun, lambda line: None)
    assert registry.find("here").name == "here"
    registry.forget("here")
    registry.write(begun)
    assert steppe("cluster", "delete", "-c", "here", "--yes").code == 0
    assert programs.clusters == []


def test_a_namesake_of_a_cluster_that_is_half_made_is_not_replaced(steppe: Steppe, programs: Programs) -> None:
    programs.install("kind")
    assert steppe("cluster", "create", "-n", "here", "--provider", "kind").code == 0
    registry.write(dataclasses.replace(registry.read("here"), state="creating"))
    (programs.state / "clusters" / "here").write_text("authority of another")
    answer = steppe("cluster", "create", "-n", "here")
    assert answer.code == 1
    assert "is not the one that Steppe began to make, but a namesake" in answer.err
    assert (programs.state / "clusters" / "here").read_text() == "authority of another"


def test_a_cluster_made_by_hand_is_listed_and_kept(steppe: Steppe, programs: Programs) -> None:
    programs.install("kind")
    steppe("cluster", "list")
    (programs.state / "clusters" / "by-hand").write_text("x")
    (row,) = json.loads(steppe("cluster", "list", "--json").out)["clusters"]
    assert (row["made_by"], row["is_registered"]) == ("others", False)
    assert steppe("cluster", "delete", "-c", "by-hand", "--yes").code == 2
    assert steppe("cluster", "delete", "-c", "by-hand", "--yes", "--force").code == 0
    assert programs.clusters == []


def test_a_cluster_that_is_half_made_keeps_the_experiment_it_is_made_for(programs: Programs) -> None:
    programs.install("kind")
    spec = ClusterSpec(provider="kind", num_nodes=1)
    begun = lifecycle.plan(spec, "here", made_for="/runs/first")
    registry.write(begun)
    # The second start resumes, and still knows to which experiment the cluster belongs.
    lifecycle.ensure("here", spec, lambda line: None, made_for="/runs/first")
    assert (registry.read("here").state, registry.read("here").made_for) == ("ready", "/runs/first")
    lifecycle.ensure("here", spec, lambda line: None, made_for="/runs/second")
    assert registry.read("here").made_for == "/runs/first"


def test_a_cluster_whose_experiments_cannot_be_asked_for_is_deleted_by_force_or_a_person(
    steppe: Steppe, programs: Programs, answering: Callable[[str], None]
) -> None:
    programs.install("kind")
    assert steppe("cluster", "create", "-n", "here", "--provider", "kind").code == 0
    unknown = 'whether experiments are on cluster "here" is not known: the cluster "here" cannot be'
    answer = steppe("cluster", "delete", "-c", "here", "--yes")
    assert answer.code == 1
    assert f"nothing was deleted, since {unknown}" in answer.err
    assert "add --force" in answer.err
    answering("no")
    assert f"note: {unknown}" in steppe("cluster", "delete", "-c", "here").out
    assert programs.clusters == ["here"]
    answer = steppe("cluster", "delete", "-c", "here", "--yes", "--force")
    assert answer.code == 0, answer.err
    assert f"note: {unknown}" in answer.out
    assert programs.clusters == []


def test_gpus_are_refused(steppe: Steppe, programs: Programs) -> None:
    answer = steppe("cluster", "create", "-n", "here", "--provider", "kind", "--gpus-per-node", "1")
    assert answer.code == 2
    assert 'provider "kind" has no GPUs' in answer.err
