"""Clusters on this machine, whose nodes are containers: kind and k3d, by their command-line programs."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import subprocess
from typing import Any

from steppe.clusters import kubeconfig, registry
from steppe.clusters._base import ObservedCluster, ProviderRequest, Record, Tell
from steppe.errors import ClusterError, UserError
from steppe.specs.running.cluster import ClusterSpec

READY_SECONDS = 300
"""For how many seconds a program waits for the nodes of a new cluster."""
ANSWER_SECONDS = 60
"""For how many seconds a program may think about a question."""


class Kind:
    """Makes and deletes clusters with kind."""

    name = "kind"
    is_deletable = True
    site = "https://kind.sigs.k8s.io/docs/user/quick-start/#installation"

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """This machine, which has no word of its own."""
        _check(spec, self.name)
        return {}

    def requests(self, record: Record) -> list[ProviderRequest]:
        """The command, and what it reads."""
        return [ProviderRequest(shlex.join(self._command(record)), self._nodes(record))]

    def create(self, record: Record, tell: Tell) -> None:
        """Runs the program; what an interrupted run has left is removed first."""
        if self.look(record).state != "gone":
            self.delete(record, tell)
        tell("kind starts the nodes; this takes about a minute")
        _run(self, self._command(record), READY_SECONDS + 300, json.dumps(self._nodes(record)))

    def look(self, record: Record) -> ObservedCluster:
        """Whether kind knows a cluster of that name, and whether it is the one that was made."""
        return next(
            (_same(self, seen, record) for seen in self.discover() if seen.name == record.name),
            ObservedCluster(record.name, "gone"),
        )

    def discover(self) -> list[ObservedCluster]:
        """All clusters that kind knows."""
        if shutil.which(self.name) is None:
            return []
        lines = _run(self, [self.name, "get", "clusters", "--quiet"]).split()
        return [ObservedCluster(name, "ready") for name in lines]

    def delete(self, record: Record, tell: Tell) -> None:
        """Runs the program, which does not mind where there is no such cluster."""
        scratch = str(registry.kubeconfig_path(record.name))
        _run(self, [self.name, "delete", "cluster", "--name", record.name, "--kubeconfig", scratch])

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """What kind gives, with the keys of the cluster's administrator."""
        return _parsed(self, _run(self, [self.name, "get", "kubeconfig", "--name", record.name]))

    def _command(self, record: Record) -> list[str]:
        # Into a file of Steppe's own: the user's current context stays what it is.
        target = str(registry.kubeconfig_path(record.name))
        image = ["--image", f"kindest/node:v{record.spec.version.removeprefix('v')}"] if record.spec.version else []
        waiting = ["--wait", f"{READY_SECONDS}s"]
        return [self.name, "create", "cluster", "--name", record.name, "--config", "-", "--kubeconfig", target] + (
            waiting + image
        )

    def _nodes(self, record: Record) -> dict[str, Any]:
        roles = ["control-plane"] + ["worker"] * (record.spec.num_nodes - 1)
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [{"role": role} for role in roles],
        }


class K3d:
    """Makes and deletes clusters with k3d."""

    name = "k3d"
    is_deletable = True
    site = "https://k3d.io/#installation"

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """This machine, which has no word of its own."""
        _check(spec, self.name)
        if spec.name is not None and len(spec.name) > 32:
            raise UserError(f'cluster name "{spec.name}" is too long for k3d; it takes at most 32 characters')
        return {}

    def requests(self, record: Record) -> list[ProviderRequest]:
        """The command."""
        return [ProviderRequest(shlex.join(self._command(record)))]

    def create(self, record: Record, tell: Tell) -> None:
        """Runs the program; what an interrupted run has left is removed first."""
        if self.look(record).state != "gone":
            self.delete(record, tell)
        tell("k3d starts the nodes; this takes about a minute")
        _run(self, self._command(record), READY_SECONDS + 300)

    def look(self, record: Record) -> ObservedCluster:
        """Whether k3d knows a cluster of that name, and whether it is the one that was made."""
        return next(
            (_same(self, seen, record) for seen in self.discover() if seen.name == record.name),
            ObservedCluster(record.name, "gone"),
        )

    def discover(self) -> list[ObservedCluster]:
        """All clusters that k3d knows."""
        if shutil.which(self.name) is None:
            return []
        text = _run(self, [self.name, "cluster", "list", "--output", "json"])
        try:
            found = json.loads(text or "[]")
            return [
                ObservedCluster(each["name"], "ready", num_nodes=each["serversCount"] + each.get("agentsCount", 0))
                for each in found
            ]
        except (ValueError, KeyError, TypeError):
            raise ClusterError("k3d lists its clusters in words that Steppe does not know; use k3d 5") from None

    def delete(self, record: Record, tell: Tell) -> None:
        """Runs the program, unless there is no such cluster."""
        if self.look(record).state != "gone":
            _run(self, [self.name, "cluster", "delete", record.name])

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """What k3d gives, with the keys of the cluster's administrator."""
        return _parsed(self, _run(self, [self.name, "kubeconfig", "get", record.name]))

    def _command(self, record: Record) -> list[str]:
        spec = record.spec
        memory = f"{spec.memory_per_node:g}g" if spec.memory_per_node else ""
        sizes = ["--servers-memory", memory, "--agents-memory", memory] if memory else []
        image = ["--image", f"rancher/k3s:v{spec.version.removeprefix('v')}-k3s1"] if spec.version else []
        return [
            *(self.name, "cluster", "create", record.name),
            *("--servers", "1", "--agents", str(spec.num_nodes - 1)),
            *sizes,
            *image,
            *("--wait", "--timeout", f"{READY_SECONDS}s"),
            # The user's own kubeconfig and its current context stay what they are.
            *("--kubeconfig-update-default=false", "--kubeconfig-switch-context=false"),
        ]


def _check(spec: ClusterSpec, name: str) -> None:
    if spec.gpus_per_node:
        raise UserError(f'provider "{name}" has no GPUs; leave gpus_per_node out, or take another provider')
    if spec.machine_type is not None or spec.location is not None:
        raise UserError(f'provider "{name}" runs on this machine: leave machine_type and location out')


def _same(provider: Kind | K3d, seen: ObservedCluster, record: Record) -> ObservedCluster:
    """Tells a cluster from another of the same name by its certificate authority."""
    path = registry.kubeconfig_path(record.name)
    mine = kubeconfig.authority_of(kubeconfig.read(path)) if path.exists() else None
    if mine is None and record.state != "ready":
        # Half made or half deleted: nothing can be compared, but nobody had the name when Steppe took it.
        return dataclasses.replace(seen, id=record.id)
    is_same = mine is not None and mine == kubeconfig.authority_of(provider.kubeconfig(record))
    return dataclasses.replace(seen, id=record.id if is_same else "another")


def _run(provider: Kind | K3d, command: list[str], seconds: float = ANSWER_SECONDS, text: str | None = None) -> str:
    """What a program prints; where it fails, its last words are the reason."""
    program = shutil.which(command[0])
    if program is None:
        raise UserError(
            f'provider "{provider.name}" needs the program "{command[0]}" on this machine; install it: {provider.site}'
        )
    try:
        done = subprocess.run(
            [program, *command[1:]], input=text or "", capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{shlex.join(command[:3])} did not end within {seconds:.0f} s; is Docker well?") from None
    except OSError as error:
        raise ClusterError(f"cannot run {program}: {error.strerror or error}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = next(
            (line for line in lines if "error" in line.lower() or "fata" in line.lower()), (lines or [""])[-1]
        )
        raise ClusterError(
            f'"{shlex.join(command[:3])}" failed: {reason.removeprefix("ERROR: ")[:300] or "it does not say why"}'
        )
    return done.stdout


def _parsed(provider: Kind | K3d, text: str) -> dict[str, Any]:
    import yaml

    content = yaml.safe_load(text)
    if not isinstance(content, dict) or "current-context" not in content:
        raise ClusterError(f"{provider.name} gave no kubeconfig")
    return content
