"""Places an experiment on a cluster: chooses the cluster and makes its Kubernetes objects."""

from __future__ import annotations

import dataclasses
import getpass
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from steppe.errors import ProjectError, StateError, UserError
from steppe.experiments.on_cluster.address import ClusterAddress, address_of
from steppe.experiments.run_folder.store import RunFolder
from steppe.specs.loading.files import PROJECT_FILE, find_project, read_project, read_spec_file

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable
    from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan
    from steppe.specs.experiment import ExperimentSpec
    from steppe.specs.running.cluster import ClusterSpec

LONGEST_NAME = 40
"""The most characters of a cluster's name."""
Tell = Callable[[str], None]


def plan(
    folder: RunFolder, spec: ExperimentSpec, reachable: Reachable | None, address: ClusterAddress | None = None
) -> ManifestPlan:
    """The plan from which the experiment's Kubernetes objects are rendered."""
    from steppe.experiments.on_cluster import named_files
    from steppe.experiments.on_cluster.user_modules import user_modules
    from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan
    from steppe.specs.running.kubernetes import joined

    root = find_project(folder.path)
    cluster = reachable.spec if reachable is not None else spec.cluster
    # Written into the experiment's own spec, so that a reader of its results need not know the cluster's.
    pods = joined(cluster.kubernetes if cluster is not None else None, spec.kubernetes)
    spec = spec.model_copy(update={"platform": "kubernetes", "kubernetes": pods, "cluster": cluster})
    namespace = (
        address.namespace if address is not None else reachable.namespace if reachable is not None else "default"
    )
    folders = [Path.cwd(), *([root] if root else [])]
    named_files.check(spec)
    return ManifestPlan(
        spec=spec,
        project=(address.project if address is not None else "") or _project_name(folder, root),
        namespace=namespace,
        cluster=cluster,
        modules=user_modules(spec, folders) | named_files.small_files(spec, folders),
        files=named_files.large_files(spec),
        generation=str(address.generation if address is not None else 1),
        start=str(address.start if address is not None else 1),
        origin=f"{getpass.getuser()}@{socket.gethostname()}:{folder.path}",
    )


def manifest(folder: RunFolder, cluster: str | None, namespace: str | None) -> str:
    """The experiment's objects as YAML; the tokens that its Pods share are never printed."""
    from steppe.clusters import registry
    from steppe.platforms.kubernetes.agreement import TOKEN_KEYS
    from steppe.platforms.kubernetes.manifests.rendering import as_yaml, render

    address = address_of(folder)
    spec, name = folder.spec(), address.cluster if address is not None else None
    if cluster is not None:
        name, described = _chosen(cluster, folder)
        if described is not None and not registry.knows(name):
            spec, name = spec.model_copy(update={"cluster": described}), None
    made = plan(folder, spec, registry.find(name) if name is not None else None, address)
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


def name_for(experiment: str) -> str:
    """The name of a cluster that is made for an experiment and has no name of its own."""
    return ("steppe-" + re.sub(r"[^a-z0-9]+", "-", experiment.lower()))[:LONGEST_NAME].strip("-")


def settle_address(folder: RunFolder, spec: ExperimentSpec, cluster: str | None, tell: Tell) -> ClusterAddress:
    """The address where the experiment will run; its cluster is made first if it does not exist yet.

    An experiment stays on the cluster where it is. A new one goes to `cluster`, which is a cluster's name or a file in
    configs/clusters/, else to the cluster that its spec describes.
    """
    from steppe.clusters import lifecycle as clusters
    from steppe.clusters import registry

    address, in_file = address_of(folder), None
    if cluster is not None:
        cluster, in_file = _chosen(cluster, folder)
    if address is not None:
        if cluster not in (None, address.cluster):
            raise StateError(
                f'experiment "{folder.name}" is on cluster "{address.cluster}", and its results too; delete it there '
                "first, or make another experiment"
            )
        return address
    if cluster is None and spec.cluster is None:
        raise UserError(
            f'experiment "{folder.name}" has platform "kubernetes" and no cluster; name one: '
            f"{folder.ways.start_on('CLUSTER')}"
        )
    own = spec.cluster.name if spec.cluster is not None else None
    name = cluster or own or name_for(folder.name)
    wanted = in_file if in_file is not None else spec.cluster
    name = name if wanted is None else registry.hyphenated(name)
    # Stored with the cluster, so that it keeps its owner if this start is interrupted while the cluster is made.
    made_for = "" if cluster is not None else str(folder.path)
    # No cluster is made for an experiment that cannot be started.
    described = registry.read(name).spec if registry.knows(name) else wanted
    plan(folder, spec.model_copy(update={"cluster": described}), None)
    reachable = clusters.ensure(name, wanted, tell, made_for)
    from steppe.platforms.kubernetes.manifests.naming import run_name

    project = _project_name(folder, find_project(folder.path))
    owns = reachable.is_owned and registry.read(name).made_for == str(folder.path)
    name = run_name(project, spec.name)
    return ClusterAddress(reachable.name, reachable.namespace, name, owns_cluster=owns, project=project)


def _chosen(cluster: str, folder: RunFolder) -> tuple[str, ClusterSpec | None]:
    """(the name of the cluster that a user chose, its description in configs/clusters/ if there is one).

    An existing cluster comes before a file. The file may be named with "-" for its "_", or by its path.
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
