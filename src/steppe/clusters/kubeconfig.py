"""Existing clusters: a context of a kubeconfig file, registered under a name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from steppe.clusters._base import ObservedCluster, ProviderRequest, Record, Tell
from steppe.errors import UserError, reason_of
from steppe.specs.loading.suggestions import did_you_mean, quoted
from steppe.specs.running.cluster import ClusterSpec

NAME = "kubeconfig"
VARIABLE = "KUBECONFIG"


class Kubeconfig:
    """Registers contexts; it neither makes nor deletes a cluster."""

    name = NAME
    is_deletable = False

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """The file and the context: the given ones, else those that kubectl would use."""
        found = {path: read(path) for path in files(spec.kubeconfig)}
        currents = [content["current-context"] for content in found.values() if content.get("current-context")]
        context = spec.context or next(iter(currents), None)
        if context is None:
            raise UserError(f"{_listed(found)} has no current context; name one with --context")
        for path, content in found.items():
            if context in contexts(content):
                return {"kubeconfig": str(path), "context": context}
        known = [name for content in found.values() for name in contexts(content)]
        there = f"; it has {quoted(known)}" if known else ""
        raise UserError(f'no context "{context}" in {_listed(found)}{did_you_mean(context, known) or there}')

    def requests(self, record: Record) -> list[ProviderRequest]:
        """No requests: the cluster exists."""
        return []

    def create(self, record: Record, tell: Tell) -> None:
        """Does nothing: the cluster exists."""

    def look(self, record: Record) -> ObservedCluster:
        """Ready if the context is still in its file; the cluster itself is not asked."""
        path, context = Path(record.place["kubeconfig"]), record.place["context"]
        try:
            content = read(path)
        except UserError as error:
            return ObservedCluster(record.name, "gone", reason=str(error))
        if context not in contexts(content):
            return ObservedCluster(record.name, "gone", reason=f'{path} has no context "{context}" any more')
        return ObservedCluster(record.name, "ready", place=record.place)

    def discover(self) -> list[ObservedCluster]:
        """No clusters: a user's contexts are not shown until they are registered."""
        return []

    def delete(self, record: Record, tell: Tell) -> None:
        """Does nothing: the cluster stays."""

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """The user's own file."""
        return read(Path(record.place["kubeconfig"]))


def files(named: str | None = None) -> list[Path]:
    """The named file, else those that kubectl would read; only files that exist."""
    parts = [named] if named else os.environ.get(VARIABLE, "").split(os.pathsep)
    given = [Path(part).expanduser().absolute() for part in parts if part]
    candidates = given or [Path.home() / ".kube" / "config"]
    found = [path for path in candidates if path.is_file()]
    if not found:
        where = " and ".join(str(path) for path in candidates)
        raise UserError(f"there is no kubeconfig file at {where}; give its path with --kubeconfig or in {VARIABLE}")
    return found


def read(path: Path) -> dict[str, Any]:
    """The content of a kubeconfig file."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the kubeconfig {path}: {reason_of(error)}; check the path") from None
    except (UnicodeDecodeError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("contexts") or [], list):
        raise UserError(f"{path} is no kubeconfig; give another file with --kubeconfig")
    return content


def contexts(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The contexts of a kubeconfig by their names."""
    entries = [entry for entry in content.get("contexts") or [] if isinstance(entry, dict) and "name" in entry]
    return {entry["name"]: entry.get("context") or {} for entry in entries}


def namespace_of(content: dict[str, Any], context: str) -> str | None:
    """The namespace that a context names."""
    return contexts(content).get(context, {}).get("namespace")


def authority_of(content: dict[str, Any]) -> str | None:
    """The certificate authority of the first cluster, which identifies a cluster."""
    clusters = content.get("clusters") or [{}]
    return (clusters[0].get("cluster") or {}).get("certificate-authority-data")


def with_command(name: str, server: str, authority: str, arguments: list[str]) -> dict[str, Any]:
    """A kubeconfig without a secret for a cloud's cluster: a command gets a token whenever one is needed."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [
            {
                "name": name,
                "user": {
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1beta1",
                        "command": sys.executable,
                        # -P: modules in the current folder of kubectl must not be imported.
                        "args": ["-P", "-m", "steppe", *arguments],
                        "env": None,
                        "interactiveMode": "Never",
                        "provideClusterInfo": False,
                    }
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def _listed(found: dict[Path, Any]) -> str:
    return " and ".join(str(path) for path in found)
