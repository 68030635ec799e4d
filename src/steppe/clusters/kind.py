"""Clusters on this machine whose nodes are containers: kind and k3d, by their command-line programs."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from typing import Any

from steppe.clusters import kubeconfig, registry
from steppe.clusters._base import ObservedCluster, ProviderRequest, Record, Tell
from steppe.errors import ClusterError, UserError
from steppe.specs.running.cluster import ClusterSpec

READY_SECONDS = 300
"""How long a program waits for the nodes of a new cluster."""
ANSWER_SECONDS = 60
"""How long a program may take for any other command."""


class ContainerProvider(ABC):
    """Makes and deletes clusters with a program on this machine."""

    name: str
    site: str
    """The page that explains how to install the program."""
    is_deletable = True

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """This machine, which needs no further description."""
        if spec.gpus_per_node:
            raise UserError(f'provider "{self.name}" has no GPUs; leave gpus_per_node out, or take another provider')
        if spec.machine_type is not None or spec.location is not None:
            raise UserError(f'provider "{self.name}" runs on this machine: leave machine_type and location out')
        return {}

    def requests(self, record: Record) -> list[ProviderRequest]:
        """The command that makes the cluster, and its input."""
        return [ProviderRequest(shlex.join(self._create_command(record)), self._input(record))]

    def create(self, record: Record, tell: Tell) -> None:
        """Runs the program, after the remains of an interrupted run are deleted."""
        if self.look(record).state != "gone":
            self.delete(record, tell)
        tell(f"{self.name} starts the nodes; this takes about a minute")
        given = self._input(record)
        text = "" if given is None else json.dumps(given)
        self._run(self._create_command(record), READY_SECONDS + 300, text)

    def look(self, record: Record) -> ObservedCluster:
        """The cluster of that name, if the program knows one; its id tells whether Steppe made it."""
        for observed in self.discover():
            if observed.name == record.name:
                return self._with_id(observed, record)
        return ObservedCluster(record.name, "gone")

    def discover(self) -> list[ObservedCluster]:
        """All clusters that the program knows."""
        return [] if shutil.which(self.name) is None else self._listed()

    @abstractmethod
    def delete(self, record: Record, tell: Tell) -> None:
        """Deletes the cluster, if it exists."""

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """The kubeconfig from the program, with the keys of the cluster's administrator."""
        import yaml

        content = yaml.safe_load(self._run(self._kubeconfig_command(record)))
        if not isinstance(content, dict) or "current-context" not in content:
            raise ClusterError(f"{self.name} gave no kubeconfig")
        return content

    @abstractmethod
    def _create_command(self, record: Record) -> list[str]: ...

    @abstractmethod
    def _kubeconfig_command(self, record: Record) -> list[str]: ...

    @abstractmethod
    def _listed(self) -> list[ObservedCluster]: ...

    def _input(self, record: Record) -> dict[str, Any] | None:
        """The input of the program."""
        return None

    def _with_id(self, observed: ObservedCluster, record: Record) -> ObservedCluster:
        """Tells a cluster from another of the same name by its certificate authority."""
        path = registry.kubeconfig_path(record.name)
        mine = kubeconfig.authority_of(kubeconfig.read(path)) if path.exists() else None
        if mine is None and record.state != "ready":
            # Half made or half deleted: there is nothing to compare, but the name was free when Steppe took it.
            return dataclasses.replace(observed, id=record.id)
        is_same = mine is not None and mine == kubeconfig.authority_of(self.kubeconfig(record))
        return dataclasses.replace(observed, id=record.id if is_same else "another")

    def _run(self, command: list[str], seconds: float = ANSWER_SECONDS, text: str = "") -> str:
        """The output of a command; ClusterError with the reason if it fails."""
        program = shutil.which(command[0])
        if program is None:
            raise UserError(
                f'provider "{self.name}" needs the program "{command[0]}" on this machine; install it: {self.site}'
            )
        try:
            done = subprocess.run(
                [program, *command[1:]], input=text, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"{shlex.join(command[:3])} did not end within {seconds:.0f} s; is Docker well?"
            ) from None
        except OSError as error:
            raise ClusterError(f"cannot run {program}: {error.strerror or error}") from None
        if done.returncode != 0:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower() or "fata" in line.lower()]
            reason = (errors or lines[-1:] or [""])[0].removeprefix("ERROR: ")[:300]
            raise ClusterError(f'"{shlex.join(command[:3])}" failed: {reason or "it does not say why"}')
        return done.stdout


class Kind(ContainerProvider):
    """Makes and deletes clusters with kind."""

    name = "kind"
    site = "https://kind.sigs.k8s.io/docs/user/quick-start/#installation"

    def delete(self, record: Record, tell: Tell) -> None:
        """Runs the program, which ignores a cluster that does not exist."""
        scratch = str(registry.kubeconfig_path(record.name))
        self._run([self.name, "delete", "cluster", "--name", record.name, "--kubeconfig", scratch])

    def _listed(self) -> list[ObservedCluster]:
        return [ObservedCluster(name, "ready") for name in self._run([self.name, "get", "clusters", "--quiet"]).split()]

    def _create_command(self, record: Record) -> list[str]:
        # The kubeconfig goes into a file of Steppe's own, so that the user's current context does not change.
        target = str(registry.kubeconfig_path(record.name))
        image = ["--image", f"kindest/node:v{record.spec.version.removeprefix('v')}"] if record.spec.version else []
        words = ["--name", record.name, "--config", "-", "--kubeconfig", target, "--wait", f"{READY_SECONDS}s"]
        return [self.name, "create", "cluster", *words, *image]

    def _kubeconfig_command(self, record: Record) -> list[str]:
        return [self.name, "get", "kubeconfig", "--name", record.name]

    def _input(self, record: Record) -> dict[str, Any]:
        roles = ["control-plane"] + ["worker"] * (record.spec.num_nodes - 1)
        nodes = [{"role": role} for role in roles]
        return {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}


class K3d(ContainerProvider):
    """Makes and deletes clusters with k3d."""

    name = "k3d"
    site = "https://k3d.io/#installation"

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """This machine; refuses a name that is too long for k3d."""
        if spec.name is not None and len(spec.name) > 32:
            raise UserError(f'cluster name "{spec.name}" is too long for k3d; it takes at most 32 characters')
        return super().place(spec)

    def delete(self, record: Record, tell: Tell) -> None:
        """Runs the program, unless there is no such cluster."""
        if self.look(record).state != "gone":
            self._run([self.name, "cluster", "delete", record.name])

    def _listed(self) -> list[ObservedCluster]:
        text = self._run([self.name, "cluster", "list", "--output", "json"])
        try:
            return [
                ObservedCluster(each["name"], "ready", num_nodes=each["serversCount"] + each.get("agentsCount", 0))
                for each in json.loads(text or "[]")
            ]
        except (ValueError, KeyError, TypeError):
            raise ClusterError("k3d lists its clusters in a format that Steppe does not know; use k3d 5") from None

    def _create_command(self, record: Record) -> list[str]:
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
            # The user's own kubeconfig and its current context do not change.
            *("--kubeconfig-update-default=false", "--kubeconfig-switch-context=false"),
        ]

    def _kubeconfig_command(self, record: Record) -> list[str]:
        return [self.name, "kubeconfig", "get", record.name]
