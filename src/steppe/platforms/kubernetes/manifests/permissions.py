"""The Role that a user needs in a namespace to run experiments there."""

from __future__ import annotations

from typing import Any

from steppe.specs.running.kubernetes import Engine

Json = dict[str, Any]
ROLE_NAME = "steppe-user"
RULES: list[Json] = [
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "create", "delete"]},
]
"""The rules of the Role; none of them is cluster-wide."""
NETWORK_RULES: list[Json] = [
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create", "delete"]},
]
"""Further rules, unless `kubernetes.network_policy` is false."""
KUBERAY_RULES: list[Json] = [
    {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["get", "list", "create", "delete"]},
]
"""Further rules for `kubernetes.engine: kuberay`."""


def role(namespace: str, engine: Engine | None = None, has_policy: bool = True) -> Json:
    """The manifest of the Role, for `kubectl apply -f -`."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ROLE_NAME, "namespace": namespace},
        "rules": _rules(engine, has_policy),
    }


def way_to_get_it(cluster: str, namespace: str) -> str:
    """How a user without the Role gets it, as a clause of an error."""
    return (
        f"an administrator runs: steppe cluster role -c {cluster} | kubectl apply -f -, and binds it with: "
        f"kubectl create rolebinding {ROLE_NAME} --role {ROLE_NAME} --user USER -n {namespace}"
    )


def needed(engine: Engine | None = None, has_policy: bool = True) -> list[tuple[str, str, str]]:
    """Every (verb, resource, API group) of the Role; a subresource is written `pods/proxy`."""
    return [
        (verb, resource, group)
        for rule in _rules(engine, has_policy)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def _rules(engine: Engine | None, has_policy: bool) -> list[Json]:
    return RULES + (NETWORK_RULES if has_policy else []) + (KUBERAY_RULES if engine == "kuberay" else [])
