"""Experiments on the testbed: a project, its cluster, and commands as a user gives them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_testbed import BASE, ROOT, Testbed
from processes import wait_until

SECONDS = 600
"""The time limit of one command; the testbed may share a core with others."""
# Small requests and larger limits, so that all Pods fit on a small machine and still start quickly.
PODS: dict[str, Any] = {
    "image_pull_policy": "IfNotPresent",
    "driver": {"cpus": 0.3, "cpu_limit": 1.5, "memory": 1.5},
    "worker": {"cpus": 0.1, "cpu_limit": 1.0, "memory": 1.0},
    "server": {"cpus": 0.1, "cpu_limit": 1.0, "memory": 1.0},
    "storage": 0.1,
}


def mounted_source() -> dict[str, Any]:
    """Pod settings that mount this machine's Python and source; the testbed must be on the same machine."""
    places = {"venv": sys.prefix, "python": sys.base_prefix, "source": str(ROOT / "src")}
    # A virtual environment may use packages of another one.
    others = [
        path for path in sys.path if path.endswith("site-packages") and not path.startswith(tuple(places.values()))
    ]
    places |= {f"packages-{number}": path for number, path in enumerate(others)}
    return {
        "image": BASE,
        "user": 0,
        "env": {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": places["source"]},
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in places.items()],
        "volume_mounts": [{"name": name, "mountPath": path, "readOnly": True} for name, path in places.items()],
    }


def end_watchers(folder: Path) -> None:
    """Ends the processes that follow the runs of a project, if tests have left any."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_text()
            if "steppe.experiments.on_cluster.watcher" in command and f"{folder}/" in command:
                os.kill(int(process.name), signal.SIGKILL)


def has_ended(pod: dict[str, Any]) -> bool:
    """Whether all containers of a Pod have ended."""
    return pod["status"]["phase"] in ("Succeeded", "Failed")


@dataclass(frozen=True)
class Workplace:
    """A project with a registered cluster; each command runs in a process of its own."""

    folder: Path
    testbed: Testbed
    namespace: str
    pods: dict[str, Any]

    def register(self, kubeconfig: Path | None = None, name: str = "testbed") -> None:
        """Registers a cluster, with this test's namespace."""
        spec = {
            "name": name,
            "provider": "kubeconfig",
            "kubeconfig": str(kubeconfig or self.testbed.kubeconfig),
            "namespace": self.namespace,
            "kubernetes": self.pods,
        }
        (self.folder / "configs" / "clusters" / f"{name}.json").write_text(json.dumps(spec))
        self.steppe("cluster", "create", "-f", name)

    def steppe(self, *words: str, exit_code: int = 0, before: str = "") -> str:
        """The output of a command, errors last; `before` is Python that its process runs first."""
        begin = ["-c", f"{before}; import runpy; runpy.run_module('steppe', run_name='__main__')"] if before else []
        command = [sys.executable, *(begin or ["-m", "steppe"]), *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=SECONDS
        )
        printed = done.stdout + done.stderr
        assert done.returncode == exit_code, f"{' '.join(words)} ended with {done.returncode}: {printed}"
        return printed

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command without waiting for its end."""
        command = [sys.executable, "-m", "steppe", *words]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def new(self, name: str, *words: str, **fields: Any) -> str:
        """Makes an experiment, on CartPole unless another environment is given; returns the output."""
        given = {"environment": "CartPole-v1", "seed": 1, "saver_frequency": "5s", "video": False} | fields
        path = self.folder / "configs" / "experiments" / f"{name}.json"
        path.write_text(json.dumps(given))
        return self.steppe("experiment", "new", "-f", name, "-n", name, *words)

    def status(self, name: str) -> dict[str, Any]:
        """The status of an experiment from `experiment show --json`."""
        status: dict[str, Any] = json.loads(self.steppe("experiment", "show", "-e", name, "--json"))["status"]
        return status

    def wait_for(self, name: str, state: str, timestep: int = 0, seconds: float = SECONDS) -> dict[str, Any]:
        """Waits until an experiment is in that state and at that timestep at least; returns the status."""

        def reached() -> dict[str, Any] | None:
            # Reads the last known status, since a testbed that shares a core may not answer for a while.
            self.steppe("experiment", "list")
            status = json.loads((self.folder / "experiments" / name / "status.json").read_text())
            assert status["state"] != "failed" or state == "failed", status["reason"]
            return status if status["state"] == state and status["timestep"] >= timestep else None

        found: dict[str, Any] = wait_until(reached, f"{name} to be {state}", seconds=seconds, pause=1.0)
        return found

    def kept(self, experiment: str) -> dict[str, str]:
        """path -> sha256 of each result on the only disk, computed by a Pod without Steppe."""
        (claim,) = self.testbed.objects("persistentvolumeclaims", self.namespace)
        summing = f"cd '/results/{experiment}' && find . -type f -not -path '*/.*' -exec sha256sum {{}} +"
        container = {
            "name": "sums",
            "image": self.pods["image"],
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", summing],
            "volumeMounts": [{"name": "results", "mountPath": "/results", "readOnly": True}],
        }
        disk = {"name": "results", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": [disk]}
        spec["securityContext"] = {"runAsUser": self.pods.get("user", 1000)}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sums", "labels": {"of": "sums"}}, "spec": spec}
        self.testbed.apply(pod, namespace=self.namespace)
        wait_until(lambda: has_ended(self.testbed.objects("pods", self.namespace, "of=sums")[0]), "the sums", pause=0.5)
        lines = self.testbed.kubectl("logs", "sums", "-n", self.namespace).splitlines()
        self.testbed.kubectl("delete", "pod", "sums", "-n", self.namespace, "--wait=false")
        return {path.removeprefix("./"): digest for digest, path in (line.split("  ", 1) for line in lines)}

    def pods_of(self, role: str) -> list[dict[str, Any]]:
        """The Pods of a role, except those that are being deleted."""
        found = self.testbed.objects("pods", self.namespace, f"steppe/role={role}")
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def left(self, experiment: str | None = None) -> list[str]:
        """All of Steppe's objects that are left in the namespace, or those of one experiment."""
        kinds = "pods,jobs,services,networkpolicies,configmaps,secrets,persistentvolumeclaims"
        of = "app.kubernetes.io/managed-by=steppe" if experiment is None else f"steppe/experiment={experiment}"
        found = self.testbed.objects(kinds, self.namespace, of)
        return [f"{each['kind']} {each['metadata']['name']}" for each in found]

    def _environment(self) -> dict[str, str]:
        return os.environ | {"STEPPE_CLUSTERS": str(self.folder / "clusters"), "NO_PROXY": "*", "no_proxy": "*"}
