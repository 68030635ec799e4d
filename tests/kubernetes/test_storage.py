"""Results in object storage: Pods of the testbed, and an S3 on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from cluster_runs import Workplace
from object_storage import BUCKET, KEYS, s3_server
from processes import wait_until

from steppe.platforms.kubernetes.object_store import INDEX

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")
pytest.importorskip("moto")


@dataclass(frozen=True)
class Bucket:
    """An S3 that Pods reach, seen from here."""

    pods: dict[str, object]
    """What the experiments' `kubernetes` block says."""
    endpoint: str

    def objects(self) -> dict[str, bytes]:
        """Everything in it, by the path below the experiment's own folder."""
        files = fsspec.filesystem("s3", key="test", secret="test", endpoint_url=self.endpoint, skip_instance_cache=True)
        return {path.split("/", 3)[3]: files.cat_file(path) for path in files.find(f"{BUCKET}/runs")}


@pytest.fixture
def bucket(workplace: Workplace, tmp_path) -> Iterator[Bucket]:
    if not workplace.testbed.is_ours:
        pytest.skip("only Pods of the testbed reach this machine")
    config = json.loads(workplace.testbed.kubectl("config", "view", "--minify", "-o", "json"))
    server = urlsplit(config["clusters"][0]["cluster"]["server"]).hostname or ""
    machine = f"{server.rpartition('.')[0]}.1"
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store-keys"}, "stringData": KEYS}
    workplace.testbed.apply(keys, namespace=workplace.namespace)
    with s3_server(tmp_path, "0.0.0.0") as port:
        pods = {
            "results": f"s3://{BUCKET}/runs",
            "env_from_secrets": ["store-keys"],
            "env": {"AWS_ENDPOINT_URL": f"http://{machine}:{port}", "NO_PROXY": "*"},
        }
        yield Bucket(pods, f"http://127.0.0.1:{port}")


def test_results_are_kept_in_object_storage(workplace: Workplace, bucket: Bucket, tmp_path):
    workplace.new("kept", total_timesteps=20_000, kubernetes=bucket.pods)
    workplace.steppe("experiment", "start", "-e", "kept", "-c", "testbed")
    assert workplace.status("kept")["state"] == "completed"
    assert not [each for each in workplace.left() if each.startswith("PersistentVolumeClaim")]
    wait_until(lambda: not workplace.pods_of("driver"), "its Pod to end", seconds=120, pause=1.0)

    target = tmp_path / "results"
    workplace.steppe("experiment", "download", "-e", "kept", "--to", str(target))
    objects = bucket.objects()
    assert json.loads(objects["status.json"])["state"] == "completed"
    shown = {name: data for name, data in objects.items() if not name.startswith(".")}
    assert sums(target) == {name: sha256(data) for name, data in shown.items()}
    assert "the results are kept in s3://" in workplace.steppe("experiment", "logs", "-e", "kept")

    more = workplace.steppe("experiment", "resume", "-e", "kept", "--set", "total_timesteps=40000")
    assert 'experiment "kept" is completed' in more
    assert json.loads(bucket.objects()["status.json"])["timestep"] >= 40_000
    assert "resuming /steppe/results/kept" in workplace.steppe("experiment", "logs", "-e", "kept")

    assert f"its results stay in s3://{BUCKET}/runs/" in workplace.steppe(
        "experiment", "delete", "-e", "kept", "--force"
    )
    assert bucket.objects()["policy/policy.safetensors"]


def test_a_driver_pod_that_is_deleted_goes_on_from_the_store(workplace: Workplace, bucket: Bucket):
    # So seldom that the only checkpoint is that of a Pod which is asked to end.
    workplace.new("moved", total_timesteps=600_000, saver_frequency="3600s", kubernetes=bucket.pods)
    workplace.steppe("experiment", "start", "-e", "moved", "-c", "testbed", "--detach")
    workplace.wait_for("moved", "running", timestep=1)
    (first,) = workplace.pods_of("driver")
    workplace.testbed.kubectl("delete", "pod", first["metadata"]["name"], "-n", workplace.namespace)
    # It was asked to end, and has saved and stored a checkpoint before it did.
    assert [name for name in bucket.objects() if name.startswith("checkpoints/")]
    status = workplace.wait_for("moved", "completed")
    assert status["timestep"] >= 600_000
    log = workplace.steppe("experiment", "logs", "-e", "moved")
    assert "starting /steppe/results/moved" in log
    assert "resuming /steppe/results/moved" in log
    workplace.steppe("experiment", "delete", "-e", "moved", "--force", "--stored")
    assert bucket.objects() == {}
    wait_until(lambda: not workplace.left(), "everything to be gone", seconds=120, pause=1.0)


@pytest.mark.long
@pytest.mark.faults
def test_a_driver_pod_that_vanishes_goes_on_from_the_last_checkpoint_in_the_store(workplace: Workplace, bucket: Bucket):
    workplace.new("lost", total_timesteps=300_000, kubernetes=bucket.pods)
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


def test_a_bucket_that_is_not_there_ends_in_a_sentence(workplace: Workplace, bucket: Bucket):
    workplace.new("nowhere", kubernetes={**bucket.pods, "results": "s3://no-such-bucket/runs"})
    said = workplace.steppe("experiment", "start", "-e", "nowhere", "-c", "testbed", exit_code=1)
    assert "there is no such bucket; make it first" in said


def sums(folder) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in files}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
