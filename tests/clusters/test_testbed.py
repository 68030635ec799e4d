"""Clusters on a real Kubernetes: registered by a kubeconfig, opened with tokens, and checked."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import mounted_source
from google_cloud import GoogleCloud
from kube_testbed import BASE, Testbed

from steppe.clusters import registry
from steppe.platforms.kubernetes.client.kubeapi import Kube
from steppe.platforms.kubernetes.manifests import naming, permissions

pytestmark = pytest.mark.kubernetes
Steppe = Callable[..., Any]


def findings(steppe: Steppe, *words: str) -> dict[str, dict[str, str]]:
    """The findings of `cluster check` by their subject."""
    answer = steppe("cluster", "check", "-c", "lab", "--json", *words)
    found = json.loads(answer.out)
    assert answer.code == (0 if found["is_fit"] else 1)
    return {each["what"]: each for each in found["findings"]}


def register(steppe: Steppe, kubeconfig: Path, namespace: str, *words: str) -> None:
    where = ("--kubeconfig", str(kubeconfig), "--namespace", namespace)
    answer = steppe("cluster", "create", "-n", "lab", "--provider", "kubeconfig", *where, *words)
    assert answer.code == 0, answer.err


def own_source() -> tuple[str, ...]:
    """Pod settings that run this source with this machine's Python, without an image of them."""
    values = mounted_source()
    values |= {"driver": {"cpus": 0.1, "memory": 0.5}, "storage": 0.1}
    return tuple(word for key, value in values.items() for word in ("--set", f"kubernetes.{key}={json.dumps(value)}"))


def test_a_registered_context_is_reached(steppe: Steppe, testbed: Testbed, namespace: str) -> None:
    register(steppe, testbed.kubeconfig, namespace)
    reachable = registry.find("lab")
    with Kube(reachable.kubeconfig, reachable.context, reachable.namespace, reachable.name) as kube:
        assert kube.listed("Pod") == []


def test_check_finds_a_cluster_fit_with_a_trial_pod_and_leaves_nothing(
    steppe: Steppe, testbed: Testbed, namespace: str
) -> None:
    if not testbed.is_ours:
        pytest.skip("only the testbed's nodes see this machine's folders")
    testbed.kube("base")
    register(steppe, testbed.kubeconfig, namespace, *own_source())
    found = findings(steppe)
    assert {what: each["outcome"] for what, each in found.items()} == {
        "API server": "ok",
        "namespace": "ok",
        "permissions": "ok",
        "storage": "ok",
        "image and nodes": "ok",
    }, found
    left = testbed.objects("pods,persistentvolumeclaims", namespace)
    assert all("deletionTimestamp" in each["metadata"] for each in left)


def test_check_reports_an_image_that_cannot_be_pulled(steppe: Steppe, testbed: Testbed, namespace: str) -> None:
    register(steppe, testbed.kubeconfig, namespace, "--set", "kubernetes.image=localhost/absent:1")
    found = findings(steppe)["image and nodes"]
    assert found["outcome"] == "failed"
    assert "localhost/absent:1" in found["sentence"]
    assert "cannot be pulled" in found["sentence"]


def test_check_reports_an_image_without_steppe(steppe: Steppe, testbed: Testbed, namespace: str) -> None:
    if not testbed.is_ours:
        pytest.skip("only the testbed is sure to have a bare Python")
    testbed.kube("base")
    words = (f"kubernetes.image={BASE}", 'kubernetes.driver={"cpus": 0.1, "memory": 0.25}')
    register(steppe, testbed.kubeconfig, namespace, *(part for word in words for part in ("--set", word)))
    found = findings(steppe)["image and nodes"]
    assert found["outcome"] == "failed"
    assert "Steppe does not run in that image" in found["sentence"]


def test_check_names_a_missing_storage_class(steppe: Steppe, testbed: Testbed, namespace: str) -> None:
    register(steppe, testbed.kubeconfig, namespace, "--set", "kubernetes.storage_class=absent")
    found = findings(steppe, "--quick")["storage"]
    assert found["outcome"] == "failed"
    assert 'there is no storage class "absent"' in found["sentence"]
    assert found["fix"]


def test_check_names_missing_gpus(steppe: Steppe, testbed: Testbed, namespace: str) -> None:
    register(steppe, testbed.kubeconfig, namespace, "--gpus-per-node", "1")
    found = findings(steppe, "--quick")["GPUs"]
    assert found["outcome"] == "failed"
    assert "nvidia.com/gpu" in found["sentence"]
    assert "device plugin" in found["fix"]


def test_check_names_a_missing_namespace(steppe: Steppe, testbed: Testbed) -> None:
    register(steppe, testbed.kubeconfig, "absent")
    found = findings(steppe)
    assert found["namespace"]["fix"] == "kubectl create namespace absent"


def test_check_names_each_missing_permission(steppe: Steppe, testbed: Testbed, namespace: str, tmp_path: Path) -> None:
    allowed = [*permissions.RULES, *permissions.NETWORK_RULES]
    rules = [rule for rule in allowed if "secrets" not in rule["resources"]]
    limited = testbed.account(namespace, rules, tmp_path)
    register(steppe, limited, namespace)
    found = findings(steppe)["permissions"]
    assert found["outcome"] == "failed"
    assert found["sentence"] == "these credentials may not get secrets, create secrets, delete secrets"
    assert "steppe cluster role -c lab | kubectl apply -f -" in found["fix"]


def test_the_printed_role_is_sufficient(steppe: Steppe, testbed: Testbed, namespace: str, tmp_path: Path) -> None:
    import yaml

    register(steppe, testbed.kubeconfig, namespace)
    printed = steppe("cluster", "role", "-c", "lab").out
    role = yaml.safe_load(printed)
    assert role["metadata"]["namespace"] == namespace
    testbed.kubectl("apply", "-f", "-", given=printed)
    limited = testbed.account(namespace, role["rules"], tmp_path)
    assert steppe("cluster", "delete", "-c", "lab", "--yes").code == 0
    register(steppe, limited, namespace)
    assert findings(steppe, "--quick")["permissions"]["outcome"] == "ok"


def test_an_unreachable_cluster_is_a_one_sentence_error(
    steppe: Steppe, testbed: Testbed, namespace: str, tmp_path: Path
) -> None:
    dead = tmp_path / "dead"
    text = testbed.kubectl("config", "view", "--raw", "--flatten", "-o", "json")
    content = json.loads(text)
    content["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    dead.write_text(json.dumps(content))
    register(steppe, dead, namespace)
    found = findings(steppe)["API server"]
    assert found["outcome"] == "failed"
    assert "cannot be reached" in found["sentence"]


def test_a_cloud_cluster_is_opened_with_a_token_from_its_cloud(
    steppe: Steppe, testbed: Testbed, namespace: str, project: Path, google: GoogleCloud, tmp_path: Path
) -> None:
    """The fake of Google returns the testbed's address and, at the sign-in, a token that its API server accepts."""
    config = json.loads(testbed.account(namespace, permissions.RULES, tmp_path).read_text())
    cluster = config["clusters"][0]["cluster"]
    google.endpoint = cluster["server"].removeprefix("https://")
    google.authority = cluster["certificate-authority-data"]
    google.token = config["users"][0]["user"]["token"]
    where = ("--namespace", namespace)
    assert steppe("cluster", "create", "-f", "small_cluster", "-n", "cloud", "--provider", "gke", *where).code == 0
    reachable = registry.find("cloud")
    with Kube(reachable.kubeconfig, reachable.context, reachable.namespace, reachable.name) as kube:
        assert kube.listed("Pod") == []
    # kubectl takes the same file.
    words = ["kubectl", f"--kubeconfig={reachable.kubeconfig}", "get", "pods", "-n", namespace, "-o", "name"]
    done = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_deleting_a_cloud_cluster_deletes_its_disks(
    steppe: Steppe,
    testbed: Testbed,
    namespace: str,
    project: Path,
    google: GoogleCloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fake of Google's cloud presents the testbed as its cluster; an administrator's token opens it."""
    if not testbed.is_ours:
        pytest.skip("nothing is emptied but the testbed")
    # Running experiments of other tests are hidden from this one.
    monkeypatch.setattr(naming, "MANAGER", namespace)
    testbed.kubectl("create", "serviceaccount", "admin", "-n", namespace)
    binding = f"{namespace}-admin"
    account = f"--serviceaccount={namespace}:admin"
    testbed.kubectl("create", "clusterrolebinding", binding, "--clusterrole=cluster-admin", account)
    try:
        config = json.loads(testbed.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        cluster = config["clusters"][0]["cluster"]
        google.endpoint = cluster["server"].removeprefix("https://")
        google.authority = cluster["certificate-authority-data"]
        google.token = testbed._token(namespace, "admin")
        assert steppe("cluster", "create", "-f", "small_cluster", "-n", "cloud", "--provider", "gke").code == 0
        theirs, ours = claim("theirs", {}), claim("ours", {naming.MANAGED_BY: namespace})
        testbed.apply(theirs, ours, namespace=namespace)
        answer = steppe("cluster", "delete", "-c", "cloud", "--yes")
        assert answer.code == 0, answer.err
        assert "deletes the disks of 1 experiment" in answer.out
        assert "note" not in answer.out
        left = [each["metadata"]["name"] for each in testbed.objects("persistentvolumeclaims", namespace)]
        assert left == ["theirs"]
        assert google.clusters == {}
    finally:
        testbed.kubectl("delete", "clusterrolebinding", binding)


def claim(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
