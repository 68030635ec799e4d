"""The Pod specs: containers, volumes and variables, with the additions of the experiment's and the cluster's spec."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from steppe.files.bundles import FOLDER_VARIABLE
from steppe.images import standard_name
from steppe.platforms.kubernetes.agreement import (
    CARRIED,
    MODULES,
    POOL_TOKENS,
    PREFIX,
    RESULTS,
    SPEC,
    SPEC_KEY,
    STATUS_TOKEN,
    TOKENS,
)
from steppe.platforms.kubernetes.manifests import naming
from steppe.platforms.kubernetes.manifests.pod_groups import PodGroup, quantity
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT, RAY_PORT

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan

Json = dict[str, Any]
USER = 1000
GRACE_SECONDS = 60
PATIENCE = 900.0
READER_SECONDS = 900
"""The lifetime in seconds of a reader that nobody deletes."""
SCRATCH = "/tmp"
"""The folder that every Pod may write to: its HOME, for the files of Ray and other libraries."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "STEPPE_CORES")


def pod_template(plan: ManifestPlan, group: PodGroup) -> Json:
    """The template from which the Job of a group makes its Pods."""
    labels = plan.labels | {naming.ROLE: group.role, naming.START: plan.start}
    metadata: Json = {"labels": labels}
    if plan.pods.annotations:
        metadata["annotations"] = plan.pods.annotations
    container, volumes = _container(plan, group), _volumes(plan, group)
    _secure(plan, group.image, container, volumes)
    spec = _pod(plan, [container, *_sidecars(plan, group)], volumes)
    grace = plan.pods.grace_seconds or GRACE_SECONDS
    return {"metadata": metadata, "spec": spec | {"terminationGracePeriodSeconds": grace}}


def reader_pod(plan: ManifestPlan, role: str = "reader") -> Json:
    """A Pod with one small container that reads the results; an `eraser` removes them from object storage."""
    environment = {f"{PREFIX}EXPERIMENT": plan.spec.name, "PYTHONUNBUFFERED": "1"} | (plan.pods.env or {})
    is_stored = plan.pods.results is not None
    container = {
        "name": role,
        # The driver's image can read what the driver wrote, and may be the only image that the cluster has.
        "image": _image(plan, plan.pods.driver.image),
        "command": command_of(role),
        "env": _variables(_store(plan) | environment),
        **_secrets(plan if is_stored else None),
        "ports": [_port("door", DOOR_PORT)],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi" if is_stored else "128Mi"},
            "limits": {"cpu": "1000m", "memory": "512Mi" if is_stored else "256Mi"},
        },
        "volumeMounts": [
            {"name": "results", "mountPath": RESULTS, **({} if is_stored else {"readOnly": True})},
            {"name": "tokens", "mountPath": TOKENS, "readOnly": True},
            *(plan.pods.volume_mounts or []),
        ],
        **_pull_policy(plan),
    }
    volumes = [_results(plan), _tokens(plan, (STATUS_TOKEN,)), *(plan.pods.volumes or [])]
    _secure(plan, plan.pods.driver.image, container, volumes)
    spec = _pod(plan, [container], volumes) | ({} if is_stored else _near_other_readers(plan))
    return spec | {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": READER_SECONDS,
        "terminationGracePeriodSeconds": 1,
    }


def _near_other_readers(plan: ManifestPlan) -> Json:
    """Prefers the node of other readers, since most disks can be mounted on one node only."""
    labels = {naming.RUN: plan.name, naming.ROLE: "reader"}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}}


def module_key(path: str) -> str:
    """The ConfigMap key of a module; few characters are allowed in keys, so a digest keeps them unique."""
    name = re.sub(r"[^-._a-zA-Z0-9]", "_", path)
    return f"module-{hashlib.sha256(path.encode()).hexdigest()[:8]}-{name}"[:253]


def _pod(plan: ManifestPlan, containers: list[Json], volumes: list[Json]) -> Json:
    pods = plan.pods
    user = USER if pods.user is None else pods.user
    spec: Json = {
        # No Pod needs the Kubernetes API, so an intruder must not get a token for it either.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsUser": user,
            "fsGroup": user,
            **({"runAsGroup": user, "runAsNonRoot": True} if user else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
        "volumes": volumes,
    }
    if pods.service_account is not None:
        spec["serviceAccountName"] = pods.service_account
    if pods.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pods.image_pull_secrets]
    if pods.node_selector:
        spec["nodeSelector"] = pods.node_selector
    if pods.tolerations:
        spec["tolerations"] = pods.tolerations
    if pods.priority_class is not None:
        spec["priorityClassName"] = pods.priority_class
    return spec


def _container(plan: ManifestPlan, group: PodGroup) -> Json:
    is_driver = group.role == "driver"
    mounts = [
        {"name": "experiment", "mountPath": SPEC, "readOnly": True},
        {"name": "tokens", "mountPath": TOKENS, "readOnly": True},
        *([{"name": "results", "mountPath": RESULTS}] if is_driver else []),
        *([{"name": "modules", "mountPath": MODULES, "readOnly": True}] if plan.modules else []),
        *([{"name": "carried", "mountPath": CARRIED, "readOnly": True}] if _gets_files(plan, group) else []),
        *([{"name": "memory", "mountPath": "/dev/shm"}] if _uses_ray(plan) else []),
        *(plan.pods.volume_mounts or []),
    ]
    return {
        "name": group.role,
        "image": _image(plan, group.image),
        "command": command_of(group.role),
        **({"workingDir": MODULES} if plan.modules else {}),
        "env": _variables(_environment(plan, group)) + _pod_field_variables(),
        **_secrets(plan),
        **({"ports": _ports(plan)} if is_driver else {}),
        "resources": group.resources,
        "volumeMounts": mounts,
        # The driver writes its last status there; if it died before, the end of its output explains why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_pull_policy(plan),
    }


def _environment(plan: ManifestPlan, group: PodGroup) -> dict[str, str]:
    own = {
        "EXPERIMENT": plan.spec.name,
        "HEAD": plan.name,
        "MEMBERS": str(group.members),
        "CPUS": f"{group.cpus:g}",
        "GPUS": str(group.devices),
        "MEMORY": str(int(group.memory * 2**30)),
        "GENERATION": plan.generation,
        "START": plan.start,
        "RUN_MODE": plan.spec.run_mode,
        "PATIENCE": f"{plan.pods.patience or PATIENCE:g}",
    }
    general = {
        "PYTHONUNBUFFERED": "1",
        # The user may have no home directory in the image.
        "HOME": SCRATCH,
        **{name: str(group.threads) for name in THREADS},
    }
    if _gets_files(plan, group):
        general[FOLDER_VARIABLE] = CARRIED
    if group.role == "driver":
        # Kept with the results, so that the next Pod of the run need not compile its programs again.
        general["STEPPE_CACHE"] = f"{RESULTS}/.compiled"
        general |= _store(plan)
        own |= {"HAS_SIDECARS": "1"} if plan.pods.sidecars else {}
    return {f"{PREFIX}{name}": value for name, value in own.items()} | general | (plan.pods.env or {})


def _store(plan: ManifestPlan) -> dict[str, str]:
    """The variables that tell a Pod the place of results in object storage, if they are there."""
    if plan.pods.results is None:
        return {}
    # The libraries of object stores look for their own files in HOME.
    return {f"{PREFIX}STORE": plan.pods.results, f"{PREFIX}HEAD": plan.name, "HOME": SCRATCH}


def _secrets(plan: ManifestPlan | None) -> Json:
    names = (plan.pods.env_from_secrets or ()) if plan is not None else ()
    return {"envFrom": [{"secretRef": {"name": name}} for name in names]} if names else {}


def _pod_field_variables() -> list[Json]:
    fields = {"NAME": "metadata.name", "IP": "status.podIP", "NODE": "spec.nodeName"}
    return [
        {"name": f"{PREFIX}{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]


def _volumes(plan: ManifestPlan, group: PodGroup) -> list[Json]:
    is_driver = group.role == "driver"
    pool_token = [POOL_TOKENS[plan.spec.run_mode]] if plan.spec.run_mode in POOL_TOKENS else []
    spec_item = [{"key": SPEC_KEY, "path": SPEC_KEY}]
    volumes: list[Json] = [
        {"name": "experiment", "configMap": {"name": plan.name, "items": spec_item}},
        # Only the driver has the token for everything: a worker runs a simulator, which may be anybody's code.
        _tokens(plan, (*([STATUS_TOKEN] if is_driver else []), *pool_token)),
    ]
    if is_driver:
        volumes.append(_results(plan))
    if plan.modules:
        items = [{"key": module_key(path), "path": path} for path in plan.modules]
        volumes.append({"name": "modules", "configMap": {"name": plan.name, "items": items}})
    if _gets_files(plan, group):
        sources = [{"configMap": {"name": name}} for name in plan.carried]
        volumes.append({"name": "carried", "projected": {"sources": sources}})
    if _uses_ray(plan):
        # Ray keeps its messages in /dev/shm, which has only 64 MB by default.
        size = quantity(plan.spec.ray.object_store + 0.1)
        volumes.append({"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    return [*volumes, *(plan.pods.volumes or [])]


def _results(plan: ManifestPlan) -> Json:
    if plan.pods.results is not None:
        # The driver copies its results from here to object storage.
        limit = {} if plan.pods.storage is None else {"sizeLimit": quantity(plan.pods.storage)}
        return {"name": "results", "emptyDir": limit}
    return {"name": "results", "persistentVolumeClaim": {"claimName": f"{plan.name}-results"}}


def _tokens(plan: ManifestPlan, keys: tuple[str, ...]) -> Json:
    items = [{"key": key, "path": key} for key in keys]
    return {"name": "tokens", "secret": {"secretName": f"{plan.name}-tokens", "items": items, "defaultMode": 0o440}}


def _sidecars(plan: ManifestPlan, group: PodGroup) -> list[Json]:
    """The user's own containers, in all Pods that open environments."""
    # A driver needs an environment even if only workers act: for its spaces, and for evaluations.
    given = (plan.pods.sidecars or []) if group.role != "server" else []
    return [{"name": f"sidecar-{number}"} | each for number, each in enumerate(given)]


def _ports(plan: ManifestPlan) -> list[Json]:
    more = {"distributed": [_port("ray", RAY_PORT)], "async": [_port("learner", LEARNER_PORT)]}
    return [_port("door", DOOR_PORT), *more.get(plan.spec.run_mode, [])]


def _gets_files(plan: ManifestPlan, group: PodGroup) -> bool:
    """Whether the Pods of a group get the large files: only Pods that learn do; others get all from the learner."""
    return bool(plan.files) and (group.role == "driver" or _uses_ray(plan))


def _uses_ray(plan: ManifestPlan) -> bool:
    return plan.spec.run_mode == "distributed"


def _image(plan: ManifestPlan, own: str | None) -> str:
    return own or plan.pods.image or standard_name()


def command_of(role: str) -> list[str]:
    """The command of a container of this role."""
    # The images of Debian and Ubuntu, on which a simulator's own may be based, have no "python".
    return ["python3", "-P", "-m", "steppe.platforms.kubernetes.pod.roles", role]


def _variables(values: dict[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _port(name: str, number: int) -> Json:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _pull_policy(plan: ManifestPlan) -> Json:
    return {} if plan.pods.image_pull_policy is None else {"imagePullPolicy": plan.pods.image_pull_policy}


def _secure(plan: ManifestPlan, own_image: str | None, container: Json, volumes: list[Json]) -> None:
    """Drops all privileges of a container, makes its root file system read-only and mounts a `/tmp`.

    A simulator in an image of its own may write beside itself, so that image is read-only only if the spec says so.
    """
    security: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    asked = plan.pods.read_only_root
    if own_image is None if asked is None else asked:
        security["readOnlyRootFilesystem"] = True
        if not any(mount["mountPath"].rstrip("/") == SCRATCH for mount in container["volumeMounts"]):
            container["volumeMounts"].append({"name": "steppe-tmp", "mountPath": SCRATCH})
            volumes.append({"name": "steppe-tmp", "emptyDir": {}})
    container["securityContext"] = security
