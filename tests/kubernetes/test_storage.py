"""Results in object storage: Pods of the testbed with S3 or Google's on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cluster_runs import Workplace
from google_storage_server import GOOGLE_KEY, key_at
from object_storage import BUCKET, KINDS, Cloud, client_of, cloud_of
from processes import wait_until

from steppe.platforms.kubernetes.storage.object_store import INDEX

pytest.importorskip("fsspec")


@dataclass(frozen=True)
class Bucket:
    """Object storage that Pods can reach, as seen from this process."""

    pods: dict[str, Any]
    """The fields of the experiments' `kubernetes` block."""
    kind: str

    def objects(self) -> dict[str, bytes]:
        """All objects, by their paths below the experiment's own folder."""
        files, root = client_of(f"{self.kind}://{BUCKET}/runs")
        return {path.split("/", 3)[3]: files.cat_file(path) for path in files.find(root)}


@pytest.fixture(params=KINDS)
def bucket(request, workplace: Workplace, tmp_path, monkeypatch) -> Iterator[Bucket]:
    if not workplace.testbed.is_ours:
        pytest.skip("only Pods of the testbed reach this machine")
    config = json.loads(workplace.testbed.kubectl("config", "view", "--minify", "-o", "json"))
    server = urlsplit(config["clusters"][0]["cluster"]["server"]).hostname or ""
    machine = f"{server.rpartition('.')[0]}.1"
    with cloud_of(request.param, tmp_path, "0.0.0.0") as cloud:
        for name, value in cloud.variables().items():
            monkeypatch.setenv(name, value)
        keys, pods = in_pods(cloud, machine, workplace.pods)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store-keys"}, "stringData": keys}
        workplace.testbed.apply(secret, namespace=workplace.namespace)
        pods["env"] |= {**cloud.address(host=machine), "NO_PROXY": "*"}
        yield Bucket({"results": f"{cloud.kind}://{BUCKET}/runs", **pods}, cloud.kind)


def in_pods(cloud: Cloud, machine: str, others: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """(content of the Secret, Pod settings that use it), as docs/kubernetes.md describes for each kind of store."""
    if cloud.kind == "s3":
        return cloud.keys, {"env_from_secrets": ["store-keys"], "env": {}}
    key = key_at(Path(cloud.keys[GOOGLE_KEY]), f"http://{machine}:{cloud.port}")
    pods = {
        "volumes": [*others.get("volumes", ()), {"name": "bucket-key", "secret": {"secretName": "store-keys"}}],
        "volume_mounts": [
            *others.get("volume_mounts", ()),
            {"name": "bucket-key", "mountPath": "/secrets", "readOnly": True},
        ],
        "env": {GOOGLE_KEY: "/secrets/key.json"},
    }
    return {"key.json": key}, pods


def test_results_are_stored_in_object_storage(workplace: Workplace, bucket: Bucket, tmp_path):
    workplace.new("kept", total_timesteps=20_000, kubernetes=bucket.pods)
    workplace.steppe("experiment", "start", "-e", "kept", "-c", "testbed")
    assert workplace.status("kept")["state"] == "completed"
    assert not [each for each in workplace.left() if each.startswith("PersistentVolumeClaim")]
    wait_until(lambda: not workplace.pods_of("driver"), "its Pod to end", seconds=300, pause=1.0)

    target = tmp_path / "results"
    workplace.steppe("experiment", "download", "-e", "kept", "--to", str(target))
    objects = bucket.objects()
    assert json.loads(objects["status.json"])["state"] == "completed"
    shown = {name: data for name, data in objects.items() if not name.startswith(".")}
    assert sums(target) == {name: sha256(data) for name, data in shown.items()}
    assert f"the results are kept in {bucket.kind}://" in workplace.steppe("experiment", "logs", "-e", "kept")

    more = workplace.steppe("experiment", "resume", "-e", "kept", "--set", "total_timesteps=40000")
    assert 'experiment "kept" is completed' in more
    assert json.loads(bucket.objects()["status.json"])["timestep"] >= 40_000
    assert "resuming /steppe/results/kept" in workplace.steppe("experiment", "logs", "-e", "kept")

    assert f"its results stay in {bucket.kind}://{BUCKET}/runs/" in workplace.steppe(
        "experiment", "delete", "-e", "kept", "--force"
    )
    assert bucket.objects()["policy/policy.safetensors"]


def test_a_deleted_driver_pod_resumes_from_the_store(workplace: Workplace, bucket: Bucket):
    # So rarely that the only checkpoint is the one saved when the Pod is asked to end.
    workplace.new("moved", total_timesteps=3_000_000, saver_frequency="3600s", kubernetes=bucket.pods)
    workplace.steppe("experiment", "start", "-e", "moved", "-c", "testbed", "--detach")
    workplace.wait_for("moved", "running", timestep=1)
    (first,) = workplace.pods_of("driver")
    workplace.testbed.kubectl("delete", "pod", first["metadata"]["name"], "-n", workplace.namespace)
    # The Pod saved and stored a checkpoint before it ended.
    assert [name for name in bucket.objects() if name.startswith("checkpoints/")]
    status = workplace.wait_for("moved", "completed")
    assert status["timestep"] >= 3_000_000
    log = workplace.steppe("experiment", "logs", "-e", "moved")
    assert "starting /steppe/results/moved" in log
    assert "resuming /steppe/results/moved" in log
    workplace.steppe("experiment", "delete", "-e", "moved", "--force", "--stored")
    assert bucket.objects() == {}
    wait_until(lambda: not workplace.left(), "everything to be gone", seconds=300, pause=1.0)


@pytest.mark.long
@pytest.mark.faults
def test_a_lost_driver_pod_resumes_from_the_last_stored_checkpoint(workplace: Workplace, bucket: Bucket):
    workplace.new("lost", total_timesteps=3_000_000, kubernetes=bucket.pods)
    workplace.steppe("experiment", "start", "-e", "lost", "-c", "testbed", "--detach")

    def checkpoints() -> list[str]:
        index = json.loads(bucket.objects().get(INDEX, b'{"files": {}}'))
        return [name for name in index["files"] if name.endswith("/state.json")]

    wait_until(checkpoints, "a checkpoint in the store", seconds=300, pause=1.0)
    (first,) = workplace.pods_of("driver")
    name = first["metadata"]["name"]
    workplace.testbed.kubectl("delete", "pod", name, "-n", workplace.namespace, "--grace-period=0", "--force")
    workplace.wait_for("lost", "completed")
    assert "resuming /steppe/results/lost" in workplace.steppe("experiment", "logs", "-e", "lost")


def test_a_missing_bucket_is_a_one_sentence_error(workplace: Workplace, bucket: Bucket):
    workplace.new("nowhere", kubernetes={**bucket.pods, "results": f"{bucket.kind}://no-such-bucket/runs"})
    said = workplace.steppe("experiment", "start", "-e", "nowhere", "-c", "testbed", exit_code=1)
    assert "there is no such bucket; make it first" in said


@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
def test_a_key_file_that_is_not_mounted_is_a_one_sentence_error(workplace: Workplace, bucket: Bucket):
    pods = {**bucket.pods, "env": {**bucket.pods["env"], GOOGLE_KEY: "/secrets/other.json"}}
    workplace.new("unmounted", kubernetes=pods)
    said = " ".join(workplace.steppe("experiment", "start", "-e", "unmounted", "-c", "testbed", exit_code=1).split())
    assert "there are no credentials for it, or they are not accepted" in said
    assert "/secrets/other.json was not found" in said
    assert f"kubernetes.env as {GOOGLE_KEY}" in said


def sums(folder) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in files}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
