"""The check of a cluster, readers and erasers wait for a slow registry as a run that is followed does."""

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
from steppe.platforms.kubernetes.client.kubeapi import Answer
from steppe.platforms.kubernetes.client.remote_run import RemoteRun
from steppe.platforms.kubernetes.diagnosis import checking, patience
from steppe.platforms.kubernetes.diagnosis.waiting import PATIENT_SECONDS, SURE_SECONDS
from steppe.platforms.kubernetes.manifests import naming, rendering
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
        set_clock(monkeypatch, monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get(self, kind: str, name: str) -> Json | None:
        found = super().get(kind, name)
        if kind == "Pod" and found is not None:
            # A driver's for a trial Pod, whose name says no more.
            container = found["metadata"]["labels"][naming.ROLE]
            state = self.first if self.now < self.until else self.then
            found["status"] = {"containerStatuses": [{"name": container, "state": state}]}
        return found

    def ask(self, method: str, place: str, body: Json | None = None) -> Answer:
        said = {"gitVersion": "v1.33.1", "major": "1", "minor": "33", "items": [], "status": {"allowed": True}}
        return Answer(200, json.dumps(said).encode())


Attempt = Callable[[SlowKube], str]


def check(kube: SlowKube) -> str:
    spec = ClusterSpec.model_validate({"provider": "kubeconfig", "kubernetes": {"results": "s3://bucket/runs"}})
    reachable = Reachable("lab", Path("config"), "lab", "space", False, spec)
    found = {finding.what: finding for finding in checking.check(kube, reachable, lambda line: None)}  # type: ignore[arg-type]
    ran = found["image and nodes"]
    return "" if ran.outcome == "ok" else ran.sentence


def rooted(kube: SlowKube, planned: Any, **fields: Any) -> tuple[Any, str]:
    plan = planned(**fields)
    uid = kube.create(rendering.root(plan))["metadata"]["uid"]
    tokens = dict.fromkeys(("door", "ray", "learner"), "t")
    kube.create(rendering.with_owner(plan, rendering.secret(plan, tokens), uid))
    return plan, uid


@pytest.fixture(params=["check", "read", "erase"])
def attempt(request: pytest.FixtureRequest, planned: Any) -> Attempt:
    """Has a short-lived Pod do its work; what went wrong."""

    def read(kube: SlowKube) -> str:
        kube.then = {"running": {}}
        kube.answers = lambda pod, path, **_: Answer(200, b'{"files": [], "status": null}')
        plan, _ = rooted(kube, planned)
        try:
            RemoteRun(kube, plan.name).files()  # type: ignore[arg-type]
        except ClusterError as error:
            return str(error)
        return ""

    def erase(kube: SlowKube) -> str:
        plan, uid = rooted(kube, planned, kubernetes={"results": "s3://bucket/runs"})
        try:
            stored_results.erase(kube, plan, uid)  # type: ignore[arg-type]
        except ClusterError as error:
            return str(error)
        return ""

    return {"check": check, "read": read, "erase": erase}[request.param]


def test_a_registry_that_answers_late_is_waited_for(attempt: Attempt, monkeypatch: pytest.MonkeyPatch):
    kube = SlowKube(monkeypatch)
    kube.until = kube.now + PATIENT_SECONDS - 5.0
    assert attempt(kube) == ""
    assert not kube.listed("Pod")


def test_an_image_that_does_not_come_is_given_up_after_the_same_time(attempt: Attempt, monkeypatch: pytest.MonkeyPatch):
    kube = SlowKube(monkeypatch)
    begin, kube.until = kube.now, float("inf")
    assert "cannot be pulled (no answer)" in attempt(kube)
    assert PATIENT_SECONDS <= kube.now - begin <= PATIENT_SECONDS + 3 * patience.LONGEST_PAUSE
    assert not kube.listed("Pod")


def test_a_name_that_no_registry_can_mend_is_given_up_soon(attempt: Attempt, monkeypatch: pytest.MonkeyPatch):
    kube = SlowKube(monkeypatch)
    begin, kube.until, kube.first = kube.now, float("inf"), WRONG
    assert "cannot be pulled" in attempt(kube)
    assert kube.now - begin <= SURE_SECONDS + 3 * patience.LONGEST_PAUSE


def test_trouble_that_comes_again_is_waited_for_anew(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    set_clock(monkeypatch, monotonic=lambda: now[0])
    waits = patience.Patience()
    for time, trouble, is_over in ((0, "x", False), (89, "x", False), (90, "", False), (91, "x", False)):
        now[0] = float(time)
        assert waits.ends(trouble, 90.0) == is_over
    now[0] = 181.0
    assert waits.ends("x", 90.0)
