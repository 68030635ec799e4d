"""All manifests are valid by Kubernetes' own schemas, from the oldest available version to the newest.

They begin with 1.25; tests/kubernetes/test_old_server.py asks a server of 1.20.
"""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions

from steppe.platforms.kubernetes.agreement import TOKEN_KEYS
from steppe.platforms.kubernetes.manifests import permissions
from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan, reader, render
from steppe.specs.running.kubernetes import KubernetesSpec

MODES = ("single", "multi-threaded", "distributed", "async")
OLDEST, NEWEST = all_versions()[0], all_versions()[-1]
# Earlier schemas demand fields of each rule of a podFailurePolicy that only one of the rules may have.
FIRST_SOUND = "1.29.0"
POD = {"cpus": 1.5, "memory": 2.5, "gpus": 1, "cpu_limit": 3, "image": "registry.example.com/team/other:1"}
EVERYTHING: dict[str, Any] = {
    "engine": "jobs",
    "image": "registry.example.com/team/steppe:1",
    "image_pull_policy": "Always",
    "image_pull_secrets": ["registry"],
    "driver": POD,
    "worker": POD,
    "server": POD,
    "storage": 1.5,
    "storage_class": "fast",
    "access_mode": "ReadWriteOncePod",
    "results": "s3://bucket/experiments",
    "grace_seconds": 30,
    "patience": 60,
    "service_account": "runner",
    "node_selector": {"pool": "research"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "priority_class": "high",
    "queue": "team-queue",
    "env": {"A": "1"},
    "env_from_secrets": ["keys"],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    "sidecars": [{"image": "registry.example.com/team/simulator:7", "ports": [{"containerPort": 5555}]}],
    "labels": {"team": "red"},
    "annotations": {"note": "x"},
    "network_policy": True,
    "read_only_root": True,
    "user": 2000,
}


def all_of(plan: ManifestPlan) -> list[dict[str, Any]]:
    tokens = dict.fromkeys(TOKEN_KEYS, "secret-0123456789")
    return [
        *render(plan, owner_uid="uid", tokens=tokens),
        reader(plan, owner_uid="uid"),
        permissions.role(plan.namespace),
    ]


@pytest.mark.parametrize("version", [FIRST_SOUND, NEWEST])
@pytest.mark.parametrize("mode", MODES)
def test_manifests_of_every_run_mode_are_valid(planned, mode, version):
    for manifest in all_of(planned(run_mode=mode, modules={"worlds/mine.py": "x = 1\n"})):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("mode", MODES)
def test_printed_manifests_are_valid_for_every_server(planned, mode, version):
    for manifest in render(planned(run_mode=mode), for_any_server=True):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("without", ["results", None])
@pytest.mark.parametrize("mode", MODES)
def test_manifests_with_every_field_are_valid(planned, mode, without):
    said = {name: value for name, value in EVERYTHING.items() if name != without}
    for manifest in all_of(planned(run_mode=mode, kubernetes=said)):
        kubernetes_validate.validate(manifest, NEWEST, strict=True)


def test_the_test_data_has_every_field():
    assert set(EVERYTHING) == set(KubernetesSpec.model_fields)


def test_validation_finds_an_unknown_field(planned):
    job = copy.deepcopy(render(planned())[-1])
    job["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePulPolicy"):
        kubernetes_validate.validate(job, NEWEST, strict=True)
