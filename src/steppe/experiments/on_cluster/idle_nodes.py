"""A notice if an experiment uses only one node of its cluster."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from steppe.errors import ClusterError

if TYPE_CHECKING:
    from steppe.clusters._base import Reachable
    from steppe.specs.experiment import ExperimentSpec

SINGLE_POD = ("single", "multi-threaded")
"""The run modes that use one Pod."""
MOST_NODES = 10
"""How many nodes are listed; only whether there is more than one matters."""
KEEP_OUT = ("NoSchedule", "NoExecute")


def notice_of(spec: ExperimentSpec, cluster: str) -> str:
    """A sentence if nodes of the cluster will be idle; "" if there is one node, or the nodes cannot be listed."""
    from steppe.clusters import registry

    if spec.run_mode not in SINGLE_POD or not registry.knows(cluster):
        return ""
    reachable = registry.find(cluster)
    if reachable.is_owned:
        nodes, many = reachable.spec.num_nodes, f"the {reachable.spec.num_nodes} nodes"
    else:
        nodes, many = _nodes_for_pods(reachable), "the nodes"
    if nodes < 2:
        return ""
    return (
        f'run mode "{spec.run_mode}" is one Pod, so that only one of {many} of cluster "{cluster}" has something to do'
    )


def _nodes_for_pods(reachable: Reachable) -> int:
    """How many of the first nodes take any Pod; 0 if these credentials may not list nodes."""
    from steppe.platforms.kubernetes.client.kubeapi import Kube

    with (
        contextlib.suppress(ClusterError),
        Kube(reachable.kubeconfig, reachable.context, reachable.namespace, reachable.name) as kube,
    ):
        answer = kube.ask("GET", f"/api/v1/nodes?limit={MOST_NODES}")
        if answer.code == 200:
            return sum(_takes_pods(node) for node in json.loads(answer.body)["items"])
    return 0


def _takes_pods(node: dict[str, Any]) -> bool:
    spec = node.get("spec") or {}
    keeps_out = any(taint.get("effect") in KEEP_OUT for taint in spec.get("taints") or ())
    return not spec.get("unschedulable") and not keeps_out
