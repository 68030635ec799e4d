"""GKE, through Google's own client library against a fake of its REST API on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud import GoogleCloud

from steppe.clusters import lifecycle, registry
from steppe.errors import ClusterError

Steppe = Callable[..., Any]
SMALL = ("-f", "small_cluster", "-n", "first", "--provider", "gke")


def posted(cloud: GoogleCloud) -> dict[str, Any]:
    """The body of the only request that made a cluster."""
    (body,) = [body for method, _, body in cloud.asked if method == "POST"]
    return body["cluster"]


def test_create_waits_until_the_cluster_is_ready(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 0, answer.err
    assert "asked cloud-7 for 3 nodes in europe-west1-b" in answer.out
    assert "Google makes the control plane and the nodes" in answer.out
    assert google.clusters["cloud-7", "europe-west1-b", "first"]["status"] == "RUNNING"
    assert registry.find("first").is_owned


def test_dry_run_prints_what_is_sent_and_sends_nothing(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    from google.cloud.container_v1 import Cluster

    answer = steppe("cluster", "create", *SMALL, "--dry-run")
    assert answer.code == 0, answer.err
    assert google.asked == []
    assert registry.names() == []
    call, _, body = answer.out.partition("\n")
    assert call == f"POST {google.url}/v1/projects/cloud-7/locations/europe-west1-b/clusters"
    shown = json.loads(body)["cluster"]
    assert steppe("cluster", "create", *SMALL).code == 0
    sent = posted(google)
    for cluster in (shown, sent):
        # Each cluster has an id of its own.
        cluster["resourceLabels"]["steppe-id"] = cluster["nodePools"][0]["config"]["resourceLabels"]["steppe-id"] = "x"
    # The library writes numbers for enums and omits defaults; Google's types parse both forms to the same value.
    assert Cluster.from_json(json.dumps(shown)) == Cluster.from_json(json.dumps(sent))


def test_old_fields_become_nodes(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    spec = {
        "cpus_per_node": 8,
        "memory_per_node": 30,
        "num_nodes": 2,
        "gpus_per_node": 1,
        "gpu_type": "nvidia-tesla-t4",
        "disk_size": 50,
        "location": "us-central1-a",
        "gpu_sharing": True,
        "spot": True,
    }
    Path("gpus.json").write_text(json.dumps(spec))
    assert steppe("cluster", "create", "-f", "gpus.json", "-n", "gpus").code == 0
    (pool,) = posted(google)["nodePools"]
    config = pool["config"]
    assert pool["initialNodeCount"] == 2
    assert (config["machineType"], config["diskSizeGb"], config["spot"]) == ("custom-8-30720", 50, True)
    (gpu,) = config["accelerators"]
    assert (gpu["acceleratorType"], gpu["acceleratorCount"]) == ("nvidia-tesla-t4", "1")
    assert gpu["gpuSharingConfig"]["maxSharedClientsPerGpu"] == "3"
    assert ("cloud-7", "us-central1-a", "gpus") in google.clusters


def test_a_region_gets_its_nodes_spread_evenly(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    answer = steppe("cluster", "create", *SMALL, "--location", "europe-west1", "-s", "4")
    assert answer.code == 2
    assert "num_nodes must be a multiple of 3, or give a zone such as europe-west1-b" in answer.err
    assert steppe("cluster", "create", *SMALL, "--location", "europe-west1", "-s", "6").code == 0
    assert posted(google)["nodePools"][0]["initialNodeCount"] == 2


@pytest.mark.parametrize("again", [("-n", "first"), SMALL])
def test_interrupted_create_goes_on_and_asks_once(
    steppe: Steppe, project: Path, google: GoogleCloud, monkeypatch: pytest.MonkeyPatch, again: tuple[str, ...]
) -> None:
    from steppe.clusters import gke

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gke, "wait_for", interrupted)
        answer = steppe("cluster", "create", *SMALL)
        assert answer.code == 1
        assert "go on with: steppe cluster create -n first" in answer.err
    assert registry.read("first").state == "creating"
    with pytest.raises(ClusterError, match="go on making it with: steppe cluster create -n first"):
        registry.find("first")
    answer = steppe("cluster", "create", *again)
    assert answer.code == 0, answer.err
    assert registry.find("first").name == "first"
    posted(google)


def test_a_cluster_that_somebody_else_made_is_not_taken_over(
    steppe: Steppe, project: Path, google: GoogleCloud
) -> None:
    google.clusters["cloud-7", "europe-west1-b", "first"] = {"name": "first", "status": "RUNNING"}
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 1
    assert 'there is a cluster "first" at gke already that Steppe does not know' in answer.err
    assert not registry.knows("first")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((403, "PERMISSION_DENIED", "Required container.clusters.get"), "Kubernetes Engine Admin"),
        ((429, "RESOURCE_EXHAUSTED", "Insufficient regional quota: CPUS"), "take fewer or smaller nodes"),
        ((400, "INVALID_ARGUMENT", "Machine type x is unknown."), "Machine type x is unknown"),
        ((401, "UNAUTHENTICATED", "Bad token"), "does not take these credentials"),
    ],
)
def test_a_refusal_of_google_is_a_one_sentence_error(
    steppe: Steppe, project: Path, google: GoogleCloud, refusal: tuple[int, str, str], words: str
) -> None:
    google.refusal = refusal
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 1
    assert words in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not registry.knows("first")


def test_an_unfinished_cluster_does_not_resume_with_another_spec(
    steppe: Steppe, project: Path, google: GoogleCloud
) -> None:
    google.failure = "no"
    assert steppe("cluster", "create", *SMALL).code == 1
    answer = steppe("cluster", "create", *SMALL, "-s", "7")
    assert answer.code == 2
    assert "is being made already, from another spec" in answer.err


def test_a_cluster_that_failed_can_be_deleted(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    google.failure = "Quota 'GPUS' exceeded"
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 1
    assert "Quota 'GPUS' exceeded" in answer.err
    assert "steppe cluster delete -c first" in answer.err
    assert steppe("cluster", "delete", "-c", "first", "--yes").code == 0
    assert google.clusters == {}
    assert registry.names() == []


def test_list_shows_known_and_foreign_clusters(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    google.clusters["cloud-7", "us-east1-b", "theirs"] = {
        "name": "theirs",
        "status": "RUNNING",
        "location": "us-east1-b",
    }
    rows = {row["name"]: row for row in json.loads(steppe("cluster", "list", "--json").out)["clusters"]}
    assert (rows["first"]["state"], rows["first"]["made_by"], rows["first"]["num_nodes"]) == ("ready", "steppe", 3)
    assert (rows["theirs"]["made_by"], rows["theirs"]["where"]) == ("others", "cloud-7/us-east1-b")
    table = steppe("cluster", "list").out
    assert "theirs" in table
    assert "1.33.5-gke.100" in table


def test_list_reports_providers_that_did_not_answer(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    google.refusal = (403, "PERMISSION_DENIED", "No.")
    answer = steppe("cluster", "list")
    assert answer.code == 0
    assert "unknown" in answer.out
    assert "others" not in answer.out
    assert "note: Google does not let these credentials look at cluster" in answer.out


def test_delete_asks_first(
    steppe: Steppe, project: Path, google: GoogleCloud, answering: Callable[[str], None]
) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    answering("n")
    answer = steppe("cluster", "delete", "-c", "first")
    assert answer.code == 1
    assert 'Delete "first" (gke cloud-7/europe-west1-b) with everything on it?' in answer.out
    assert "nothing was deleted" in answer.out
    assert google.clusters
    answering("y")
    answer = steppe("cluster", "delete", "-c", "first")
    assert answer.code == 0
    assert "note: disks may be left, look for them in the cloud's console" in answer.out
    assert not google.clusters


def test_delete_without_an_answer_does_nothing(
    steppe: Steppe, project: Path, google: GoogleCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert steppe("cluster", "delete", "-c", "first").code == 1
    assert google.clusters


def test_a_foreign_cluster_is_deleted_only_by_force(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    key = ("cloud-7", "us-east1-b", "theirs")
    google.clusters[key] = {"name": "theirs", "status": "RUNNING", "location": "us-east1-b"}
    answer = steppe("cluster", "delete", "-c", "theirs", "--yes")
    assert answer.code == 2
    assert "was not made by Steppe from here" in answer.err
    assert key in google.clusters
    assert steppe("cluster", "delete", "--all", "--yes").code == 0
    assert key in google.clusters
    assert steppe("cluster", "delete", "-c", "theirs", "--yes", "--force").code == 0
    assert key not in google.clusters


@pytest.mark.parametrize("labels", [{"steppe-id": "of another"}, {"team": "theirs"}, {}])
def test_a_namesake_of_the_cluster_that_was_made_is_not_deleted(
    steppe: Steppe, project: Path, google: GoogleCloud, labels: dict[str, str]
) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    google.clusters["cloud-7", "europe-west1-b", "first"]["resourceLabels"] = labels
    answer = steppe("cluster", "delete", "-c", "first", "--yes")
    assert answer.code == 2
    assert "is not the one that Steppe made, but a namesake" in answer.err
    assert steppe("cluster", "delete", "--all", "--yes").code == 0
    assert google.clusters
    (row,) = json.loads(steppe("cluster", "list", "--json").out)["clusters"]
    assert row["made_by"] == "others"


def test_making_a_cluster_does_not_resume_with_a_namesake(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    google.failure = "no"
    assert steppe("cluster", "create", *SMALL).code == 1
    # The unfinished cluster was removed in the console, and another one has its name now.
    google.clusters["cloud-7", "europe-west1-b", "first"] = {"name": "first", "status": "RUNNING"}
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 1
    assert "is not the one that Steppe began to make, but a namesake" in answer.err
    assert registry.read("first").state == "creating"
    assert google.clusters


def test_delete_all_deletes_each_that_steppe_made(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    for name in ("first", "second"):
        assert steppe("cluster", "create", "-f", "small_cluster", "-n", name, "--provider", "gke").code == 0
    answer = steppe("cluster", "delete", "--all", "--yes", "--force")
    assert answer.out.count("deleted cluster") == 2
    assert google.clusters == {}


def test_a_degraded_cluster_may_still_have_experiments(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    google.clusters["cloud-7", "europe-west1-b", "first"]["status"] = "DEGRADED"
    answer = steppe("cluster", "delete", "-c", "first", "--yes")
    assert answer.code == 1
    assert 'whether experiments are on cluster "first" is not known' in answer.err
    assert google.clusters


def test_a_cluster_that_vanished_can_be_forgotten(steppe: Steppe, project: Path, google: GoogleCloud) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    google.clusters.clear()
    (row,) = json.loads(steppe("cluster", "list", "--json").out)["clusters"]
    assert row["state"] == "gone"
    assert steppe("cluster", "delete", "-c", "first", "--yes").code == 0
    assert registry.names() == []


def test_kubeconfig_holds_no_secret_and_a_command_gets_tokens(
    steppe: Steppe, project: Path, google: GoogleCloud, key: Path
) -> None:
    assert steppe("cluster", "create", *SMALL).code == 0
    reachable = registry.find("first")
    text = reachable.kubeconfig.read_text()
    assert google.token not in text
    assert json.loads(key.read_text())["private_key"][60:120] not in text
    content = yaml.safe_load(text)
    assert content["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:9"
    command = content["users"][0]["user"]["exec"]
    assert command["command"] == sys.executable
    # From any folder: the project is not needed once the cluster exists.
    done = subprocess.run([command["command"], *command["args"]], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    credential = json.loads(done.stdout)
    assert credential["status"]["token"] == google.token
    assert credential["status"]["expirationTimestamp"].endswith("Z")


def test_an_error_without_a_cloud_project_explains_the_remedy(steppe: Steppe, google: GoogleCloud) -> None:
    answer = steppe("cluster", "create", "-n", "first", "--provider", "gke")
    assert answer.code == 2
    assert "steppe init -r PROJECT-ID" in answer.err


def test_an_endpoint_without_encryption_is_refused(
    steppe: Steppe, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPPE_GKE_ENDPOINT", "http://example.com")
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 2
    assert "must begin with https://" in answer.err


def test_an_unreachable_cloud_is_a_one_sentence_error(
    steppe: Steppe, project: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key.write_text(key.read_text().replace(json.loads(key.read_text())["token_uri"], "http://127.0.0.1:9/token"))
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 1
    assert "Google's sign-in failed" in answer.err


def test_an_unreachable_api_is_a_one_sentence_error(
    steppe: Steppe, project: Path, google: GoogleCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPPE_GKE_ENDPOINT", "http://127.0.0.1:9")
    answer = steppe("cluster", "create", *SMALL)
    assert answer.code == 1
    assert "http://127.0.0.1:9 cannot be reached" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert registry.names() == []


def test_ensure_makes_a_cluster_once(project: Path, google: GoogleCloud) -> None:
    from steppe.specs.running.cluster import ClusterSpec

    spec = ClusterSpec(provider="gke", num_nodes=1)
    told: list[str] = []
    assert lifecycle.ensure("own", spec, told.append) == lifecycle.ensure("own", spec, told.append)
    posted(google)
    assert lifecycle.ensure("own", None, told.append).name == "own"


def test_a_gpu_type_without_gpus_is_noted(steppe: Steppe, project: Path) -> None:
    words = ("cluster", "create", "-n", "team", "--provider", "gke", "--gpu-type", "foo", "--dry-run")
    answer = steppe(*words)
    assert answer.code == 0, answer.err
    assert answer.out.endswith("note: gpu_type has no effect without GPUs; give gpus_per_node too (--gpus-per-node)\n")
    assert "note" not in steppe(*words[:5]).out


def test_a_dry_run_needs_no_cloud_project(steppe: Steppe, here: Path) -> None:
    answer = steppe("cluster", "create", "-n", "team", "--provider", "gke", "--dry-run")
    assert answer.code == 0, answer.err
    assert "projects/PROJECT-ID/locations/" in answer.out
    assert "note: PROJECT-ID stands for the cloud project; steppe init -r" in answer.out
    assert steppe("cluster", "create", "-n", "team", "--provider", "gke").code == 2
