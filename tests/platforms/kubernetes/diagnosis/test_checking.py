"""What `steppe cluster check` makes and finds; tests/clusters/test_testbed.py asks a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from object_storage import Cloud
from ports import free_port
from processes import wait_until

from steppe.clusters._base import Reachable
from steppe.platforms.kubernetes.agreement import PREFIX, RESULTS, TERMINATION_LOG
from steppe.platforms.kubernetes.client.kubeapi import Answer, KubeError
from steppe.platforms.kubernetes.diagnosis import checking
from steppe.platforms.kubernetes.storage.object_store import ObjectStore
from steppe.runners.pods import DOOR_PORT
from steppe.specs.running.cluster import ClusterSpec

Json = dict[str, Any]
STORE = {"results": "s3://bucket/runs", "env_from_secrets": ["keys"]}


class Server:
    """An API server without any storage class, on which every Pod ends at once."""

    def __init__(self, exit_code: int = 0, message: str = "fine") -> None:
        self.name, self.namespace = "lab", "space"
        self.ended = {"exitCode": exit_code, "message": message}
        self.made: list[Json] = []
        self.deleted: list[str] = []

    def ask(self, method: str, path: str, body: Json | None = None) -> Answer:
        said = {"gitVersion": "v1.33.1", "major": "1", "minor": "33", "items": [], "status": {"allowed": True}}
        return Answer(200, json.dumps(said).encode())

    def create(self, manifest: Json) -> Json:
        self.made.append(manifest)
        return manifest

    def get(self, kind: str, name: str) -> Json | None:
        found = next((each for each in self.made if (each["kind"], each["metadata"]["name"]) == (kind, name)), None)
        if found is None or kind != "Pod":
            return found
        container = found["spec"]["containers"][0]["name"]
        states = [{"name": container, "state": {"terminated": self.ended}}]
        return found | {"status": {"containerStatuses": states}}

    def listed(self, kind: str, labels: Json | None = None, fields: str = "") -> list[Json]:
        return []

    def delete(self, kind: str, name: str) -> None:
        self.deleted.append(kind)


def check(server: Server, pods: Json, *, has_trial: bool = True) -> dict[str, checking.Finding]:
    spec = ClusterSpec.model_validate({"provider": "kubeconfig", "kubernetes": pods})
    reachable = Reachable("lab", Path("config"), "lab", "space", False, spec)
    found = checking.check(server, reachable, lambda line: None, has_trial=has_trial)  # type: ignore[arg-type]
    return {finding.what: finding for finding in found}


def test_results_in_object_storage_need_no_disk():
    server = Server()
    found = check(server, STORE)
    assert {finding.outcome for finding in found.values()} == {"ok"}
    assert "written to s3://bucket/runs" in found["storage"].sentence
    (pod,) = server.made
    assert pod["kind"] == "Pod"
    container = pod["spec"]["containers"][0]
    assert {"name": f"{PREFIX}STORE", "value": "s3://bucket/runs"} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "ObjectStore" in container["command"][-1]
    assert server.deleted == ["Pod"]


def test_a_storage_class_is_to_be_named_where_that_can_be_done():
    class WithClasses(Server):
        def ask(self, method: str, path: str, body: Json | None = None) -> Answer:
            if "storageclasses" not in path:
                return super().ask(method, path, body)
            return Answer(200, json.dumps({"items": [{"metadata": {"name": "fast"}}]}).encode())

    # No command changes a cluster that is registered.
    found = check(WithClasses(), {}, has_trial=False)["storage"]
    assert found.sentence == "there is no default storage class"
    assert found.fix == "name one in each experiment: steppe experiment new ... --set kubernetes.storage_class=fast"


def test_what_object_storage_refuses_is_told_as_storage():
    found = check(Server(checking.STORE_FAILED, "cannot write s3://bucket/runs/x: there is no such bucket"), STORE)
    assert (found["storage"].outcome, found["storage"].sentence[:12]) == ("failed", "cannot write")
    assert "image and nodes" not in found


def test_without_a_trial_object_storage_is_not_known():
    found = check(Server(), STORE, has_trial=False)["storage"]
    assert found.outcome == "unknown"
    assert "s3://bucket/runs" in found.sentence


def test_a_disk_is_tried_where_results_are_kept_on_one():
    server = Server()
    found = check(server, {})["storage"]
    assert (found.outcome, found.sentence) == ("failed", "no disk is made: there is no default storage class")
    assert [each["kind"] for each in server.made] == ["PersistentVolumeClaim", "Pod"]
    assert server.deleted == ["Pod", "PersistentVolumeClaim"]
    assert "ObjectStore" not in server.made[1]["spec"]["containers"][0]["command"][-1]


class Unreached(Server):
    """One whose Pods run until nobody has asked them anything, since the API server does not get through to them."""

    def __init__(self) -> None:
        super().__init__(checking.NOT_ASKED)
        self.looks = 0

    def get(self, kind: str, name: str) -> Json | None:
        found = super().get(kind, name)
        if kind == "Pod" and found is not None and self.looks < 2:
            self.looks += 1
            found["status"]["containerStatuses"][0]["state"] = {"running": {}}
        return found

    def ask_pod(self, pod: str, port: int, path: str, **_: Any) -> Answer:
        raise KubeError(f"error trying to reach service: dial tcp 10.0.0.7:{port}: i/o timeout", 503)


def test_a_trial_pod_that_the_api_server_does_not_reach_is_told():
    found = check(Unreached(), STORE)
    assert "image and nodes" not in found
    way = found["way to Pods"]
    assert way.outcome == "failed"
    assert way.sentence.endswith("no answer of it: error trying to reach service: dial tcp 10.0.0.7:8470: i/o timeout")
    assert "let the API server reach port 8470 of Pods" in way.fix


@pytest.mark.parametrize(("code", "fix"), [(403, "an administrator runs: steppe cluster role -c lab | "), (401, "")])
def test_who_may_not_ask_pods_is_told_so_at_once(code: int, fix: str):
    class Forbidding(Unreached):
        def ask_pod(self, pod: str, port: int, path: str, **_: Any) -> Answer:
            raise KubeError('"ann" may not get pods/proxy in namespace "space" of cluster "lab"', code)

    server = Forbidding()
    found = check(server, STORE)
    assert "way to Pods" not in found
    assert (found["permissions"].outcome, server.looks) == ("failed", 1)
    assert found["permissions"].sentence.startswith('"ann" may not get pods/proxy')
    assert found["permissions"].fix[: len(fix) or None] == fix
    assert server.deleted == ["Pod"]


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_trial_waits_for_a_question_at_its_door(is_asked: bool):
    port = free_port()
    script = checking.DOOR_SCRIPT.replace(str(DOOR_PORT), str(port))
    if not is_asked:
        script = script.replace(str(checking.ASK_SECONDS), "0.1")
    trial = subprocess.Popen([sys.executable, "-P", "-c", script], stderr=subprocess.DEVNULL)
    try:
        if is_asked:
            wait_until(lambda: answers(port), "the trial to answer")
        assert trial.wait(60) == (0 if is_asked else checking.NOT_ASKED)
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
def test_the_trial_writes_to_object_storage_and_leaves_nothing(tmp_path: Path, is_there: bool):
    pytest.importorskip("fsspec")
    bucket = tmp_path / "bucket"
    if is_there:
        (bucket / "run").mkdir(parents=True)
    see_trial(tmp_path, f"file://{bucket}", is_there)
    assert [path for path in bucket.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("is_there", [True, False])
def test_the_trial_leaves_nothing_on_a_real_server(cloud: Cloud, tmp_path: Path, is_there: bool):
    url = cloud.place() if is_there else cloud.place("no-such-bucket")
    see_trial(tmp_path, url, is_there)
    if is_there:
        assert ObjectStore(url).sizes() == {}


def see_trial(tmp_path: Path, url: str, is_there: bool) -> None:
    last_words = tmp_path / "last-words"
    script = (checking.SCRIPT + checking.STORE_SCRIPT).replace(RESULTS, str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-P", "-c", script.replace(TERMINATION_LOG, str(last_words))],
        env=os.environ | {f"{PREFIX}STORE": url, f"{PREFIX}HEAD": "run"},
        capture_output=True,
        text=True,
    )
    if is_there:
        assert (done.returncode, last_words.read_text()) == (0, "fine"), done.stderr
    else:
        assert done.returncode == checking.STORE_FAILED, done.stderr
        assert last_words.read_text().startswith(f"cannot write {url}/run/trial: there is no such bucket")
