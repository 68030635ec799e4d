"""An experiment as Kubernetes objects: pure, so that the same experiment always gives the same manifests."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from steppe.errors import UserError
from steppe.files.bundles import Packed
from steppe.platforms.kubernetes.agreement import FAILED_FOR_GOOD, REPLACED, SPEC_KEY, TOKEN_KEYS
from steppe.platforms.kubernetes.manifests import kuberay, naming, network_policy
from steppe.platforms.kubernetes.manifests.pod_spec import module_key, pod_template, reader_pod
from steppe.platforms.kubernetes.manifests.shapes import Crowd, crowds, engine_of, quantity
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT, RAY_PORT
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.kubernetes import Engine, KubernetesSpec, joined

Json = dict[str, Any]
LARGEST_CONFIG_MAP = 1_000_000
"""What a ConfigMap may hold, in bytes, with some room for the rest of it."""
PIECE = 900_000
"""How large a part of a larger file is, in bytes."""
LARGEST_FILES = 20_000_000
"""What large files may take in all, compressed, in bytes: a cluster keeps them in the memory of its API server."""
RETRIES = 20
"""How often a driver's Pod may end without a word of its own; each time another goes on from the last checkpoint."""
RETRIES_OF_CREW = 2**31 - 1
"""Kubernetes counts the restarts of all members over all of a run: only the driver can tell how many are too many."""


@dataclass(frozen=True)
class Plan:
    """All that decides what an experiment looks like on a cluster."""

    spec: ExperimentSpec
    project: str
    namespace: str
    cluster: ClusterSpec | None = None
    modules: Mapping[str, str | bytes] = field(default_factory=dict)
    """The user's own Python files that the experiment names, and what these read: path -> text, or bytes."""
    files: Sequence[Packed] = ()
    """Large files that the experiment names."""
    generation: str = "1"
    """Another one begins the experiment anew, its old results kept beside."""
    start: str = "1"
    """Another one for every time it is started or resumed: a Pod that finds its own start over trains no more."""
    origin: str = ""
    """From where it was started, for people: user, machine and folder."""

    @cached_property
    def pods(self) -> KubernetesSpec:
        """How Pods are made: as the experiment says, then as the cluster says."""
        return joined(self.cluster.kubernetes if self.cluster is not None else None, self.spec.kubernetes)

    @cached_property
    def engine(self) -> Engine:
        """What makes the Pods."""
        return engine_of(self.spec, self.pods)

    @cached_property
    def crowds(self) -> list[Crowd]:
        """Who takes part."""
        return crowds(self.spec, self.pods, self.cluster)

    @cached_property
    def name(self) -> str:
        """What all objects' names begin with."""
        return naming.run_name(self.project, self.spec.name)

    @cached_property
    def carried(self) -> dict[str, dict[str, bytes]]:
        """The ConfigMaps of large files: name -> what it holds. Another content has another name."""
        digest = hashlib.sha256()
        parts = [(name, data) for file in self.files for name, data in file.files.items()]
        for name, data in parts:
            digest.update(f"{name} {len(data)}\n".encode() + data)
        shelves: list[dict[str, bytes]] = []
        for name, data in parts:
            if not shelves or sum(map(len, shelves[-1].values())) + len(data) > LARGEST_CONFIG_MAP:
                shelves.append({})
            shelves[-1][name] = data
        stem = f"{self.name}-files-{digest.hexdigest()[: naming.DIGEST]}"
        return {f"{stem}-{number}": shelf for number, shelf in enumerate(shelves)}

    @cached_property
    def labels(self) -> dict[str, str]:
        """What all objects are labelled with."""
        return (self.pods.labels or {}) | naming.labels_of(self.project, self.spec.name)


def render(
    plan: Plan,
    *,
    owner_uid: str | None = None,
    tokens: Mapping[str, str] | None = None,
    for_any_server: bool = False,
) -> list[Json]:
    """Everything, in the order in which it is made: the root, then what belongs to it.

    `owner_uid` is the root's, once it is known: without it nothing is owned. The Secret is left out without `tokens`,
    which have TOKEN_KEYS. `for_any_server` leaves out what an old kubectl refuses, and nothing depends on.
    """
    owned = [*claims(plan), service(plan), *network_policies(plan), *workloads(plan)]
    for job in owned if for_any_server else ():
        job["spec"].pop("podFailurePolicy", None)
    owned[:0] = carried(plan)
    if tokens is not None:
        owned.insert(0, secret(plan, tokens))
    return [root(plan), *(with_owner(plan, each, owner_uid) for each in owned)]


def root(plan: Plan) -> Json:
    """The ConfigMap with the experiment and the user's modules; what belongs to the experiment ends with it."""
    data = {SPEC_KEY: plan.spec.model_dump_json(indent=2) + "\n"}
    data |= {module_key(path): text for path, text in plan.modules.items() if isinstance(text, str)}
    binary = {module_key(path): content for path, content in plan.modules.items() if isinstance(content, bytes)}
    size = sum(len(text.encode()) for text in data.values()) + sum(map(len, binary.values()))
    if size > LARGEST_CONFIG_MAP:
        largest = max(plan.modules, key=lambda path: len(plan.modules[path]), default=SPEC_KEY)
        raise UserError(
            f"the experiment and its own modules take {size / 1e6:.1f} MB, and a cluster takes 1 MB; install the "
            f"modules and what they read (the largest is {largest}) in an image of your own and name it in "
            "kubernetes.image, or mount them by kubernetes.volumes and kubernetes.volume_mounts"
        )
    annotations = {naming.EXPERIMENT: plan.spec.name, naming.PROJECT: plan.project, naming.ENGINE: plan.engine}
    if plan.origin:
        annotations[naming.ORIGIN] = plan.origin
    # Also where there are none: those of an earlier start are not to be looked for again.
    annotations[naming.CARRIED] = " ".join(plan.carried)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(plan, plan.name) | {"annotations": annotations},
        "data": data,
        **({"binaryData": {key: _base64(content) for key, content in binary.items()}} if binary else {}),
    }


def carried(plan: Plan) -> list[Json]:
    """The ConfigMaps with large files that the experiment names."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(plan, name, role=naming.FILES),
            "immutable": True,
            "binaryData": {key: _base64(data) for key, data in held.items()},
        }
        for name, held in plan.carried.items()
    ]


def secret(plan: Plan, tokens: Mapping[str, str]) -> Json:
    """What the Pods, and those who may talk to them, know."""
    assert set(tokens) == set(TOKEN_KEYS)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(plan, f"{plan.name}-tokens"),
        "type": "Opaque",
        "stringData": dict(tokens),
    }


def claims(plan: Plan) -> list[Json]:
    """The disk for results, unless they are in object storage."""
    return [claim(plan)] if plan.pods.results is None else []


def claim(plan: Plan) -> Json:
    """The disk for results."""
    pods = plan.pods
    spec: Json = {
        "accessModes": [pods.access_mode or "ReadWriteOnce"],
        "resources": {"requests": {"storage": quantity(pods.storage or 10.0)}},
    }
    if pods.storage_class is not None:
        spec["storageClassName"] = pods.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(plan, f"{plan.name}-results"),
        "spec": spec,
    }


def service(plan: Plan) -> Json:
    """The driver's name in the cluster, which stays when its Pod is replaced."""
    ports = {"door": DOOR_PORT, "learner": LEARNER_PORT, "ray": RAY_PORT}
    needed = {"async": ("door", "learner"), "distributed": ("door", "ray")}.get(plan.spec.run_mode, ("door",))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan, plan.name),
        "spec": {
            "clusterIP": "None",
            # Workers look for the driver from the start, and it is never "ready" in any other sense than answering.
            "publishNotReadyAddresses": True,
            "selector": {naming.RUN: plan.name, naming.ROLE: "driver"},
            "ports": [{"name": name, "port": ports[name], "protocol": "TCP"} for name in needed],
        },
    }


def network_policies(plan: Plan) -> list[Json]:
    """Who may connect to the Pods, unless the experiment or its cluster does without."""
    return [network_policy.network_policy(plan, _metadata(plan, plan.name))] if network_policy.is_wanted(plan) else []


def workloads(plan: Plan) -> list[Json]:
    """What makes the Pods: a RayJob where KubeRay is asked for, else Jobs."""
    if plan.engine == "kuberay":
        return [kuberay.ray_job(plan, _work_metadata(plan, plan.name))]
    return jobs(plan)


def jobs(plan: Plan) -> list[Json]:
    """The driver's Job, and one for each kind of Pod that works for it."""
    return [_driver_job(plan, crowd) if crowd.role == "driver" else _crew_job(plan, crowd) for crowd in plan.crowds]


def reader(plan: Plan, *, owner_uid: str | None = None, role: str = "reader", suffix: str = "") -> Json:
    """A short-lived Pod that shows the results when nothing runs, or as `eraser` removes them from object storage.

    `suffix` tells those apart that are there at once.
    """
    name = "-".join(part for part in (plan.name, role, suffix) if part)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(plan, name, role=role),
        "spec": reader_pod(plan, role),
    }
    return with_owner(plan, pod, owner_uid)


def with_owner(plan: Plan, manifest: Json, uid: str | None) -> Json:
    """The same object, which ends with the root."""
    if uid is None:
        return manifest
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": plan.name, "uid": uid}
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner]}}


def as_yaml(manifests: list[Json], comment: str = "") -> str:
    """For `kubectl apply -f -`, and for git."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    text = yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, width=120, explicit_start=True)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + text


def fingerprint(manifests: list[Json]) -> str:
    """Tells whether two renderings are the same."""
    return hashlib.sha256(json.dumps(manifests, sort_keys=True).encode()).hexdigest()


def _driver_job(plan: Plan, crowd: Crowd) -> Json:
    # A Pod of its own for each try: the new one may stand on another node.
    job = _job(plan, crowd, "Never", RETRIES)
    # Servers before 1.26 do not know this and begin such a driver anew, which ends the same way, and soon: what is over
    # already is only told to those who are there.
    job["spec"]["podFailurePolicy"] = {
        "rules": [
            {"action": "FailJob", "onExitCodes": _exit_code(FAILED_FOR_GOOD)},
            # Not counted: what comes to nothing time after time ends by itself, and a long run may be moved often.
            {"action": "Ignore", "onExitCodes": _exit_code(REPLACED)},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }
    return job


def _exit_code(code: int) -> Json:
    return {"containerName": "driver", "operator": "In", "values": [code]}


def _crew_job(plan: Plan, crowd: Crowd) -> Json:
    # Without "completions": members end together, and one that has ended well is not replaced.
    return _job(plan, crowd, "OnFailure", RETRIES_OF_CREW)


def _job(plan: Plan, crowd: Crowd, restart: str, retries: int) -> Json:
    template = pod_template(plan, crowd)
    template["spec"]["restartPolicy"] = restart
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _work_metadata(plan, f"{plan.name}-{crowd.name}", role=crowd.role),
        "spec": {
            "parallelism": crowd.count,
            **({"completions": 1} if crowd.role == "driver" else {}),
            "backoffLimit": retries,
            "template": template,
        },
    }


def _work_metadata(plan: Plan, name: str, role: str | None = None) -> Json:
    """Of what makes Pods, and may have to wait its turn."""
    metadata = _metadata(plan, name, role)
    metadata["labels"] |= {naming.START: plan.start}
    if plan.pods.queue is not None:
        metadata["labels"] |= {naming.KUEUE_QUEUE: plan.pods.queue}
    return metadata


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _metadata(plan: Plan, name: str, role: str | None = None) -> Json:
    labels = plan.labels | ({naming.ROLE: role} if role is not None else {})
    return {"name": name, "namespace": plan.namespace, "labels": labels}
