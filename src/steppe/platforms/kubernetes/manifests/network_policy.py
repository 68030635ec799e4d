"""The NetworkPolicy of an experiment: which Pods of the cluster may connect to its Pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steppe.platforms.kubernetes.manifests import kuberay, naming
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan

Json = dict[str, Any]


def is_wanted(plan: ManifestPlan) -> bool:
    """Whether the experiment has a NetworkPolicy."""
    return plan.pods.network_policy is not False


def network_policy(plan: ManifestPlan, metadata: Json) -> Json:
    """Lets the experiment's own Pods connect to each other on its run mode's ports, and everybody to the status port.

    Clients reach the status server through the API server, whose addresses differ between clusters and cannot be
    selected; its token and its own limits guard that port. Outgoing connections are not limited.
    """
    rules: list[Json] = [_open_to_all(DOOR_PORT)]
    own_pods = [{"podSelector": {"matchLabels": {naming.RUN: plan.name}}}]
    match plan.spec.run_mode:
        case "async":
            rules.append({"from": own_pods, "ports": [_port(LEARNER_PORT)]})
        case "distributed":
            # Ray chooses most of its ports itself, so all ports are open between these Pods.
            rules.append({"from": own_pods})
    if plan.engine == "kuberay":
        # The operator may be in any namespace, or outside of the cluster's Pods; Ray demands a token at this port.
        rules.append(_open_to_all(kuberay.DASHBOARD_PORT))
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": {naming.RUN: plan.name}},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }


def _open_to_all(port: int) -> Json:
    return {"ports": [_port(port)]}


def _port(number: int) -> Json:
    return {"port": number, "protocol": "TCP"}
