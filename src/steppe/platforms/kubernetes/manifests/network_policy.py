"""The NetworkPolicy of an experiment: who in the cluster may connect to its Pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steppe.platforms.kubernetes.manifests import kuberay, naming
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.manifests.rendering import Plan

Json = dict[str, Any]


def is_wanted(plan: Plan) -> bool:
    """Whether the experiment has one."""
    return plan.pods.network_policy is not False


def network_policy(plan: Plan, metadata: Json) -> Json:
    """Lets the experiment's own Pods reach each other on the ports that its run mode uses, and anybody the door.

    The door is asked through the API server, whose addresses differ from cluster to cluster and cannot be selected: its
    token and its own limits guard it. What Pods connect to is not limited.
    """
    rules: list[Json] = [_open_to_all(DOOR_PORT)]
    own_pods = [{"podSelector": {"matchLabels": {naming.RUN: plan.name}}}]
    match plan.spec.run_mode:
        case "async":
            rules.append({"from": own_pods, "ports": [_port(LEARNER_PORT)]})
        case "distributed":
            # Ray chooses most of its ports itself.
            rules.append({"from": own_pods})
    if plan.engine == "kuberay":
        # The operator may be in any namespace, or outside of the cluster's Pods; Ray asks for a token there.
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
