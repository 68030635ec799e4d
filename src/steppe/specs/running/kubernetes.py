"""How an experiment's Pods are made: written in a cluster's spec for all that run there, or in an experiment's own."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from steppe.specs._base import Count, Natural, NonNegative, Positive, Spec

Text = Annotated[str, Field(min_length=1)]
Json = dict[str, Any]
Engine = Literal["jobs", "kuberay"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]
_STORE = re.compile(r"(?P<kind>[a-z][a-z0-9+.-]*)://(?P<bucket>[^/?#@:\s]+)(?P<path>(/[^/?#\s]+)*)/?")
NO_STORES = ("http", "https", "ftp", "file", "local", "memory")
"""URLs that are well-formed, and keep nothing that another Pod could find."""


class PodSpec(Spec):
    """What one kind of Pod asks for; what is left out follows from the run mode."""

    cpus: Positive | None = None
    """How many CPUs the Pod is promised; its threads agree with it. Also its limit, unless cpu_limit says otherwise."""
    memory: Positive | None = None
    """How much memory it gets, in GB: promised, and the limit at which it is ended."""
    gpus: NonNegative | None = None
    """How many GPUs it gets; below 1 it is a share, and Pods or workers share a GPU."""
    cpu_limit: Positive | None = None
    """How many CPUs it may use at most, where that is more than it is promised."""
    image: Text | None = None
    """The image of this kind of Pod, such as a simulator's own with Steppe installed; without it the image of all."""


class KubernetesSpec(Spec):
    """How Pods are made. What an experiment says comes before what its cluster says; maps of the two are joined."""

    engine: Engine | None = None
    """What makes the Pods: `jobs` (without it) needs nothing on the cluster; `kuberay` has the KubeRay operator make
    those of run mode distributed, the only one with a Ray."""
    image: Text | None = None
    """The image that Pods run; without it Steppe's own of this version."""
    image_pull_policy: PullPolicy | None = None
    """When a node fetches the image; without it Kubernetes decides by the tag."""
    image_pull_secrets: list[Text] | None = None
    """Names of Secrets that open a private registry."""
    driver: PodSpec = PodSpec()
    """The Pod that trains, or that orders and learns in run modes distributed and async."""
    worker: PodSpec = PodSpec()
    """Each worker's Pod, in run modes distributed and async."""
    server: PodSpec = PodSpec()
    """Each parameter server's Pod, in run mode distributed."""
    results: Text | None = None
    """Object storage for the results instead of a disk of the cluster: `s3://bucket/path`, `gs://bucket/path`."""
    storage: Positive | None = None
    """How much disk the results get, in GB; 10 without it. With `results`, how much of its node's a Pod may use."""
    storage_class: Text | None = None
    """The cluster's kind of disk for results; without it its default."""
    access_mode: AccessMode | None = None
    """How that disk may be mounted; ReadWriteOnce without it, since one Pod writes."""
    grace_seconds: Count | None = None
    """How many seconds a Pod that is asked to end has to save a checkpoint; 60 without it."""
    patience: Positive | None = None
    """After how many seconds a worker of run mode async that does not find its learner again begins anew; 900 without
    it. A Pod waits for its driver for a day, and says so each time as many seconds have passed."""
    service_account: Text | None = None
    """The ServiceAccount that Pods run as; they never get its token."""
    node_selector: dict[str, str] | None = None
    """Labels that a node must have."""
    tolerations: list[Json] | None = None
    """Taints that Pods put up with, as Kubernetes writes them."""
    priority_class: Text | None = None
    """The PriorityClass of all Pods."""
    queue: Text | None = None
    """The Kueue queue in which Jobs wait their turn."""
    env: dict[str, str] | None = None
    """Variables of all containers; secrets belong into a Secret, which `env_from_secrets` names."""
    env_from_secrets: list[Text] | None = None
    """Names of Secrets whose keys become variables of all containers."""
    volumes: list[Json] | None = None
    """More volumes, as Kubernetes writes them."""
    volume_mounts: list[Json] | None = None
    """Where containers see them, as Kubernetes writes them."""
    sidecars: list[Json] | None = None
    """Containers beside the driver and each worker, as Kubernetes writes them: a simulator of a remote environment."""
    labels: dict[str, str] | None = None
    """More labels of everything that is made."""
    annotations: dict[str, str] | None = None
    """More annotations of all Pods."""
    network_policy: bool | None = None
    """Whether a NetworkPolicy keeps the cluster's other Pods from those of the experiment; true without it."""
    read_only_root: bool | None = None
    """Whether containers may write only to their volumes and to `/tmp`. Without it true, except for `driver`, `worker`
    and `server` with an `image` of their own. `sidecars` say it themselves."""
    user: Natural | None = None
    """The number of the user that Pods run as and that owns the results; 1000 without it."""

    @field_validator("results")
    @classmethod
    def _is_a_store(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = _STORE.fullmatch(url)
        if parts is None or parts["kind"] in NO_STORES or {".", ".."} & set(parts["path"].split("/")):
            raise ValueError(
                f'"{url}" is no object storage; write s3://bucket/path or gs://bucket/path, without credentials, which '
                "Pods get by env_from_secrets or service_account"
            )
        return url.rstrip("/")

    @field_validator("volumes", "tolerations", "volume_mounts", "sidecars")
    @classmethod
    def _are_named(cls, parts: list[Json] | None, info: Any) -> list[Json] | None:
        needed = {"volumes": "name", "volume_mounts": "mountPath", "sidecars": "image"}.get(info.field_name)
        for part in parts or ():
            if needed is not None and not isinstance(part.get(needed), str):
                raise ValueError(f'each of {info.field_name} needs "{needed}", as Kubernetes writes them')
        return parts


def joined(first: KubernetesSpec | None, second: KubernetesSpec | None) -> KubernetesSpec:
    """What the two say together, `second` before `first`: maps are joined, anything else is taken from one of them."""
    if first is None or second is None:
        return second or first or KubernetesSpec()
    fields: dict[str, Any] = {}
    for name in KubernetesSpec.model_fields:
        below, above = getattr(first, name), getattr(second, name)
        if isinstance(below, PodSpec) and isinstance(above, PodSpec):
            fields[name] = below.model_copy(update=_given(above))
        elif isinstance(below, dict) and isinstance(above, dict):
            fields[name] = below | above
        else:
            fields[name] = below if above is None else above
    return KubernetesSpec(**fields)


def _given(pod: PodSpec) -> dict[str, Any]:
    return {name: value for name in PodSpec.model_fields if (value := getattr(pod, name)) is not None}
