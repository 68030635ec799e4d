"""The trial Pod, readers and erasers wait for a slow registry as long as a run does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clocks import set_clock
from kube_memory import MemoryKube

from steppe.clusters._base import Reachable
from steppe.errors import ClusterError
from steppe.platforms.kubernetes.client.kubeapi import KubeAnswer
from steppe.platforms.kubernetes.client.remote_run import RemoteRun
from steppe.platforms.kubernetes.diagnosis import cluster_check, pod_watch
from steppe.platforms.kubernetes.diagnosis.pod_health import PATIENT_SECONDS, SURE_SECONDS
from steppe.platforms.kubernetes.manifests import rendering
from steppe.platforms.kubernetes.storage import stored_results
from steppe.specs.running.cluster import ClusterSpec

Json = dict[str, Any]
SLOW = {"waiting": {"reason": "ErrImagePull", "message": "no answer"}}
WRONG = {"waiting": {"reason": "InvalidImageName"}}
ENDED = {"terminated": {"exitCode": 0, "message": json.dumps({"erased": 3})}}


class SlowKube(MemoryKube):
    """Pods whose container is in one state until a time, and in another from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now, self.until = 1000.0, 1000.0
        self.first: Json = SLOW
        self.then: Json = ENDED
        self.state_of = lambda pod: self.first if self.now < self.until else self.then
        set_clock(monkeypatch, monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


Attempt = Callable[[SlowKube], str]


def check(kube: SlowKube) -> str:
    spec = ClusterSpec.model_validate({"provider": "kubeconfig", "kubernetes": {"results": "s3://bucket/runs"}})
    reachable = Reachable("lab", Path("config"), "lab", "space", False, spec)
    found = {finding.what: finding for finding in cluster_check.check(kube, reachable, lambda line: None)}  # type: ignore[arg-type]
    ran = found["image and nodes"]
    return "" if ran.outcome == "ok" else ran.sentence


def with_root(kube: SlowKube, planned: Any, **fields: Any) -> tuple[Any, str]:
    plan = planned(**fields)
    uid = kube.create(rendering.root(plan))["metadata"]["uid"]
    tokens = dict.fromkeys(("door", "ray", "learner"), "t")
    kube.create(rendering.with_owner(plan, rendering.secret(plan, tokens), uid))
    return plan, uid


@pytest.fixture(params=["check", "read", "erase"])
def attempt(request: pytest.FixtureRequest, planned: Any) -> Attempt:
    """Runs a short-lived Pod; returns its error, empty for none."""

    def read(kube: SlowKube) -> str:
        kube.then = {"running": {}}
        kube.answers = lambda pod, path, **_: KubeAnswer(200, b'{"files": [], "status": null}')
        plan, _ = with_root(kube, planned)
        try:
            RemoteRun(kube, plan.name).files()  # type: ignore[arg-type]
        except ClusterError as error:
            return str(error)
        return ""

    def erase(kube: SlowKube) -> str:
        plan, uid = with_root(kube, planned, kubernetes={"results": "s3://bucket/runs"})
        try:
            stored_results.erase(kube, plan, uid)  # type: ignore[arg-type]
        except ClusterError as error:
            return str(error)
        return ""

    return {"check": check, "read": read, "erase": erase}[request.param]


def test_a_slow_registry_is_waited_for(attempt: Attempt, monkeypatch: pytest.MonkeyPatch):
    kube = SlowKube(monkeypatch)
    kube.until = kube.now + PATIENT_SECONDS - 5.0
    assert attempt(kube) == ""
    assert not kube.listed("Pod")


def test_an_image_that_is_never_pulled_is_given_up_after_the_same_time(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
):
    kube = SlowKube(monkeypatch)
    begin, kube.until = kube.now, float("inf")
    assert "cannot be pulled (no answer)" in attempt(kube)
    assert PATIENT_SECONDS <= kube.now - begin <= PATIENT_SECONDS + 3 * pod_watch.LONGEST_PAUSE
    assert not kube.listed("Pod")


def test_an_invalid_image_name_is_given_up_soon(attempt: Attempt, monkeypatch: pytest.MonkeyPatch):
    kube = SlowKube(monkeypatch)
    begin, kube.until, kube.first = kube.now, float("inf"), WRONG
    assert "cannot be pulled" in attempt(kube)
    assert kube.now - begin <= SURE_SECONDS + 3 * pod_watch.LONGEST_PAUSE


def test_trouble_that_returns_is_waited_for_anew(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    set_clock(monkeypatch, monotonic=lambda: now[0])
    timer = pod_watch.TroubleTimer()
    for time, trouble, is_over in ((0, "x", False), (89, "x", False), (90, "", False), (91, "x", False)):
        now[0] = float(time)
        assert timer.has_lasted(trouble, 90.0) == is_over
    now[0] = 181.0
    assert timer.has_lasted("x", 90.0)
