"""The Pods themselves: containers, volumes, variables, and what the cluster's or experiment's spec adds to them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from steppe.files.bundles import FOLDER_VARIABLE
from steppe.images import standard_name
from steppe.platforms.kubernetes.agreement import (
    CARRIED,
    CREW_TOKENS,
    DOOR_TOKEN,
    MODULES,
    PREFIX,
    RESULTS,
    SPEC,
    SPEC_KEY,
    TOKENS,
)
from steppe.platforms.kubernetes.manifests import naming
from steppe.platforms.kubernetes.manifests.shapes import Crowd, quantity
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT, RAY_PORT

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.manifests.rendering import Plan

Json = dict[str, Any]
USER = 1000
GRACE_SECONDS = 60
PATIENCE = 900.0
READER_SECONDS = 900
"""A reader that nobody has deleted ends by itself."""
SCRATCH = "/tmp"
"""What every Pod may write to: its HOME, the files of Ray and of other libraries."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "STEPPE_CORES")


def pod_template(plan: Plan, crowd: Crowd) -> Json:
    """What a Job of this crowd makes Pods from."""
    labels = plan.labels | {naming.ROLE: crowd.role, naming.START: plan.start}
    metadata: Json = {"labels": labels}
    if plan.pods.annotations:
        metadata["annotations"] = plan.pods.annotations
    container, volumes = _container(plan, crowd), _volumes(plan, crowd)
    _secure(plan, crowd.image, container, volumes)
    spec = _pod(plan, [container, *_sidecars(plan, crowd)], volumes)
    grace = plan.pods.grace_seconds or GRACE_SECONDS
    return {"metadata": metadata, "spec": spec | {"terminationGracePeriodSeconds": grace}}


def reader_pod(plan: Plan, role: str = "reader") -> Json:
    """One small container that sees the results and may not change them; an `eraser` removes them from their store."""
    environment = {f"{PREFIX}EXPERIMENT": plan.spec.name, "PYTHONUNBUFFERED": "1"} | (plan.pods.env or {})
    is_stored = plan.pods.results is not None
    container = {
        "name": role,
        # What the driver has written, its image can read; it may be the only one that the cluster has.
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
    volumes = [_results(plan), _tokens(plan, (DOOR_TOKEN,)), *(plan.pods.volumes or [])]
    _secure(plan, plan.pods.driver.image, container, volumes)
    spec = _pod(plan, [container], volumes) | ({} if is_stored else _near_other_readers(plan))
    return spec | {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": READER_SECONDS,
        "terminationGracePeriodSeconds": 1,
    }


def _near_other_readers(plan: Plan) -> Json:
    """Most disks can only be mounted on one node at a time."""
    labels = {naming.RUN: plan.name, naming.ROLE: "reader"}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}}


def module_key(path: str) -> str:
    """The key of a ConfigMap under which a module's text is: few characters may be in it, a digest tells them apart."""
    name = re.sub(r"[^-._a-zA-Z0-9]", "_", path)
    return f"module-{hashlib.sha256(path.encode()).hexdigest()[:8]}-{name}"[:253]


def _pod(plan: Plan, containers: list[Json], volumes: list[Json]) -> Json:
    pods = plan.pods
    user = USER if pods.user is None else pods.user
    spec: Json = {
        # Nothing in a Pod talks to Kubernetes, so nothing that gets into one can.
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


def _container(plan: Plan, crowd: Crowd) -> Json:
    is_driver = crowd.role == "driver"
    mounts = [
        {"name": "experiment", "mountPath": SPEC, "readOnly": True},
        {"name": "tokens", "mountPath": TOKENS, "readOnly": True},
        *([{"name": "results", "mountPath": RESULTS}] if is_driver else []),
        *([{"name": "modules", "mountPath": MODULES, "readOnly": True}] if plan.modules else []),
        *([{"name": "carried", "mountPath": CARRIED, "readOnly": True}] if _gets_files(plan, crowd) else []),
        *([{"name": "memory", "mountPath": "/dev/shm"}] if _uses_ray(plan) else []),
        *(plan.pods.volume_mounts or []),
    ]
    return {
        "name": crowd.role,
        "image": _image(plan, crowd.image),
        "command": command_of(crowd.role),
        **({"workingDir": MODULES} if plan.modules else {}),
        "env": _variables(_environment(plan, crowd)) + _pod_facts(),
        **_secrets(plan),
        **({"ports": _ports(plan)} if is_driver else {}),
        "resources": crowd.resources,
        "volumeMounts": mounts,
        # The driver writes its last status there; of one that died, the end of its output is as good.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_pull_policy(plan),
    }


def _environment(plan: Plan, crowd: Crowd) -> dict[str, str]:
    own = {
        "EXPERIMENT": plan.spec.name,
        "HEAD": plan.name,
        "MEMBERS": str(crowd.members),
        "CPUS": f"{crowd.cpus:g}",
        "GPUS": str(crowd.devices),
        "MEMORY": str(int(crowd.memory * 2**30)),
        "GENERATION": plan.generation,
        "START": plan.start,
        "RUN_MODE": plan.spec.run_mode,
        "PATIENCE": f"{plan.pods.patience or PATIENCE:g}",
    }
    general = {
        "PYTHONUNBUFFERED": "1",
        # The user may have no home in the image.
        "HOME": SCRATCH,
        **{name: str(crowd.threads) for name in THREADS},
    }
    if _gets_files(plan, crowd):
        general[FOLDER_VARIABLE] = CARRIED
    if crowd.role == "driver":
        # Kept with the results, so that what goes on in another Pod need not be compiled again.
        general["STEPPE_CACHE"] = f"{RESULTS}/.compiled"
        general |= _store(plan)
        own |= {"HAS_SIDECARS": "1"} if plan.pods.sidecars else {}
    return {f"{PREFIX}{name}": value for name, value in own.items()} | general | (plan.pods.env or {})


def _store(plan: Plan) -> dict[str, str]:
    """What tells a Pod where results are stored, if they are."""
    if plan.pods.results is None:
        return {}
    # The libraries of object stores look for files of their own there.
    return {f"{PREFIX}STORE": plan.pods.results, f"{PREFIX}HEAD": plan.name, "HOME": SCRATCH}


def _secrets(plan: Plan | None) -> Json:
    names = (plan.pods.env_from_secrets or ()) if plan is not None else ()
    return {"envFrom": [{"secretRef": {"name": name}} for name in names]} if names else {}


def _pod_facts() -> list[Json]:
    fields = {"NAME": "metadata.name", "IP": "status.podIP", "NODE": "spec.nodeName"}
    return [
        {"name": f"{PREFIX}{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]


def _volumes(plan: Plan, crowd: Crowd) -> list[Json]:
    is_driver = crowd.role == "driver"
    crew_token = [CREW_TOKENS[plan.spec.run_mode]] if plan.spec.run_mode in CREW_TOKENS else []
    spec_item = [{"key": SPEC_KEY, "path": SPEC_KEY}]
    volumes: list[Json] = [
        {"name": "experiment", "configMap": {"name": plan.name, "items": spec_item}},
        # What reads and asks everything is only the driver's: a worker runs a simulator, which may be anybody's.
        _tokens(plan, (*([DOOR_TOKEN] if is_driver else []), *crew_token)),
    ]
    if is_driver:
        volumes.append(_results(plan))
    if plan.modules:
        items = [{"key": module_key(path), "path": path} for path in plan.modules]
        volumes.append({"name": "modules", "configMap": {"name": plan.name, "items": items}})
    if _gets_files(plan, crowd):
        sources = [{"configMap": {"name": name}} for name in plan.carried]
        volumes.append({"name": "carried", "projected": {"sources": sources}})
    if _uses_ray(plan):
        # Ray's messages lie here; what a Pod has by itself is 64 MB.
        size = quantity(plan.spec.ray.object_store + 0.1)
        volumes.append({"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    return [*volumes, *(plan.pods.volumes or [])]


def _results(plan: Plan) -> Json:
    if plan.pods.results is not None:
        # What the driver writes here is kept in the store.
        limit = {} if plan.pods.storage is None else {"sizeLimit": quantity(plan.pods.storage)}
        return {"name": "results", "emptyDir": limit}
    return {"name": "results", "persistentVolumeClaim": {"claimName": f"{plan.name}-results"}}


def _tokens(plan: Plan, keys: tuple[str, ...]) -> Json:
    items = [{"key": key, "path": key} for key in keys]
    return {"name": "tokens", "secret": {"secretName": f"{plan.name}-tokens", "items": items, "defaultMode": 0o440}}


def _sidecars(plan: Plan, crowd: Crowd) -> list[Json]:
    """Containers of the user's own, beside whoever opens environments."""
    # A driver whose workers act asks an environment for its spaces, and plays its evaluations in it.
    given = (plan.pods.sidecars or []) if crowd.role != "server" else []
    return [{"name": f"sidecar-{number}"} | each for number, each in enumerate(given)]


def _ports(plan: Plan) -> list[Json]:
    more = {"distributed": [_port("ray", RAY_PORT)], "async": [_port("learner", LEARNER_PORT)]}
    return [_port("door", DOOR_PORT), *more.get(plan.spec.run_mode, [])]


def _gets_files(plan: Plan, crowd: Crowd) -> bool:
    """Whether it is one of those that learn: workers that only act have what they need from the learner."""
    return bool(plan.files) and (crowd.role == "driver" or _uses_ray(plan))


def _uses_ray(plan: Plan) -> bool:
    return plan.spec.run_mode == "distributed"


def _image(plan: Plan, own: str | None) -> str:
    return own or plan.pods.image or standard_name()


def command_of(role: str) -> list[str]:
    """What a container of this role runs."""
    # A simulator's own image may have no "python": Debian's and Ubuntu's have not.
    return ["python3", "-P", "-m", "steppe.platforms.kubernetes.pod.roles", role]


def _variables(values: dict[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _port(name: str, number: int) -> Json:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _pull_policy(plan: Plan) -> Json:
    return {} if plan.pods.image_pull_policy is None else {"imagePullPolicy": plan.pods.image_pull_policy}


def _secure(plan: Plan, own_image: str | None, container: Json, volumes: list[Json]) -> None:
    """Takes all rights from a container that it does not need, and gives it a `/tmp` where it can write nowhere else.

    A simulator in an image of its own may write beside itself, so that such an image is only read where that is said.
    """
    security: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    asked = plan.pods.read_only_root
    if own_image is None if asked is None else asked:
        security["readOnlyRootFilesystem"] = True
        if not any(mount["mountPath"].rstrip("/") == SCRATCH for mount in container["volumeMounts"]):
            container["volumeMounts"].append({"name": "steppe-tmp", "mountPath": SCRATCH})
            volumes.append({"name": "steppe-tmp", "emptyDir": {}})
    container["securityContext"] = security
