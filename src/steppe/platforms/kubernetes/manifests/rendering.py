"""An experiment as Kubernetes objects: pure functions, so that the same experiment always has the same manifests."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from steppe.errors import UserError
from steppe.files.bundles import Packed
from steppe.platforms.kubernetes.agreement import FAILED_FOR_GOOD, REPLACED, SPEC_KEY, TOKEN_KEYS
from steppe.platforms.kubernetes.manifests import kuberay, naming, network_policy
from steppe.platforms.kubernetes.manifests.pod_groups import PodGroup, engine_of, pod_groups, quantity
from steppe.platforms.kubernetes.manifests.pod_spec import module_key, pod_template, reader_pod
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT, RAY_PORT
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.kubernetes import Engine, KubernetesSpec, joined

Json = dict[str, Any]
LARGEST_CONFIG_MAP = 1_000_000
"""The most bytes in a ConfigMap, with some room for its metadata."""
PIECE = 900_000
"""The bytes in each piece of a large file."""
LARGEST_FILES = 20_000_000
"""The most compressed bytes of all large files: a cluster keeps them in the memory of its API server."""
RETRIES = 20
"""How often a driver's Pod may die without a report; each time another resumes from the last checkpoint."""
RETRIES_OF_POOL = 2**31 - 1
"""Kubernetes counts all restarts of all members since the start; only the driver can tell how many are too many."""


@dataclass(frozen=True)
class ManifestPlan:
    """Everything that decides about the manifests of an experiment."""

    spec: ExperimentSpec
    project: str
    namespace: str
    cluster: ClusterSpec | None = None
    modules: Mapping[str, str | bytes] = field(default_factory=dict)
    """The user's own Python files that the experiment names, and the files that these read: path -> content."""
    files: Sequence[Packed] = ()
    """The large files that the experiment names."""
    generation: str = "1"
    """A new generation begins the experiment anew, and keeps its old results beside the new ones."""
    start: str = "1"
    """The number of this start or resume; a Pod of an earlier one trains no more once that is over."""
    origin: str = ""
    """From where it was started, for people: user, machine and folder."""

    @cached_property
    def pods(self) -> KubernetesSpec:
        """The Pod settings of the experiment, completed by those of the cluster."""
        return joined(self.cluster.kubernetes if self.cluster is not None else None, self.spec.kubernetes)

    @cached_property
    def engine(self) -> Engine:
        """The engine that makes the Pods."""
        return engine_of(self.spec, self.pods)

    @cached_property
    def pod_groups(self) -> list[PodGroup]:
        """The groups of equal Pods, the driver's first."""
        return pod_groups(self.spec, self.pods, self.cluster)

    @cached_property
    def name(self) -> str:
        """The beginning of all objects' names."""
        return naming.run_name(self.project, self.spec.name)

    @cached_property
    def carried(self) -> dict[str, dict[str, bytes]]:
        """The ConfigMaps of large files: name -> data. The name contains a digest of the content."""
        digest = hashlib.sha256()
        parts = [(name, data) for file in self.files for name, data in file.files.items()]
        for name, data in parts:
            digest.update(f"{name} {len(data)}\n".encode() + data)
        maps: list[dict[str, bytes]] = []
        for name, data in parts:
            if not maps or sum(map(len, maps[-1].values())) + len(data) > LARGEST_CONFIG_MAP:
                maps.append({})
            maps[-1][name] = data
        stem = f"{self.name}-files-{digest.hexdigest()[: naming.DIGEST]}"
        return {f"{stem}-{number}": data for number, data in enumerate(maps)}

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of all objects."""
        return (self.pods.labels or {}) | naming.labels_of(self.project, self.spec.name)


def render(
    plan: ManifestPlan,
    *,
    owner_uid: str | None = None,
    tokens: Mapping[str, str] | None = None,
    for_any_server: bool = False,
) -> list[Json]:
    """All manifests in the order of creation: the root, then the objects that it owns.

    `owner_uid` is the root's, once it is known: without it nothing is owned. The Secret is left out without `tokens`,
    which have TOKEN_KEYS. `for_any_server` leaves out an optional field that an old kubectl refuses.
    """
    owned = [*claims(plan), service(plan), *network_policies(plan), *workloads(plan)]
    for job in owned if for_any_server else ():
        job["spec"].pop("podFailurePolicy", None)
    owned[:0] = carried(plan)
    if tokens is not None:
        owned.insert(0, secret(plan, tokens))
    return [root(plan), *(with_owner(plan, each, owner_uid) for each in owned)]


def root(plan: ManifestPlan) -> Json:
    """The ConfigMap with the experiment and the user's modules; it owns all other objects."""
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
    # Also set without large files, to overwrite the names of an earlier start.
    annotations[naming.CARRIED] = " ".join(plan.carried)
    content: Json = {"data": data} | ({"binaryData": _base64(binary)} if binary else {})
    return _manifest("ConfigMap", _metadata(plan, plan.name) | {"annotations": annotations}, **content)


def carried(plan: ManifestPlan) -> list[Json]:
    """The ConfigMaps with the large files that the experiment names."""
    return [
        _manifest("ConfigMap", _metadata(plan, name, naming.FILES), immutable=True, binaryData=_base64(data))
        for name, data in plan.carried.items()
    ]


def secret(plan: ManifestPlan, tokens: Mapping[str, str]) -> Json:
    """The Secret with the tokens of the Pods and their clients."""
    assert set(tokens) == set(TOKEN_KEYS)
    return _manifest("Secret", _metadata(plan, f"{plan.name}-tokens"), type="Opaque", stringData=dict(tokens))


def claims(plan: ManifestPlan) -> list[Json]:
    """The claim of a disk for results, unless they are in object storage."""
    pods = plan.pods
    if pods.results is not None:
        return []
    spec: Json = {
        "accessModes": [pods.access_mode or "ReadWriteOnce"],
        "resources": {"requests": {"storage": quantity(pods.storage or 10.0)}},
    }
    if pods.storage_class is not None:
        spec["storageClassName"] = pods.storage_class
    return [_manifest("PersistentVolumeClaim", _metadata(plan, f"{plan.name}-results"), spec=spec)]


def service(plan: ManifestPlan) -> Json:
    """The driver's name in the cluster, which stays when its Pod is replaced."""
    ports = {"door": DOOR_PORT, "learner": LEARNER_PORT, "ray": RAY_PORT}
    needed = {"async": ("door", "learner"), "distributed": ("door", "ray")}.get(plan.spec.run_mode, ("door",))
    spec = {
        "clusterIP": "None",
        # Workers look for the driver from the start, and it has no readiness besides answering them.
        "publishNotReadyAddresses": True,
        "selector": {naming.RUN: plan.name, naming.ROLE: "driver"},
        "ports": [{"name": name, "port": ports[name], "protocol": "TCP"} for name in needed],
    }
    return _manifest("Service", _metadata(plan, plan.name), spec=spec)


def network_policies(plan: ManifestPlan) -> list[Json]:
    """The NetworkPolicy, unless the experiment or its cluster does without one."""
    return [network_policy.network_policy(plan, _metadata(plan, plan.name))] if network_policy.is_wanted(plan) else []


def workloads(plan: ManifestPlan) -> list[Json]:
    """The objects that make the Pods: a RayJob if KubeRay is asked for, else Jobs."""
    if plan.engine == "kuberay":
        return [kuberay.ray_job(plan, _workload_metadata(plan, plan.name))]
    return jobs(plan)


def jobs(plan: ManifestPlan) -> list[Json]:
    """The driver's Job, and one for each group of Pods that work for it."""
    return [_driver_job(plan, group) if group.role == "driver" else _pool_job(plan, group) for group in plan.pod_groups]


def reader(plan: ManifestPlan, *, owner_uid: str | None = None, role: str = "reader", suffix: str = "") -> Json:
    """A short-lived Pod that shows the results when nothing runs, or as `eraser` removes them from object storage.

    `suffix` distinguishes readers that exist at the same time.
    """
    name = "-".join(part for part in (plan.name, role, suffix) if part)
    return with_owner(plan, _manifest("Pod", _metadata(plan, name, role), spec=reader_pod(plan, role)), owner_uid)


def with_owner(plan: ManifestPlan, manifest: Json, uid: str | None) -> Json:
    """The same object, owned by the root, so that Kubernetes deletes it with the root."""
    if uid is None:
        return manifest
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": plan.name, "uid": uid}
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner]}}


def as_yaml(manifests: list[Json], comment: str = "") -> str:
    """The manifests as YAML, for `kubectl apply -f -` and for git."""
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


def _driver_job(plan: ManifestPlan, group: PodGroup) -> Json:
    # "Never" makes a new Pod for each try, which may be on another node.
    job = _job(plan, group, "Never", RETRIES)
    # Servers before 1.26 ignore this and restart a driver that has failed for good, which then fails again soon: it
    # reports its end only to Pods that are connected.
    job["spec"]["podFailurePolicy"] = {
        "rules": [
            {"action": "FailJob", "onExitCodes": _exit_code(FAILED_FOR_GOOD)},
            # Replacements are not counted: a long run may move often, and one that makes no progress ends by itself.
            {"action": "Ignore", "onExitCodes": _exit_code(REPLACED)},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }
    return job


def _exit_code(code: int) -> Json:
    return {"containerName": "driver", "operator": "In", "values": [code]}


def _pool_job(plan: ManifestPlan, group: PodGroup) -> Json:
    # Without "completions": members end together, and one that has ended well is not replaced.
    return _job(plan, group, "OnFailure", RETRIES_OF_POOL)


def _job(plan: ManifestPlan, group: PodGroup, restart: str, retries: int) -> Json:
    template = pod_template(plan, group)
    template["spec"]["restartPolicy"] = restart
    spec = {
        "parallelism": group.count,
        **({"completions": 1} if group.role == "driver" else {}),
        "backoffLimit": retries,
        "template": template,
    }
    metadata = _workload_metadata(plan, f"{plan.name}-{group.name}", group.role)
    return _manifest("Job", metadata, "batch/v1", spec=spec)


def _workload_metadata(plan: ManifestPlan, name: str, role: str | None = None) -> Json:
    """The metadata of objects that make Pods, and that Kueue may hold back."""
    metadata = _metadata(plan, name, role)
    metadata["labels"] |= {naming.START: plan.start}
    if plan.pods.queue is not None:
        metadata["labels"] |= {naming.KUEUE_QUEUE: plan.pods.queue}
    return metadata


def _metadata(plan: ManifestPlan, name: str, role: str | None = None) -> Json:
    labels = plan.labels | ({naming.ROLE: role} if role is not None else {})
    return {"name": name, "namespace": plan.namespace, "labels": labels}


def _manifest(kind: str, metadata: Json, api_version: str = "v1", **content: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def _base64(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: b64encode(content).decode() for key, content in data.items()}
