"""Settings of an experiment's Pods, in the spec of a cluster or of the experiment."""

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
"""Schemes of URLs that are well-formed but no storage that other Pods can read."""


class PodSpec(Spec):
    """The resources and image of one kind of Pod; defaults follow from the run mode."""

    cpus: Positive | None = None
    """The number of CPUs that the Pod requests and fits its threads to. Also its limit, unless cpu_limit is given."""
    memory: Positive | None = None
    """The memory that it requests, in GB; also the limit at which it is ended."""
    gpus: NonNegative | None = None
    """The number of GPUs that it gets; below 1 it is a share, and Pods or workers share a GPU."""
    cpu_limit: Positive | None = None
    """The largest number of CPUs that it may use, if that is more than it requests."""
    image: Text | None = None
    """The image of this kind of Pod, such as a simulator's own with Steppe installed; by default the image of all."""


class KubernetesSpec(Spec):
    """Settings of Pods. An experiment's take precedence over its cluster's, and maps of the two are merged."""

    engine: Engine | None = None
    """The maker of the Pods: `jobs` (the default) needs nothing on the cluster; with `kuberay` the KubeRay operator
    makes those of run mode distributed, the only one with a Ray."""
    image: Text | None = None
    """The image that Pods run; by default Steppe's own of this version."""
    image_pull_policy: PullPolicy | None = None
    """The rule by which a node pulls the image; by default Kubernetes decides by the tag."""
    image_pull_secrets: list[Text] | None = None
    """Names of Secrets with access to a private registry."""
    driver: PodSpec = PodSpec()
    """The Pod that trains, or that coordinates and learns in run modes distributed and async."""
    worker: PodSpec = PodSpec()
    """Each worker's Pod, in run modes distributed and async."""
    server: PodSpec = PodSpec()
    """Each parameter server's Pod, in run mode distributed."""
    results: Text | None = None
    """Object storage for the results instead of a disk of the cluster: `s3://bucket/path`, `gs://bucket/path`."""
    storage: Positive | None = None
    """The size of the disk for results, in GB; 10 by default. With `results`, the part of its node's disk that a Pod
    may use."""
    storage_class: Text | None = None
    """The storage class of the disk for results; by default the cluster's."""
    access_mode: AccessMode | None = None
    """The access mode of that disk; by default ReadWriteOnce, since one Pod writes."""
    grace_seconds: Count | None = None
    """The seconds that a Pod has to save a checkpoint when it is asked to end; 60 by default."""
    patience: Positive | None = None
    """The seconds after which a worker of run mode async that does not find its learner again restarts; 900 by
    default. A Pod waits for its driver for a day, and logs that once in as many seconds."""
    service_account: Text | None = None
    """The ServiceAccount that Pods run as; they never get its token."""
    node_selector: dict[str, str] | None = None
    """Labels that a node must have."""
    tolerations: list[Json] | None = None
    """Taints that Pods tolerate, as Kubernetes writes them."""
    priority_class: Text | None = None
    """The PriorityClass of all Pods."""
    queue: Text | None = None
    """The Kueue queue in which Jobs wait."""
    env: dict[str, str] | None = None
    """Variables of all containers; secrets belong in a Secret that `env_from_secrets` names."""
    env_from_secrets: list[Text] | None = None
    """Names of Secrets whose keys become variables of all containers."""
    volumes: list[Json] | None = None
    """Additional volumes, as Kubernetes writes them."""
    volume_mounts: list[Json] | None = None
    """Their mounts in containers, as Kubernetes writes them."""
    sidecars: list[Json] | None = None
    """Containers beside the driver and each worker, as Kubernetes writes them: a simulator of a remote environment."""
    labels: dict[str, str] | None = None
    """Additional labels of all objects that are made."""
    annotations: dict[str, str] | None = None
    """Additional annotations of all Pods."""
    network_policy: bool | None = None
    """Whether a NetworkPolicy keeps the cluster's other Pods from those of the experiment; true by default."""
    read_only_root: bool | None = None
    """Whether containers may write only to their volumes and to `/tmp`; true by default, except for `driver`,
    `worker` and `server` with an `image` of their own. `sidecars` set it themselves."""
    user: Natural | None = None
    """The number of the user that Pods run as and that owns the results; 1000 by default."""

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
    """Merges two specs: maps are joined, and in other fields `second` takes precedence over `first`."""
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
