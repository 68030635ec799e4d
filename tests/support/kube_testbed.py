"""A real Kubernetes for tests: the testbed of this machine, or a cluster that the user names.

As a program, for `make test-kubernetes`: `missing` prints why there can be no testbed, or exits with 1 if there can;
`down` ends a testbed that interrupted tests have left running.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import pytest
from processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("STEPPE_KUBE_TESTBED") or ROOT.parent / "shared" / "kube")
"""The folder with the program `kube`, which starts a real Kubernetes on one machine."""
NAMED = os.environ.get("STEPPE_TEST_KUBECONFIG")
"""A cluster for the tests; `make test-kubernetes` also uses KUBECONFIG, which a plain pytest ignores."""
RUNNING = Path(NAMED).parent if NAMED and (Path(NAMED).parent / "up").exists() else None
"""The folder of a testbed that is already running, if its kubeconfig is named."""
KUBECONFIG = None if RUNNING else NAMED
"""The kubeconfig of a cluster that is not a testbed."""
IMAGE = os.environ.get("STEPPE_TEST_IMAGE")
"""An image of this source that the nodes have or can pull; if unset, the testbed builds one."""
# Copies of the source that are tested at the same time must not overwrite each other's image.
STATE = RUNNING or Path(
    os.environ.get("KUBE_TESTBED_DIR") or f"/tmp/steppe-kube-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
)
MARK, USERS = (STATE.with_name(f"{STATE.name}.{word}-by-tests") for word in ("brought-up", "used"))
"""MARK exists while a testbed runs that tests have started; each session that uses it holds a lock on USERS."""
BASE = "localhost/python:3.11"
TEST_IMAGE = "localhost/steppe:test"


@dataclass(frozen=True)
class Testbed:
    """A cluster, accessed with kubectl and so independently of the tested code."""

    __test__ = False  # pytest would collect it by its name

    kubeconfig: Path
    is_ours: bool
    """Whether `kube` runs it; only then can nodes be killed and images built."""

    def kubectl(self, *words: str, given: str | None = None, check: bool = True) -> str:
        """Runs kubectl; returns its output."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def objects(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind (`pods`, or `pods,jobs,secrets`) in a namespace."""
        answer = self.kubectl("get", kind, "-n", namespace, "-l", selector, "-o", "json")
        return json.loads(answer)["items"]

    def apply(self, *manifests: dict[str, Any], namespace: str = "default") -> None:
        """Creates or changes objects."""
        together = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "-n", namespace, "-f", "-", given=json.dumps(together))

    def kube(self, *words: str, seconds: float = 1200) -> str:
        """Runs the testbed's own program: `node-kill node2`, `build -t NAME .`, `image NAME TAR`."""
        if not self.is_ours:
            pytest.skip("only the testbed can do this, and STEPPE_TEST_KUBECONFIG names another cluster")
        return _kube(*words, seconds=seconds)

    def with_nodes(self, number: int) -> list[str]:
        """Starts nodes, including killed ones, until there are so many; returns the names of all."""
        if self.is_ours:
            _kube("up", "--nodes", str(number))
            for node in self._nodes(is_ready=False):
                _kube("node-start", node)
        nodes = self._nodes(is_ready=True)
        if len(nodes) < number:
            pytest.skip(f"this needs {number} nodes, and the cluster has {len(nodes)}")
        return nodes

    def account(self, namespace: str, rules: list[dict[str, Any]], folder: Path) -> Path:
        """The kubeconfig of a new service account with exactly these rules of a Role."""
        name = f"limited-{uuid4().hex[:6]}"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
            {**_rbac("Role", name), "rules": rules},
            {**_rbac("RoleBinding", name), "roleRef": role, "subjects": [subject]},
            namespace=namespace,
        )
        config = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        config["users"] = [{"name": name, "user": {"token": self._token(namespace, name)}}]
        cluster = config["clusters"][0]["name"]
        config["contexts"] = [
            {"name": name, "context": {"cluster": cluster, "user": name, "namespace": namespace}},
        ]
        config["current-context"] = name
        path = folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def new_namespace(self) -> str:
        """Makes a namespace, and waits until Pods can be made in it."""
        name = f"steppe-test-{uuid4().hex[:8]}"
        self.kubectl("create", "namespace", name)
        # Pods are refused before that; on an old server the account also needs its token Secret.
        wait_until(lambda: self._is_usable(name), f"the service account of {name}", pause=0.1)
        return name

    def _is_usable(self, namespace: str) -> bool:
        account = self.kubectl("get", "serviceaccount", "default", "-n", namespace, "-o", "json", check=False)
        return bool(account) and (bool(json.loads(account).get("secrets")) or not self.is_ours)

    def _token(self, namespace: str, account: str) -> str:
        if not self.is_ours:
            return self.kubectl("create", "token", account, "-n", namespace).strip()

        def secret() -> dict[str, Any] | None:
            kind = "kubernetes.io/service-account-token"
            for each in self.objects("secrets", namespace):
                owner = each["metadata"].get("annotations", {}).get("kubernetes.io/service-account.name")
                if each["type"] == kind and owner == account and "token" in each.get("data", {}):
                    return each
            return None

        return base64.b64decode(wait_until(secret, f"the token of {account}", pause=0.1)["data"]["token"]).decode()

    def _nodes(self, is_ready: bool) -> list[str]:
        return [
            node["metadata"]["name"]
            for node in json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
            if is_ready == any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
        ]


@contextlib.contextmanager
def running_testbed() -> Iterator[Testbed]:
    """A cluster for this session; of several sessions at once the last one ends a testbed that one of them started."""
    if KUBECONFIG:
        yield Testbed(Path(KUBECONFIG), is_ours=False)
        return
    if (reason := missing_testbed()) is not None:
        pytest.skip(reason)
    with USERS.open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        if not (STATE / "up").exists():
            MARK.touch()
        try:
            printed = _kube("up")
            yield Testbed(Path(printed.strip().removeprefix("KUBECONFIG=")), is_ours=True)
        finally:
            take_down(users)


def take_down(users: TextIO) -> None:
    """Ends a testbed that tests have started, unless other sessions use it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if MARK.exists():
            _kube("down")
            MARK.unlink()


def missing_testbed() -> str | None:
    """Why there can be no cluster for the tests; None if there can."""
    if KUBECONFIG:
        return None
    if not (FOLDER / "kube").is_file():
        return f"no Kubernetes to test on: {FOLDER} has no program `kube` (STEPPE_KUBE_TESTBED names its folder)"
    if os.geteuid() != 0:
        return "no Kubernetes to test on: the testbed needs root; STEPPE_TEST_KUBECONFIG names another cluster"
    if shutil.which("apt-get") is None:
        return "no Kubernetes to test on: the testbed needs Debian; STEPPE_TEST_KUBECONFIG names another cluster"
    return None


def built_image(testbed: Testbed) -> str:
    """The name of an image of this source that every node has or can pull."""
    if IMAGE:
        return IMAGE
    testbed.kube("base")
    arguments = [f"BASE={BASE}", "EXTRAS=cluster,onnx,storage"]
    words = [word for argument in arguments for word in ("--build-arg", argument)]
    testbed.kube("build", "-t", TEST_IMAGE, *words, str(ROOT))
    return TEST_IMAGE


def _kube(*words: str, seconds: float = 1200) -> str:
    environment = {**os.environ, "KUBE_TESTBED_DIR": str(STATE)}
    command = [str(FOLDER / "kube"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"kube {' '.join(words)}: {done.stderr[-3000:]}"
    return done.stdout


def _rbac(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}}


if __name__ == "__main__":
    if sys.argv[1:] == ["missing"]:
        reason = missing_testbed()
        print(reason or "")
        sys.exit(0 if reason else 1)
    if sys.argv[1:] == ["down"] and not KUBECONFIG:
        with USERS.open("w") as users:
            take_down(users)
