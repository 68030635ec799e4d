"""Where experiments are: on which cluster, under which name, and what they look like there."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steppe.errors import ClusterError, ProjectError, StateError, UserError
from steppe.experiments.run_folder.store import RunFolder
from steppe.files.durable import write_atomically
from steppe.specs.loading import limited_reading
from steppe.specs.loading.files import PROJECT_FILE, find_project, read_project, read_spec_file

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable
    from steppe.platforms.kubernetes.client.remote_run import RemoteRun
    from steppe.platforms.kubernetes.manifests.rendering import Plan
    from steppe.specs.experiment import ExperimentSpec
    from steppe.specs.running.cluster import ClusterSpec

PLACE_FILE = "cluster.json"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where an experiment is."""

    cluster: str
    """As `steppe cluster list` names it."""
    namespace: str
    name: str
    """What its objects' names begin with."""
    generation: int = 1
    start: int = 0
    owns_cluster: bool = False
    """Whether the cluster was made for this experiment alone, and ends with it."""
    project: str = ""
    """What its project was called when it was first started, which its objects' names follow from."""
    has_begun: bool = True
    """Whether its last start went through: one that was cut short may have left Pods."""


def place_of(folder: RunFolder) -> Place | None:
    """Where the experiment is; None where it is on this machine."""
    path = folder.path / PLACE_FILE
    if not limited_reading.exists(path):
        return None
    data = read_spec_file(path)
    known = {field.name for field in dataclasses.fields(Place)}
    try:
        place = Place(**{key: value for key, value in data.items() if key in known})
        if any(type(getattr(place, each.name)).__name__ != str(each.type) for each in dataclasses.fields(Place)):
            raise TypeError
        return place
    except (TypeError, AttributeError):
        raise StateError(
            f"{path} does not say where the experiment is; delete it to have the experiment here"
        ) from None


def placed(folder: RunFolder) -> Place:
    """Where it is; an error where that is on this machine."""
    place = place_of(folder)
    if place is None:
        raise StateError(f'experiment "{folder.name}" is on no cluster')
    return place


def plan(folder: RunFolder, spec: ExperimentSpec, reachable: Reachable | None, place: Place | None = None) -> Plan:
    """What the experiment looks like on a cluster."""
    from steppe.experiments.on_cluster import named_files
    from steppe.experiments.on_cluster.user_modules import user_modules
    from steppe.platforms.kubernetes.manifests.rendering import Plan
    from steppe.specs.running.kubernetes import joined

    root = find_project(folder.path)
    cluster = reachable.spec if reachable is not None else spec.cluster
    # All of it in the experiment's own spec: whoever reads its results later need not know the cluster's.
    pods = joined(cluster.kubernetes if cluster is not None else None, spec.kubernetes)
    spec = spec.model_copy(update={"platform": "kubernetes", "kubernetes": pods, "cluster": cluster})
    namespace = place.namespace if place is not None else reachable.namespace if reachable is not None else "default"
    folders = [Path.cwd(), *([root] if root else [])]
    named_files.check(spec)
    return Plan(
        spec=spec,
        project=(place.project if place is not None else "") or _project_name(folder, root),
        namespace=namespace,
        cluster=cluster,
        modules=user_modules(spec, folders) | named_files.small_files(spec, folders),
        files=named_files.large_files(spec),
        generation=str(place.generation if place is not None else 1),
        start=str(place.start if place is not None else 1),
        origin=f"{getpass.getuser()}@{socket.gethostname()}:{folder.path}",
    )


def manifest(folder: RunFolder, cluster: str | None, namespace: str | None) -> str:
    """The experiment's objects as YAML; the tokens that its Pods share are never printed."""
    from steppe.clusters import registry
    from steppe.platforms.kubernetes.agreement import TOKEN_KEYS
    from steppe.platforms.kubernetes.manifests.rendering import as_yaml, render

    place = place_of(folder)
    spec, name = folder.spec(), place.cluster if place is not None else None
    if cluster is not None:
        name, described = _chosen(cluster, folder)
        if described is not None and not registry.knows(name):
            spec, name = spec.model_copy(update={"cluster": described}), None
    made = plan(folder, spec, registry.find(name) if name is not None else None, place)
    if namespace is not None:
        made = dataclasses.replace(made, namespace=namespace)
    literals = " ".join(f"--from-literal={key}=$(openssl rand -hex 32)" for key in TOKEN_KEYS)
    comment = (
        f"Experiment {folder.name}. Its Pods share tokens, which are made once:\n"
        f"  kubectl create secret generic {made.name}-tokens --namespace {made.namespace} {literals}\n"
        f"  kubectl label secret {made.name}-tokens --namespace {made.namespace} steppe/run={made.name}\n"
        "Then all of it is applied, on the server's side, since kubectl's own way has no room for large files:\n"
        "  kubectl apply --server-side -f FILE\n"
        "All of it is removed again by:\n"
        f"  kubectl delete all,configmap,secret,pvc,networkpolicy --namespace {made.namespace} "
        f"--selector steppe/run={made.name}"
    )
    return as_yaml(render(made, for_any_server=True), comment)


def settle_place(folder: RunFolder, spec: ExperimentSpec, cluster: str | None, tell: Tell) -> Place:
    """Where the experiment is to run: where it is already, on `cluster`, or on the one that its spec describes.

    `cluster` is the name of one that is there, or a file in configs/clusters/ that describes one.
    """
    from steppe.clusters import lifecycle as clusters
    from steppe.clusters import registry
    from steppe.experiments.on_cluster.own_cluster import name_for

    place, in_file = place_of(folder), None
    if cluster is not None:
        cluster, in_file = _chosen(cluster, folder)
    if place is not None:
        if cluster not in (None, place.cluster):
            raise StateError(
                f'experiment "{folder.name}" is on cluster "{place.cluster}", and its results too; delete it there '
                "first, or make another experiment"
            )
        return place
    if cluster is None and spec.cluster is None:
        raise UserError(
            f'experiment "{folder.name}" has platform "kubernetes" and no cluster; name one: '
            f"{folder.ways.start_on('CLUSTER')}"
        )
    own = spec.cluster.name if spec.cluster is not None else None
    name = cluster or own or name_for(folder.name)
    wanted = in_file if in_file is not None else spec.cluster
    name = name if wanted is None else registry.hyphenated(name)
    # Remembered with the cluster: a start that is cut short while it is made must not leave it without its owner.
    made_for = "" if cluster is not None else str(folder.path)
    # What cannot be started is not to cost a cluster.
    described = registry.read(name).spec if registry.knows(name) else wanted
    plan(folder, spec.model_copy(update={"cluster": described}), None)
    reachable = clusters.ensure(name, wanted, tell, made_for)
    from steppe.platforms.kubernetes.manifests.naming import run_name

    project = _project_name(folder, find_project(folder.path))
    owns = reachable.is_owned and registry.read(name).made_for == str(folder.path)
    name = run_name(project, spec.name)
    return Place(reachable.name, reachable.namespace, name, owns_cluster=owns, project=project)


def write_place(folder: RunFolder, place: Place) -> None:
    """Notes in the run folder where the experiment is."""
    write_atomically(folder.path / PLACE_FILE, json.dumps(dataclasses.asdict(place), indent=1) + "\n")


@contextlib.contextmanager
def reach(place: Place) -> Iterator[tuple[Reachable, RemoteRun]]:
    """(its cluster, the experiment on it), for as long as the connection is needed."""
    from steppe.clusters import registry
    from steppe.platforms.kubernetes.client.kubeapi import Kube
    from steppe.platforms.kubernetes.client.remote_run import RemoteRun

    if not registry.knows(place.cluster):
        raise ClusterError(unknown(place))
    reachable = registry.find(place.cluster)
    with Kube(reachable.kubeconfig, reachable.context, place.namespace, reachable.name) as kube:
        yield reachable, RemoteRun(kube, place.name)


def unknown(place: Place) -> str:
    """What is to be said of an experiment whose cluster is not registered any more."""
    return (
        f'cluster "{place.cluster}", where it is, is not known here any more; register it again under that name '
        "(steppe cluster create), or delete the experiment"
    )


def _chosen(cluster: str, folder: RunFolder) -> tuple[str, ClusterSpec | None]:
    """(the name of the cluster that a user chose, what a file in configs/clusters/ says of it).

    One that is there comes before a file. The file may be named with "-" for its "_", or by its path.
    """
    from steppe.clusters import registry
    from steppe.spec_files import read_cluster
    from steppe.specs.loading.files import SUFFIXES, locate_config, shown_path

    if registry.knows(cluster):
        return registry.hyphenated(cluster), None
    root = find_project(folder.path)
    folders = [root / "configs" / "clusters"] if root is not None else []
    if "/" in cluster or cluster.endswith(SUFFIXES):
        folders = [Path.cwd(), *([root] if root is not None else []), *folders]
    spellings = dict.fromkeys([cluster, cluster.replace("-", "_"), registry.hyphenated(cluster)])
    path = next((path for each in spellings if (path := locate_config(each, folders)) is not None), None)
    if path is None:
        return cluster, None
    spec = read_cluster(read_spec_file(path), shown_path(path))
    return registry.hyphenated(spec.name or path.stem), spec


def _project_name(folder: RunFolder, root: Path | None) -> str:
    if root is None:
        return folder.path.parent.name
    about = read_project(root)
    if not isinstance(about, dict):
        raise ProjectError(
            f"{root / PROJECT_FILE} does not describe a project; write it anew with: steppe init --force"
        )
    return str(about.get("name") or root.name)
