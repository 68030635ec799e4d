"""`steppe cluster check`: its Pod and its findings; tests/clusters/test_testbed.py asks a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kube_memory import MemoryKube
from object_storage import Cloud
from ports import free_port
from processes import wait_until

from steppe.clusters._base import Reachable
from steppe.platforms.kubernetes.agreement import PREFIX, RESULTS, TERMINATION_LOG
from steppe.platforms.kubernetes.client.kubeapi import KubeAnswer, KubeError
from steppe.platforms.kubernetes.diagnosis import cluster_check, trial_pod
from steppe.platforms.kubernetes.diagnosis.storage_check import ClusterFinding
from steppe.platforms.kubernetes.storage.object_store import ObjectStore
from steppe.runners.pods import DOOR_PORT
from steppe.specs.running.cluster import ClusterSpec

Json = dict[str, Any]
STORE = {"results": "s3://bucket/runs", "env_from_secrets": ["keys"]}


def ending_with(exit_code: int = 0, message: str = "fine") -> MemoryKube:
    """A cluster without any storage class, on which every Pod ends at once."""
    kube = MemoryKube()
    kube.state_of = lambda pod: {"terminated": {"exitCode": exit_code, "message": message}}
    return kube


def check(server: Any, pods: Json, *, has_trial: bool = True) -> dict[str, ClusterFinding]:
    spec = ClusterSpec.model_validate({"provider": "kubeconfig", "kubernetes": pods})
    reachable = Reachable("lab", Path("config"), "lab", "space", False, spec)
    found = cluster_check.check(server, reachable, lambda line: None, has_trial=has_trial)
    return {finding.what: finding for finding in found}


def test_results_in_object_storage_need_no_disk():
    server = ending_with()
    found = check(server, STORE)
    assert {finding.outcome for finding in found.values()} == {"ok"}
    assert "written to s3://bucket/runs" in found["storage"].sentence
    (pod,) = server.created
    assert pod["kind"] == "Pod"
    container = pod["spec"]["containers"][0]
    assert {"name": f"{PREFIX}STORE", "value": "s3://bucket/runs"} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "ObjectStore" in container["command"][-1]
    assert server.deleted == ["Pod"]


def test_a_missing_default_storage_class_is_fixed_in_each_experiment(monkeypatch: pytest.MonkeyPatch):
    server = ending_with()
    ask = server.ask

    def ask_with_classes(method: str, path: str, body: Json | None = None) -> KubeAnswer:
        if "storageclasses" not in path:
            return ask(method, path, body)
        return KubeAnswer(200, json.dumps({"items": [{"metadata": {"name": "fast"}}]}).encode())

    monkeypatch.setattr(server, "ask", ask_with_classes)
    # No command changes a registered cluster.
    found = check(server, {}, has_trial=False)["storage"]
    assert found.sentence == "there is no default storage class"
    assert found.fix == "name one in each experiment: steppe experiment new ... --set kubernetes.storage_class=fast"


def test_an_error_of_object_storage_is_a_finding_about_storage():
    found = check(
        ending_with(trial_pod.STORE_FAILED, "cannot write s3://bucket/runs/x: there is no such bucket"), STORE
    )
    assert (found["storage"].outcome, found["storage"].sentence[:12]) == ("failed", "cannot write")
    assert "image and nodes" not in found


def test_without_a_trial_object_storage_is_unknown():
    found = check(ending_with(), STORE, has_trial=False)["storage"]
    assert found.outcome == "unknown"
    assert "s3://bucket/runs" in found.sentence


def test_the_trial_claims_a_disk_if_results_are_kept_on_one():
    server = ending_with()
    found = check(server, {})["storage"]
    assert (found.outcome, found.sentence) == ("failed", "no disk is made: there is no default storage class")
    assert [each["kind"] for each in server.created] == ["PersistentVolumeClaim", "Pod"]
    assert server.deleted == ["Pod", "PersistentVolumeClaim"]
    assert "ObjectStore" not in server.created[1]["spec"]["containers"][0]["command"][-1]


def unreachable(error: KubeError) -> tuple[MemoryKube, list[str]]:
    """A cluster whose API server does not reach its Pods, which end after two requests; with the list of requests."""
    kube, asked = MemoryKube(), []

    def refuse(pod: str, path: str, **_: Any) -> KubeAnswer:
        asked.append(path)
        raise error

    ended = {"exitCode": trial_pod.NOT_ASKED, "message": ""}
    kube.state_of = lambda pod: {"terminated": ended} if len(asked) == 2 else {"running": {}}
    kube.answers = refuse
    return kube, asked


def test_a_trial_pod_that_the_api_server_does_not_reach_is_reported():
    timeout = KubeError("error trying to reach service: dial tcp 10.0.0.7:8470: i/o timeout", 503)
    found = check(unreachable(timeout)[0], STORE)
    assert "image and nodes" not in found
    way = found["way to Pods"]
    assert way.outcome == "failed"
    assert way.sentence.endswith("no answer of it: error trying to reach service: dial tcp 10.0.0.7:8470: i/o timeout")
    assert "let the API server reach port 8470 of Pods" in way.fix


@pytest.mark.parametrize(("code", "fix"), [(403, "an administrator runs: steppe cluster role -c lab | "), (401, "")])
def test_users_who_may_not_ask_pods_learn_so_at_once(code: int, fix: str):
    forbidden = KubeError('"ann" may not get pods/proxy in namespace "space" of cluster "lab"', code)
    server, asked = unreachable(forbidden)
    found = check(server, STORE)
    assert "way to Pods" not in found
    assert (found["permissions"].outcome, len(asked)) == ("failed", 1)
    assert found["permissions"].sentence.startswith('"ann" may not get pods/proxy')
    assert found["permissions"].fix[: len(fix) or None] == fix
    assert server.deleted == ["Pod"]


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_trial_waits_for_a_request(is_asked: bool):
    port = free_port()
    script = trial_pod.STATUS_SCRIPT.replace(str(DOOR_PORT), str(port))
    if not is_asked:
        script = script.replace(str(trial_pod.ASK_SECONDS), "0.1")
    trial = subprocess.Popen([sys.executable, "-P", "-c", script], stderr=subprocess.DEVNULL)
    try:
        if is_asked:
            wait_until(lambda: answers(port), "the trial to answer")
        assert trial.wait(60) == (0 if is_asked else trial_pod.NOT_ASKED)
    finally:
        trial.kill()
        trial.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            return bool(answer.status == 204)
    except OSError:
        return False


@pytest.mark.parametrize("is_there", [True, False])
def test_the_trial_removes_its_object_from_storage(tmp_path: Path, is_there: bool):
    pytest.importorskip("fsspec")
    bucket = tmp_path / "bucket"
    if is_there:
        (bucket / "run").mkdir(parents=True)
    run_scripts(tmp_path, f"file://{bucket}", is_there)
    assert [path for path in bucket.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("is_there", [True, False])
def test_the_trial_removes_its_object_from_a_real_server(cloud: Cloud, tmp_path: Path, is_there: bool):
    url = cloud.place() if is_there else cloud.place("no-such-bucket")
    run_scripts(tmp_path, url, is_there)
    if is_there:
        assert ObjectStore(url).sizes() == {}


def run_scripts(tmp_path: Path, url: str, is_there: bool) -> None:
    message = tmp_path / "message"
    script = (trial_pod.SCRIPT + trial_pod.STORE_SCRIPT).replace(RESULTS, str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-P", "-c", script.replace(TERMINATION_LOG, str(message))],
        env=os.environ | {f"{PREFIX}STORE": url, f"{PREFIX}HEAD": "run"},
        capture_output=True,
        text=True,
    )
    if is_there:
        assert (done.returncode, message.read_text()) == (0, "fine"), done.stderr
    else:
        assert done.returncode == trial_pod.STORE_FAILED, done.stderr
        assert message.read_text().startswith(f"cannot write {url}/run/trial: there is no such bucket")
