"""What a look at a run asks of the API server, and what it makes of the answers."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from steppe.platforms.kubernetes import engines, naming
from steppe.platforms.kubernetes.kubeapi import Answer, Kube
from steppe.platforms.kubernetes.remote_run import RemoteRun

Json = dict[str, Any]
RUN = "steppe-first-12345678"


class Server:
    """An API server with a few objects, as far as `Kube` asks one; it counts what it sends."""

    def __init__(self, engine: str, objects: list[Json], door: Json | None = None) -> None:
        root = {"metadata": {"name": RUN, "annotations": {naming.ENGINE: engine}}, "kind": "ConfigMap"}
        token = {"kind": "Secret", "metadata": {"name": f"{RUN}-tokens"}, "data": {"door": b64encode(b"t").decode()}}
        self.objects, self.door = [root, token, *objects], door
        self.name, self.namespace = "lab", "space"
        self.sent = 0
        self.asked: list[str] = []

    def get(self, kind: str, name: str) -> Json | None:
        self.asked.append(kind)
        found = [each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return found[0] if found else None

    def listed(self, kind: str, labels: Json | None = None, fields: str = "", limit: int = 0) -> list[Json]:
        self.asked.append(kind)
        wanted = (labels or {}).items()
        found = [
            each
            for each in self.objects
            if each["kind"] == kind and wanted <= each["metadata"].get("labels", {}).items()
        ]
        self.sent += len(found[: limit or None])
        return found[: limit or None]

    def ask_pod(self, pod: str, port: int, path: str, **_: Any) -> Answer:
        return Answer(503, b"") if self.door is None else Answer(200, json.dumps(self.door).encode())


def pod(role: str, number: int = 0, state: Json | None = None) -> Json:
    statuses = [{"name": role, "image": "steppe:1", "state": state or {"running": {}}}]
    return made("Pod", f"{RUN}-{role}-{number}", role) | {
        "status": {"containerStatuses": statuses},
        "spec": {"containers": [{"name": role, "image": "steppe:1"}]},
    }


def made(kind: str, name: str, role: str) -> Json:
    labels = {naming.RUN: RUN, naming.ROLE: role}
    return {"kind": kind, "metadata": {"name": name, "uid": name, "labels": labels, "creationTimestamp": "1"}}


def ray_job(**status: str) -> Json:
    return {"kind": "RayJob", "metadata": {"name": RUN, "labels": {naming.RUN: RUN}}, "status": status}


def look(server: Server) -> Any:
    return RemoteRun(server, RUN).look()  # type: ignore[arg-type]


CROWD = [pod("driver"), *(pod("worker", number) for number in range(1000))]
JOBS = [made("Job", f"{RUN}-{role}", role) for role in ("driver", "worker")]


def test_a_run_that_answers_is_looked_at_without_its_workers():
    server = Server("jobs", [*CROWD, *JOBS], door={"status": {"state": "running"}, "is_over": False})
    assert look(server).is_alive
    assert server.sent == 1
    assert server.asked == ["Pod", "Secret"]


def test_of_a_thousand_workers_some_are_looked_at_while_the_driver_is_away():
    server = Server("jobs", [*CROWD, *JOBS])
    assert look(server).phase == "its Pod is starting"
    assert server.sent <= 1 + len(JOBS) + engines.MOST_PODS


@pytest.mark.parametrize("engine", ["jobs", "kuberay"])
def test_the_trouble_of_a_worker_is_seen(engine):
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    sight = look(Server(engine, [pod("driver"), pod("worker", 1, waiting), *JOBS, ray_job()]))
    assert "the image steppe:1 of Pod" in sight.trouble


def test_waiting_for_the_end_of_a_thousand_pods_asks_for_one_of_them():
    server, labels = Server("jobs", [*CROWD]), {naming.RUN: RUN}
    assert Kube.wait_until_gone(server, "Pod", labels, seconds=0.0) == [CROWD[0]["metadata"]["name"]]  # type: ignore[arg-type]
    assert server.sent == 1
    assert Kube.wait_until_gone(server, "Pod", labels | {naming.ROLE: "nobody"}) == []  # type: ignore[arg-type]


def test_an_empty_page_is_not_the_end_of_pods(monkeypatch):
    # A server may look at some objects only, and say that there are more.
    server = Server("jobs", [*CROWD])
    everything = server.listed
    monkeypatch.setattr(server, "listed", lambda *words, limit=0: [] if limit else everything(*words))
    assert Kube.wait_until_gone(server, "Pod", {naming.RUN: RUN}, seconds=0.0)  # type: ignore[arg-type]


def test_without_anything_that_makes_pods_the_run_is_not_alive():
    assert not look(Server("jobs", [])).is_alive
    assert not look(Server("kuberay", [])).is_alive


def test_a_ray_job_says_what_it_waits_for():
    assert "waits for the KubeRay operator" in look(Server("kuberay", [ray_job()])).phase
    assert look(Server("kuberay", [ray_job(jobDeploymentStatus="Initializing")])).phase == "waiting for a Pod"


def test_an_image_without_rays_dashboard_is_named():
    ended = {"terminated": {"exitCode": 1, "message": "Exception: Cannot include dashboard with missing packages."}}
    crashing = pod("driver", 0, {"waiting": {"reason": "CrashLoopBackOff"}})
    crashing["status"]["containerStatuses"][0]["lastState"] = ended
    sight = look(Server("kuberay", [crashing, ray_job(jobDeploymentStatus="Initializing")]))
    assert "steppe image build --package 'ray[default]'" in sight.trouble


@pytest.mark.parametrize(
    ("job", "stored", "is_alive", "trouble"),
    [
        ("SUCCEEDED", "completed", False, ""),
        ("SUCCEEDED", "paused", False, ""),
        ("FAILED", "failed", False, ""),
        # The driver was lost before it could write down an end.
        ("FAILED", "running", True, "RayJob steppe-first-12345678 has ended: out of luck"),
    ],
)
def test_a_ray_job_that_has_ended_is_seen_by_its_results(monkeypatch, job, stored, is_alive, trouble):
    phase = "Complete" if job == "SUCCEEDED" else "Failed"
    server = Server("kuberay", [ray_job(jobDeploymentStatus=phase, jobStatus=job, message="out of luck")])
    monkeypatch.setattr(RemoteRun, "_status_of_results", lambda self: {"state": stored})
    sight = look(server)
    assert (sight.status, sight.is_alive, sight.trouble) == ({"state": stored}, is_alive, trouble)
