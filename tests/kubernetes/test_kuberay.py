"""`engine: kuberay` on a real Kubernetes with RayJobs; a fake operator stands in for KubeRay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cluster_runs import Workplace
from kube_testbed import Testbed
from processes import wait_until
from ray_operator import CRD, WITHOUT_TOKENS, RayOperator, ray_jobs

FIELDS: dict[str, Any] = {
    "run_mode": "distributed",
    "num_workers": 2,
    "num_parameter_servers": 1,
    "kubernetes": {"engine": "kuberay"},
}


@pytest.fixture
def kuberay(testbed: Testbed) -> Iterator[None]:
    """A cluster that knows RayJobs and has no operator for them."""
    with ray_jobs(testbed):
        yield


@pytest.fixture
def operator(kuberay: None, workplace: Workplace) -> Iterator[None]:
    """The fake operator, running."""
    with RayOperator(workplace.testbed, workplace.namespace):
        yield


def ray_jobs_of(workplace: Workplace) -> list[dict[str, Any]]:
    return workplace.testbed.objects("rayjobs", workplace.namespace)


def rendered(workplace: Workplace, name: str) -> dict[str, Any]:
    """The RayJob as it is sent to the server."""
    sent = yaml.safe_load_all(workplace.steppe("experiment", "manifest", "-e", name))
    return next(each for each in sent if each["kind"] == "RayJob")


def without_defaults(job: dict[str, Any]) -> dict[str, Any]:
    """The RayJob without the defaults that the server has added to its groups."""
    for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        assert group.pop("numOfHosts") == 1
    return job


def test_without_kuberay_nothing_is_made_and_the_error_explains_its_installation(workplace: Workplace):
    if CRD in workplace.testbed.kubectl("get", "crd", "-o", "name"):
        pytest.skip("this cluster has KubeRay")
    workplace.new("none", **FIELDS)
    said = workplace.steppe("experiment", "start", "-e", "none", "-c", "testbed", exit_code=1)
    assert 'cluster "testbed" has no KubeRay, which kubernetes.engine asks for' in said
    assert "kuberay-operator-installation" in said
    assert not workplace.left()
    # An experiment that was not started can be started in another way.
    assert "created" in workplace.steppe("experiment", "list")


def test_a_kuberay_without_tokens_is_refused(testbed: Testbed, workplace: Workplace):
    with ray_jobs(testbed, WITHOUT_TOKENS):
        workplace.new("old", **FIELDS)
        said = workplace.steppe("experiment", "start", "-e", "old", "-c", "testbed", exit_code=1)
        assert 'the KubeRay of cluster "testbed" is older than 1.5.1 and knows no tokens' in said
        wait_until(lambda: not ray_jobs_of(workplace), "the RayJob to be gone", seconds=300, pause=0.5)
    wait_until(lambda: not workplace.left(), "everything to be gone", seconds=300, pause=1.0)


@pytest.mark.usefixtures("kuberay")
def test_a_ray_job_is_deleted_with_its_experiment(workplace: Workplace):
    workplace.new("owned", **FIELDS)
    workplace.steppe("experiment", "start", "-e", "owned", "-c", "testbed", "--detach")
    (job,) = ray_jobs_of(workplace)
    (root,) = workplace.testbed.objects("configmaps", workplace.namespace, "steppe/run")
    assert job["metadata"]["ownerReferences"][0]["uid"] == root["metadata"]["uid"]
    # The server drops unknown fields and adds defaults.
    assert rendered(workplace, "owned")["spec"].items() <= without_defaults(job)["spec"].items()
    assert not workplace.testbed.objects("jobs", workplace.namespace)
    assert "waits for the KubeRay operator to take it up" in workplace.status("owned")["phase"]

    workplace.steppe("experiment", "stop", "-e", "owned")
    assert not ray_jobs_of(workplace)
    assert workplace.status("owned")["state"] == "stopped"
    workplace.steppe("experiment", "delete", "-e", "owned", "--force")
    wait_until(lambda: not workplace.left(), "everything to be gone", seconds=300, pause=1.0)


@pytest.mark.usefixtures("operator")
def test_a_refusal_of_kuberay_is_shown_in_its_own_words(workplace: Workplace, monkeypatch: pytest.MonkeyPatch):
    workplace.new("refused", **FIELDS)
    monkeypatch.setattr("ray_operator.OLDEST_RAY_WITH_TOKENS", (999, 0, 0))
    workplace.steppe("experiment", "start", "-e", "refused", "-c", "testbed", "--detach")
    reason = workplace.wait_for("refused", "failed")["reason"]
    assert "has ended: that Ray knows no tokens" in reason


@pytest.mark.usefixtures("kuberay")
def test_the_role_needs_ray_jobs_too(workplace: Workplace, tmp_path):
    from steppe.platforms.kubernetes.manifests.permissions import role

    for name, engine in (("limited", None), ("enough", "kuberay")):
        config = workplace.testbed.account(workplace.namespace, role("any", engine)["rules"], tmp_path)
        workplace.register(config, name=name)
    workplace.new("rights", **FIELDS)
    said = workplace.steppe("experiment", "start", "-e", "rights", "-c", "limited", exit_code=1)
    assert "may not list rayjobs (ray.io) in namespace" in said
    workplace.steppe("experiment", "start", "-e", "rights", "-c", "enough", "--detach")
    workplace.steppe("experiment", "stop", "-e", "rights")
    workplace.steppe("experiment", "delete", "-e", "rights", "--force")
    assert not ray_jobs_of(workplace)


@pytest.mark.long
@pytest.mark.usefixtures("operator")
def test_an_experiment_trains_in_a_ray_job_and_its_end_is_noticed_later(workplace: Workplace, tmp_path):
    workplace.new("ray", total_timesteps=30_000, **FIELDS)
    workplace.steppe("experiment", "start", "-e", "ray", "-c", "testbed", "--detach")

    def has_ended() -> bool:
        (job,) = ray_jobs_of(workplace)
        return job.get("status", {}).get("jobDeploymentStatus") == "Complete" and not workplace.pods_of("driver")

    # No client follows the run, so its state must come from the disk.
    wait_until(has_ended, "the RayJob to be complete", seconds=600, pause=1.0)
    status = workplace.status("ray")
    assert (status["state"], status["timestep"] >= 30_000) == ("completed", True)
    workplace.steppe("experiment", "download", "-e", "ray", "--to", str(tmp_path / "results"))
    assert json.loads((tmp_path / "results" / "status.json").read_text())["state"] == "completed"
    workplace.steppe("experiment", "delete", "-e", "ray", "--force")
    assert not ray_jobs_of(workplace)
    wait_until(lambda: not workplace.left(), "everything to be gone", seconds=300, pause=1.0)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.usefixtures("operator")
def test_a_ray_job_can_be_paused_and_resumed_and_survives_the_loss_of_its_head(workplace: Workplace):
    workplace.new("ray", total_timesteps=100_000_000, saver_frequency="3600s", **FIELDS)
    workplace.steppe("experiment", "start", "-e", "ray", "-c", "testbed", "--detach")
    workplace.wait_for("ray", "running", timestep=1)
    assert (len(workplace.pods_of("worker")), len(workplace.pods_of("server"))) == (2, 1)
    assert 'experiment "ray" is paused at timestep' in workplace.steppe("experiment", "pause", "-e", "ray")
    paused = workplace.status("ray")["timestep"]
    wait_until(lambda: not ray_jobs_of(workplace), "the RayJob to be gone", seconds=300, pause=0.5)

    more = paused + 200_000
    workplace.steppe("experiment", "resume", "-e", "ray", "--set", f"total_timesteps={more}", "--detach")
    before = workplace.wait_for("ray", "running", timestep=paused + 1)["timestep"]
    (head,) = workplace.pods_of("driver")
    # The hook before the end of the Pod saves the training, which otherwise is saved only once an hour.
    workplace.testbed.kubectl("delete", "pod", head["metadata"]["name"], "-n", workplace.namespace)
    assert workplace.wait_for("ray", "completed")["timestep"] >= more
    log = workplace.steppe("experiment", "logs", "-e", "ray")
    resumed = [int(line.split()[-1]) for line in log.splitlines() if "resumed at timestep" in line]
    assert resumed[0] == paused
    assert len(resumed) == 2
    assert resumed[1] >= before


@pytest.mark.long
@pytest.mark.usefixtures("operator")
def test_a_permanent_failure_has_failed_after_all_retries_of_kuberay(workplace: Workplace):
    own = {"engine": "kuberay", "image": workplace.pods["image"]}
    workplace.new("bad", environment="nowhere_installed:World", **FIELDS | {"kubernetes": own})
    workplace.steppe("experiment", "start", "-e", "bad", "-c", "testbed", "--detach")

    def has_ended() -> bool:
        (job,) = ray_jobs_of(workplace)
        return job.get("status", {}).get("jobDeploymentStatus") == "Failed"

    wait_until(has_ended, "the RayJob to have failed", seconds=600, pause=1.0)
    assert ray_jobs_of(workplace)[0]["status"]["failed"] == 3
    status = workplace.status("bad")
    assert status["state"] == "failed"
    assert 'names the module "nowhere_installed", which is not there' in status["reason"]
