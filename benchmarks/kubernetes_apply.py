"""1,000 workers rendered and applied to a real API server: seconds, and the client's memory, which does not grow.

Every Pod asks for more CPUs than any node has, so that all of them stay pending and nothing runs. The benchmark
measures Steppe's client, and how long the cluster takes to make and to delete the Pods. KUBECONFIG names the cluster;
the testbed of this repository will do. Each size is a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from interleave import Run, Runs, Verdict, conclude, is_quick, output_of

WORKERS = (10, 100, 1000)
RENDERED_ONLY = 10_000
SECONDS, GROWTH = 10.0, 1.25
COLUMNS = {
    "render_seconds": "render s",
    "apply_seconds": "apply s",
    "pods_seconds": "all Pods made s",
    "look_seconds": "look s",
    "megabytes_applied": "MB after apply",
    "megabytes_looked": "MB after look",
    "megabytes": "MB after delete",
    "kilobytes": "manifests kB",
    "delete_seconds": "delete s",
}


def main() -> int:
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(measure(int(sys.argv[2]), sys.argv[3])))
        return 0
    quick = is_quick(__doc__)
    runs: Runs = {}
    for workers in WORKERS[:1] if quick else WORKERS:
        with namespace() as name:
            runs[f"{workers:,} workers"] = [output_of([sys.executable, __file__, "one", str(workers), name])]
    command = [sys.executable, __file__, "one", str(RENDERED_ONLY), ""]
    runs[f"{RENDERED_ONLY:,} workers, rendered only"] = [output_of(command)]
    return conclude(str(__doc__), runs, [] if quick else judged(runs), quick, COLUMNS, cost=None)


def judged(runs: Runs) -> list[Verdict]:
    (fewest,), (most,) = runs[f"{WORKERS[0]:,} workers"], runs[f"{WORKERS[-1]:,} workers"]
    seconds = most["render_seconds"] + most["apply_seconds"]
    growth = most["megabytes"] / fewest["megabytes"]
    return [
        Verdict(f"{WORKERS[-1]:,} workers: under {SECONDS:g} s", f"{seconds:.1f} s", seconds < SECONDS),
        Verdict(
            f"the client's memory at {WORKERS[-1]:,} workers at most {GROWTH:g} times that at {WORKERS[0]}",
            f"{growth:.2f} times",
            growth <= GROWTH,
        ),
    ]


def measure(workers: int, namespace: str) -> Run:
    """One experiment with so many workers, from its spec to its last Pod; without a namespace it is only rendered."""
    import steppe
    from steppe.platforms.kubernetes.manifests import rendering
    from steppe.platforms.kubernetes.manifests.rendering import ManifestPlan
    from steppe.spec_files import load_experiment

    unplaceable = {"cpus": 1000}
    fields: dict[str, Any] = {
        "name": f"workers-{workers}",
        "environment": "CartPole-v1",
        "agent": "dqn",
        "run_mode": "async",
        "num_workers": workers,
        "platform": "kubernetes",
        "total_timesteps": 10**9,
        "kubernetes": {"image": "localhost/steppe:test", "driver": unplaceable, "worker": unplaceable},
    }
    spec = load_experiment(None, fields, [], Path.cwd(), options=False)
    began = time.monotonic()
    plan = ManifestPlan(spec, "benchmark", namespace or "default")
    manifests = rendering.render(plan)
    run: Run = {
        "version": steppe.__version__,
        "kilobytes": len(rendering.as_yaml(manifests)) / 1000,
        "render_seconds": time.monotonic() - began,
    }
    not_applied = dict.fromkeys(("apply_seconds", "pods_seconds", "look_seconds", "delete_seconds"), 0.0)
    run |= applied(plan, workers) if namespace else not_applied
    return {"megabytes_applied": megabytes(), "megabytes_looked": megabytes(), **run, "megabytes": megabytes()}


def applied(plan: Any, workers: int) -> Run:
    from steppe.platforms.kubernetes.client.kubeapi import Kube
    from steppe.platforms.kubernetes.client.remote_run import RemoteRun

    with Kube(os.environ["KUBECONFIG"], None, plan.namespace) as kube:
        remote = RemoteRun(kube, plan.name)
        began = time.monotonic()
        remote.start(plan)
        run: Run = {"apply_seconds": time.monotonic() - began, "megabytes_applied": megabytes()}
        while pods(plan.namespace) < workers + 1:
            time.sleep(0.2)
        run["pods_seconds"] = time.monotonic() - began
        began = time.monotonic()
        health = remote.look()
        assert "waits for a node" in health.phase, health
        run |= {"look_seconds": time.monotonic() - began, "megabytes_looked": megabytes()}
        began = time.monotonic()
        left = remote.delete()
        assert not left, left
        run["delete_seconds"] = time.monotonic() - began
    return run


def pods(namespace: str) -> int:
    """The number of Pods, counted by kubectl and not by the measured process."""
    command = ["kubectl", "get", "pods", "-n", namespace, "--no-headers", "-o", "name"]
    return len(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())


def megabytes() -> float:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    if "KUBECONFIG" not in os.environ:
        sys.exit("error: KUBECONFIG names no cluster; bring the testbed up first, or export it")
    name = f"steppe-benchmark-{uuid4().hex[:6]}"
    subprocess.run(["kubectl", "create", "namespace", name], check=True, stdout=subprocess.DEVNULL)
    try:
        yield name
    finally:
        subprocess.run(["kubectl", "delete", "namespace", name, "--wait=false"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
