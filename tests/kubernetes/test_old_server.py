"""A server of Kubernetes 1.20 silently drops unknown fields; no field that Steppe needs may be among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kube_testbed import Testbed

from steppe.files.bundles import Packed
from steppe.platforms.kubernetes.agreement import TOKEN_KEYS
from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan, reader, render
from steppe.spec_files import load_experiment

PODS: dict[str, Any] = {
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "node_selector": {"pool": "research"},
    "image_pull_secrets": ["registry"],
    "queue": "team-queue",
    "env_from_secrets": ["keys"],
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data"}],
    "sidecars": [{"image": "simulator:7"}],
    "service_account": "runner",
}
# Without it a driver that has failed for good is restarted, notices that, and ends at once (test_roles.py).
DISPENSABLE = {"spec.podFailurePolicy"}


@pytest.mark.parametrize("mode", ["single", "multi-threaded", "distributed", "async"])
def test_an_old_server_keeps_every_field_that_matters(
    testbed: Testbed, namespace: str, tmp_path: Path, mode: str
) -> None:
    given = {"name": "first", "environment": "CartPole-v1", "platform": "kubernetes", "run_mode": mode}
    spec = load_experiment(None, given | {"kubernetes": PODS}, [], tmp_path, options=False)
    files = [Packed("good.safetensors", 1, "0" * 64, (b"x",))]
    plan = ManifestPlan(spec, "project", namespace, modules={"mine.py": "x = 1\n", "level.bin": b"\xff"}, files=files)
    tokens = dict.fromkeys(TOKEN_KEYS, "secret-0123456789")
    lost: set[str] = set()
    testbed.kubectl("create", "serviceaccount", PODS["service_account"], "-n", namespace)
    for manifest in [*render(plan, owner_uid="uid", tokens=tokens), reader(plan, owner_uid="uid")]:
        # A dry run returns the kept fields; kubectl's own validation is off, since it would refuse unknown fields.
        words = ("create", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-")
        kept = json.loads(testbed.kubectl(*words, given=json.dumps(manifest)))
        if manifest["kind"] == "Secret":
            # The server keeps text from stringData as base64 in data.
            kept["stringData"] = manifest["stringData"]
        lost |= set(dropped(manifest, kept))
    # The testbed's server drops all of them; another server may be newer and know some.
    assert lost == DISPENSABLE or (lost < DISPENSABLE and not testbed.is_ours)


def dropped(sent: Any, kept: Any, path: str = "") -> list[str]:
    """The paths of all fields that were sent and not kept."""
    if isinstance(sent, dict):
        found = []
        for key, value in sent.items():
            where = f"{path}.{key}".lstrip(".")
            found += dropped(value, kept[key], where) if isinstance(kept, dict) and key in kept else [where]
        return found
    if isinstance(sent, list):
        if not isinstance(kept, list) or len(kept) < len(sent):
            return [path]
        return [each for number, part in enumerate(sent) for each in dropped(part, kept[number], f"{path}[{number}]")]
    return []
