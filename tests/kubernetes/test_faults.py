"""Faults on a cluster: lost Pods and nodes, and mistakes that are reported in one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_runs import Workplace, has_ended
from processes import wait_until

from steppe.platforms.kubernetes.manifests.permissions import role

RULES: list[dict[str, Any]] = role("any")["rules"]
"""The Role in docs/kubernetes.md."""
STUCK = """import time
from pathlib import Path

import gymnasium


class Stuck(gymnasium.Wrapper):
    def step(self, action):
        mark = Path("/tmp/was-stuck")
        if not mark.exists():
            mark.touch()
            time.sleep(3600)
        return super().step(action)


def make():
    return Stuck(gymnasium.make("CartPole-v1"))
"""
"""An environment that hangs once in each Pod."""
STUCK_AT_ONCE = """import ctypes
import os
from pathlib import Path

import gymnasium


def make():
    mark = Path("/tmp/was-stuck")
    if "-worker-" in os.environ.get("STEPPE_POD_NAME", "") and not mark.exists():
        mark.touch()
        ctypes.PyDLL(None).pause()
    return gymnasium.make("CartPole-v1")
"""
"""An environment that hangs once in each worker's Pod while it is made, and holds the interpreter lock meanwhile."""
HASTY = "from steppe.platforms.kubernetes.diagnosis import pod_health; pod_health.PATIENT_SECONDS = 10.0"
"""Shortens the time after which a command considers a missing image permanent."""


@pytest.mark.long
def test_a_deleted_driver_pod_is_replaced_by_another(workplace: Workplace):
    workplace.new("moved", total_timesteps=3_000_000, saver_frequency="3600s")
    workplace.steppe("experiment", "start", "-e", "moved", "-c", "testbed", "--detach")
    workplace.wait_for("moved", "running", timestep=1)
    (first,) = workplace.pods_of("driver")
    workplace.testbed.kubectl("delete", "pod", first["metadata"]["name"], "-n", workplace.namespace)
    status = workplace.wait_for("moved", "completed")
    assert status["timestep"] >= 3_000_000
    log = workplace.steppe("experiment", "logs", "-e", "moved")
    assert "starting /steppe/results/moved" in log
    assert "resuming /steppe/results/moved" in log


@pytest.mark.faults
def test_a_worker_that_hangs_before_it_has_joined_is_replaced(workplace: Workplace):
    (workplace.folder / "stuck.py").write_text(STUCK_AT_ONCE)
    fields = {"num_workers": 1, "total_timesteps": 3_000, "asynchronous": {"worker_timeout": 10}}
    workplace.new("stuck", environment="stuck:make", run_mode="async", agent="dqn", **fields)
    workplace.steppe("experiment", "start", "-e", "stuck", "-c", "testbed", "--detach")
    # There is no other worker, so the stuck one must restart.
    assert workplace.wait_for("stuck", "completed")["timestep"] >= 3_000
    log = workplace.steppe("experiment", "logs", "-e", "stuck")
    assert "a worker cannot join: it has not made its environment within 10 s" in log


@pytest.mark.faults
def test_an_async_run_survives_the_loss_of_its_pods(workplace: Workplace):
    fields = {"num_workers": 2, "total_timesteps": 150_000, "saver_frequency": "3600s"}
    workplace.new("crew", run_mode="async", agent="dqn", **fields)
    outlive(workplace, "crew", {"worker": 2, "driver": 1})


@pytest.mark.faults
def test_a_hanging_worker_restarts_in_its_pod(workplace: Workplace):
    (workplace.folder / "stuck.py").write_text(STUCK)
    fields = {"num_workers": 2, "total_timesteps": 10_000, "asynchronous": {"worker_timeout": 10}}
    workplace.new("stuck", run_mode="async", agent="dqn", environment="stuck:make", **fields)
    workplace.steppe("experiment", "start", "-e", "stuck", "-c", "testbed")
    assert workplace.status("stuck")["state"] == "completed"
    assert "workers that hang are replaced: " in workplace.steppe("experiment", "logs", "-e", "stuck")


@pytest.mark.faults
def test_a_distributed_run_survives_the_loss_of_its_pods(workplace: Workplace):
    fields = {"num_workers": 2, "num_parameter_servers": 1, "total_timesteps": 3_000_000, "saver_frequency": "3600s"}
    workplace.new("shards", run_mode="distributed", **fields)
    outlive(workplace, "shards", {"worker": 2, "server": 1, "driver": 1})


@pytest.mark.faults
def test_a_run_survives_the_loss_of_its_node(workplace: Workplace):
    testbed = workplace.testbed
    first, second = testbed.with_nodes(2)[:2]
    workplace.new("node", total_timesteps=6_000_000)
    # The Pod must run on the second node, since the first runs the control plane and must survive.
    testbed.kubectl("cordon", first)
    try:
        workplace.steppe("experiment", "start", "-e", "node", "-c", "testbed", "--detach")
        workplace.wait_for("node", "running", timestep=1)
    finally:
        testbed.kubectl("uncordon", first)
    (pod,) = workplace.pods_of("driver")
    assert pod["spec"]["nodeName"] == second
    testbed.kube("node-kill", second)
    try:
        status = workplace.wait_for("node", "completed")
        assert status["timestep"] >= 6_000_000
        assert "resuming /steppe/results/node" in workplace.steppe("experiment", "logs", "-e", "node")
    finally:
        testbed.with_nodes(2)


@pytest.mark.faults
def test_a_run_without_a_node_for_its_driver_can_be_paused_and_deleted(workplace: Workplace):
    testbed = workplace.testbed
    workplace.new("homeless", total_timesteps=100_000_000)
    workplace.steppe("experiment", "start", "-e", "homeless", "-c", "testbed", "--detach")
    timestep = workplace.wait_for("homeless", "running", timestep=1)["timestep"]
    nodes = testbed.with_nodes(1)
    testbed.kubectl("cordon", *nodes)
    try:
        lose_one(workplace, "driver")
        is_alone = lambda: [pod["status"]["phase"] for pod in workplace.pods_of("driver")] == ["Pending"]  # noqa: E731
        wait_until(is_alone, "the old driver to be gone", seconds=300, pause=1.0)
        assert workplace.status("homeless")["state"] == "starting"
        # A reader would mount the disk, and the driver could not.
        said = workplace.steppe("experiment", "logs", "-e", "homeless", exit_code=1)
        assert "its files cannot be read now: Pod" in said
        assert not workplace.pods_of("reader")
        workplace.steppe("experiment", "pause", "-e", "homeless")
        status = workplace.status("homeless")
        assert (status["state"], status["timestep"] >= timestep) == ("paused", True)
    finally:
        testbed.kubectl("uncordon", *nodes)
    workplace.steppe("experiment", "delete", "-e", "homeless", "--force")
    wait_until(lambda: not workplace.left(), "everything to be gone", seconds=300, pause=1.0)


def test_an_image_that_cannot_be_pulled_is_a_one_sentence_error(workplace: Workplace):
    workplace.new("image", kubernetes={"image": "localhost/no-such-image:1"})
    said = workplace.steppe("experiment", "start", "-e", "image", "-c", "testbed", exit_code=1, before=HASTY)
    assert "the image localhost/no-such-image:1 of Pod" in said
    assert "cannot be pulled" in said
    assert 'experiment "image" has failed' in said
    wait_until(lambda: not workplace.pods_of("driver"), "its Pod to end", seconds=300, pause=1.0)


def test_a_missing_image_of_workers_is_a_one_sentence_error(workplace: Workplace):
    kubernetes = {"worker": {"image": "localhost/no-such-image:1"}}
    workplace.new("crew", run_mode="async", agent="dqn", num_workers=2, kubernetes=kubernetes)
    said = workplace.steppe("experiment", "start", "-e", "crew", "-c", "testbed", exit_code=1, before=HASTY)
    assert "0 of 2 workers are ready: the image localhost/no-such-image:1 of Pod" in said
    assert 'experiment "crew" has failed' in said
    wait_until(lambda: not workplace.pods_of("driver"), "its Pods to end", seconds=300, pause=1.0)
    assert "cannot be pulled" in workplace.status("crew")["reason"]


@pytest.mark.long
def test_a_quota_without_room_for_workers_is_a_one_sentence_error(workplace: Workplace):
    limit_pods(workplace, 2)
    workplace.new("shards", run_mode="distributed", num_workers=2, num_parameter_servers=1)
    said = workplace.steppe("experiment", "start", "-e", "shards", "-c", "testbed", exit_code=1, before=HASTY)
    assert "1 of 1 servers and 0 of 2 workers are ready: the namespace has no room for a Pod: exceeded quota" in said


def test_a_completed_run_without_its_pod_is_shown_as_completed(workplace: Workplace):
    workplace.new("done", total_timesteps=4_000)
    workplace.steppe("experiment", "start", "-e", "done", "-c", "testbed", "--detach")
    is_done = lambda: (pods := workplace.pods_of("driver")) and has_ended(pods[0])  # noqa: E731
    wait_until(is_done, "the driver to end", seconds=300, pause=1.0)
    (pod,) = workplace.pods_of("driver")
    workplace.testbed.kubectl("delete", "pod", pod["metadata"]["name"], "-n", workplace.namespace)
    status = workplace.status("done")
    assert (status["state"], status["timestep"] >= 4_000) == ("completed", True)


def test_a_quota_that_is_too_small_is_a_one_sentence_error(workplace: Workplace):
    limit_pods(workplace, 0)
    workplace.new("quota")
    said = workplace.steppe("experiment", "start", "-e", "quota", "-c", "testbed", exit_code=1)
    assert "the namespace has no room for a Pod: exceeded quota: small, requested: pods=1" in said


def test_a_pod_out_of_memory_is_reported(workplace: Workplace):
    workplace.new("memory", kubernetes={"driver": {"memory": 0.1}})
    said = workplace.steppe("experiment", "start", "-e", "memory", "-c", "testbed", exit_code=1)
    assert "ran out of memory" in said
    assert "kubernetes.driver.memory" in said


def test_an_unreachable_cluster_is_a_one_sentence_error(workplace: Workplace, tmp_path):
    config = json.loads(workplace.testbed.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    path = tmp_path / "nowhere.json"
    path.write_text(json.dumps(config))
    workplace.register(path, name="nowhere")
    workplace.new("lost")
    said = workplace.steppe("experiment", "start", "-e", "lost", "-c", "nowhere", exit_code=1)
    assert 'the cluster "nowhere" cannot be reached' in said
    # An experiment that was never started there can be started elsewhere.
    assert "created" in workplace.steppe("experiment", "list")


def test_the_documented_role_is_sufficient(workplace: Workplace, tmp_path):
    workplace.register(workplace.testbed.account(workplace.namespace, RULES, tmp_path), name="limited")
    workplace.new("role", total_timesteps=4_000)
    workplace.steppe("experiment", "start", "-e", "role", "-c", "limited")
    workplace.steppe("experiment", "download", "-e", "role", "--to", str(tmp_path / "results"))
    assert json.loads((tmp_path / "results" / "status.json").read_text())["state"] == "completed"
    workplace.steppe("experiment", "delete", "-e", "role", "--force")
    wait_until(lambda: not workplace.left(), "everything to be gone", seconds=300, pause=1.0)


@pytest.mark.parametrize(
    ("resource", "sentence"),
    [
        ("jobs", "may not list jobs (batch) in namespace"),
        ("secrets", "may not get secrets in namespace"),
        ("pods/proxy", "may not get pods/proxy in namespace"),
    ],
)
def test_a_missing_permission_is_named(workplace: Workplace, tmp_path, resource, sentence):
    rules = [
        rule
        for rule in ({**each, "resources": [name for name in each["resources"] if name != resource]} for each in RULES)
        if rule["resources"]
    ]
    workplace.register(workplace.testbed.account(workplace.namespace, rules, tmp_path), name="limited")
    workplace.new("role")
    said = workplace.steppe("experiment", "start", "-e", "role", "-c", "limited", exit_code=1)
    assert sentence in said
    assert "docs/kubernetes.md" in said


def limit_pods(workplace: Workplace, pods: int) -> None:
    """Limits the number of Pods in the namespace."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": str(pods)}},
    }
    workplace.testbed.apply(quota, namespace=workplace.namespace)


def outlive(workplace: Workplace, name: str, pods: dict[str, int]) -> None:
    """Deletes a Pod of each role in turn during a run, and checks that the run continues each time and completes.

    If checkpoints are rare, the driver resumes from the one that it saves when it is asked to end.
    """
    workplace.steppe("experiment", "start", "-e", name, "-c", "testbed", "--detach")
    timestep = 0
    for kind, count in pods.items():
        # Checked before each loss and not after the last one, when the run may have completed already.
        timestep = workplace.wait_for(name, "running", timestep=timestep + 1)["timestep"]
        assert len(workplace.pods_of(kind)) == count
        lose_one(workplace, kind)
    workplace.wait_for(name, "completed")
    log = workplace.steppe("experiment", "logs", "-e", name)
    assert log.count(f"starting /steppe/results/{name}") == 1
    assert f"resuming /steppe/results/{name}" in log
    crew = [kind for kind in pods if kind != "driver"]
    # All its workers and servers end.
    wait_until(
        lambda: all(has_ended(pod) for kind in crew for pod in workplace.pods_of(kind)),
        "the others to end",
        seconds=300,
        pause=1.0,
    )


def lose_one(workplace: Workplace, kind: str) -> None:
    """Deletes a Pod of that role, and waits for its replacement."""
    names = {pod["metadata"]["name"] for pod in workplace.pods_of(kind)}
    workplace.testbed.kubectl("delete", "pod", min(names), "-n", workplace.namespace, "--wait=false")
    is_another = lambda: {pod["metadata"]["name"] for pod in workplace.pods_of(kind)} - names  # noqa: E731
    wait_until(is_another, f"another {kind}", seconds=300, pause=1.0)
