"""The health of a run as a client sees it, and the requests that it takes to find out."""

from __future__ import annotations

import contextlib
import json
import time
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from clocks import set_clock
from kube_memory import MemoryKube

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.client import remote_run, workloads
from steppe.platforms.kubernetes.client.kubeapi import Kube, KubeAnswer, KubeError
from steppe.platforms.kubernetes.client.remote_run import RemoteRun
from steppe.platforms.kubernetes.diagnosis.pod_health import PATIENT_SECONDS, PodHealth
from steppe.platforms.kubernetes.manifests import naming

Json = dict[str, Any]
RUN = "steppe-first-12345678"


def cluster_of(engine: str, objects: list[Json], said: Json | KubeError | None = None, pods: Json | None = None) -> Any:
    """A cluster with the root and the Secret of one run and other objects; its Pods answer with `said`."""
    spec = {"name": "first", "environment": "CartPole-v1", "agent": "ppo", "kubernetes": pods or {}}
    root = {"metadata": {"name": RUN, "annotations": {naming.ENGINE: engine}}, "kind": "ConfigMap"}
    root["data"] = {"experiment.json": json.dumps(spec)}
    token = {"kind": "Secret", "metadata": {"name": f"{RUN}-tokens"}, "data": {"door": b64encode(b"t").decode()}}
    kube = MemoryKube(root, token, *objects)
    kube.answers = answering(said)
    return kube


def answering(said: Json | KubeError | None) -> Callable[..., KubeAnswer]:
    def answer(pod: str, path: str, **_: Any) -> KubeAnswer:
        if isinstance(said, KubeError):
            raise said
        return KubeAnswer(503, b"") if said is None else KubeAnswer(200, json.dumps(said).encode())

    return answer


def pod(role: str, number: int = 0, state: Json | None = None) -> Json:
    statuses = [{"name": role, "image": "steppe:1", "state": state or {"running": {}}}]
    return made("Pod", f"{RUN}-{role}-{number}", role) | {
        "status": {"containerStatuses": statuses, "phase": "Pending" if "waiting" in (state or {}) else "Running"},
        "spec": {"containers": [{"name": role, "image": "steppe:1"}]},
    }


def made(kind: str, name: str, role: str) -> Json:
    labels = {naming.RUN: RUN, naming.ROLE: role}
    return {"kind": kind, "metadata": {"name": name, "uid": name, "labels": labels, "creationTimestamp": "1"}}


def ray_job(**status: str) -> Json:
    return {"kind": "RayJob", "metadata": {"name": RUN, "labels": {naming.RUN: RUN}}, "status": status}


def look(server: Any) -> PodHealth:
    return RemoteRun(server, RUN).look()


THOUSAND = [pod("driver"), *(pod("worker", number) for number in range(1000))]
JOBS = [made("Job", f"{RUN}-{role}", role) for role in ("driver", "worker")]


def test_a_driver_that_answers_is_the_only_pod_asked_for():
    server = cluster_of("jobs", [*THOUSAND, *JOBS], said={"status": {"state": "running"}, "is_over": False})
    assert look(server).is_alive
    assert server.sent == 1
    assert server.requested == ["Pod", "Secret"]


def test_only_some_of_a_thousand_workers_are_examined_without_a_driver():
    server = cluster_of("jobs", [*THOUSAND, *JOBS])
    assert look(server).phase == "its Pod is starting"
    assert server.sent <= 1 + len(JOBS) + workloads.MOST_PODS


@pytest.mark.parametrize("code", [401, 403])
def test_a_user_who_may_not_ask_pods_gets_an_error(code):
    forbidden = KubeError('"ann" may not get pods/proxy in namespace "space" of cluster "lab"', code)
    with pytest.raises(KubeError, match=r"may not get pods/proxy"):
        look(cluster_of("jobs", [pod("driver"), *JOBS], said=forbidden))


def running_for(seconds: float) -> Json:
    began = datetime.fromtimestamp(time.time() - seconds, UTC)
    return {"running": {"startedAt": f"{began:%Y-%m-%dT%H:%M:%SZ}"}}


BLOCKED = 'the cluster "lab" refuses: error trying to reach service: dial tcp 10.0.0.7:8470: i/o timeout'


@pytest.mark.parametrize("engine", ["jobs", "kuberay"])
def test_a_running_driver_without_an_answer_is_explained(engine):
    ray = ray_job(jobDeploymentStatus="Running")
    server = cluster_of(engine, [pod("driver", 0, running_for(40.0)), *JOBS, ray], KubeError(BLOCKED, 503))
    health = look(server)
    assert health.phase == (
        f"Pod {RUN}-driver-0 runs, and the API server brings no answer of it ({BLOCKED}); see whether it reaches port "
        '8470 of Pods: "steppe cluster check -c lab"'
    )
    assert (health.is_alive, health.is_heard, health.trouble) == (True, False, "")


@pytest.mark.parametrize(
    ("seconds", "why"),
    [(5.0, BLOCKED), (40.0, BLOCKED.replace("i/o timeout", "connect: connection refused"))],
)
def test_a_starting_driver_is_not_reported_as_silent(seconds, why):
    server = cluster_of("jobs", [pod("driver", 0, running_for(seconds)), *JOBS], KubeError(why, 503))
    assert look(server).phase == "its Pod is starting"


def ending(seconds: float, number: int = 0) -> Json:
    """A driver's Pod that should have ended so many seconds ago, but still exists on its node."""
    left = pod("driver", number)
    limit = datetime.fromtimestamp(time.time() - seconds, UTC)
    left["metadata"]["deletionTimestamp"] = f"{limit:%Y-%m-%dT%H:%M:%SZ}"
    left["spec"]["nodeName"] = "node-7"
    return left


def test_a_driver_on_a_lost_node_is_reported_with_the_kubectl_command():
    said = (
        f"Pod {RUN}-driver-0 on node node-7 does not end, as Pods of a lost node do; when the node is really gone: "
        f"kubectl delete pod {RUN}-driver-0 --namespace space --force"
    )
    assert look(cluster_of("jobs", [ending(60.0), *JOBS])).phase == said
    # Another driver may be unable to start while it holds the disk.
    waiting = pod("driver", 1, {"waiting": {"reason": "ContainerCreating"}})
    assert look(cluster_of("jobs", [ending(60.0), waiting, *JOBS])).phase == said


def test_an_ending_or_replaced_driver_is_not_reported_as_stuck():
    assert look(cluster_of("jobs", [ending(-10.0), *JOBS])).phase == "its Pod is being replaced"
    assert look(cluster_of("jobs", [ending(60.0), pod("driver", 1), *JOBS])).phase == "its Pod is starting"


NOT_PULLED = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
NO_ROOM = {
    "kind": "Event",
    "metadata": {"name": "1"},
    "reason": "FailedCreate",
    "message": 'Error creating: pods "x" is forbidden: exceeded quota: small, requested: pods=1',
    "involvedObject": {"uid": f"{RUN}-worker"},
}


def answer(**joined: tuple[int, int, int]) -> Json:
    """The status of a driver with so many servers and workers: connected, wanted, and the most so far."""
    told = {kind: dict(zip(("here", "wanted", "most"), each, strict=True)) for kind, each in joined.items()}
    return {"status": {"state": "starting", "phase": "compiling"}, "is_over": False, "joined": told}


@pytest.mark.parametrize("joined", [{"worker": (0, 2, 0)}, {"server": (0, 1, 0), "worker": (0, 2, 0)}])
@pytest.mark.parametrize("engine", ["jobs", "kuberay"])
def test_a_missing_worker_image_is_trouble_if_no_worker_has_joined(engine, joined):
    objects = [pod("driver"), pod("worker", 1, NOT_PULLED), pod("worker", 2, NOT_PULLED), *JOBS, ray_job()]
    health = look(cluster_of(engine, objects, said=answer(**joined)))
    assert health.is_alive
    assert f"0 of 2 workers are ready: the image steppe:1 of Pod {RUN}-worker-1 cannot be pulled" in health.phase
    assert health.trouble.startswith(f"the image steppe:1 of Pod {RUN}-worker-1 cannot be pulled (no such image)")
    assert health.seconds == PATIENT_SECONDS


@pytest.mark.parametrize("joined", [(1, 2, 1), (0, 2, 1)])
@pytest.mark.parametrize("engine", ["jobs", "kuberay"])
def test_trouble_of_one_worker_is_not_final_if_another_has_joined(engine, joined):
    objects = [pod("driver"), pod("worker", 1, NOT_PULLED), pod("worker", 2), *JOBS, ray_job()]
    health = look(cluster_of(engine, objects, said=answer(worker=joined)))
    assert health.phase.startswith(f"{joined[0]} of 2 workers are ready: the image steppe:1 of Pod {RUN}-worker-1")
    assert health.trouble == ""


def test_a_quota_with_room_for_the_driver_only_is_trouble():
    health = look(cluster_of("jobs", [pod("driver"), *JOBS, NO_ROOM], said=answer(worker=(0, 2, 0))))
    assert health.trouble.startswith("the namespace has no room for a Pod: exceeded quota: small, requested: pods=1")


def test_a_missing_parameter_server_is_trouble_even_if_another_has_joined():
    objects = [pod("driver"), pod("server", 1), pod("server", 2, NOT_PULLED), pod("worker"), *JOBS]
    objects.append(made("Job", f"{RUN}-server", "server"))
    health = look(cluster_of("jobs", objects, said=answer(server=(1, 2, 1), worker=(1, 1, 1))))
    assert health.phase.startswith("1 of 2 servers and 1 of 1 workers are ready: the image")
    assert f"Pod {RUN}-server-2" in health.trouble


def queued(role: str) -> Json:
    job = made("Job", f"{RUN}-{role}", role) | {"spec": {"suspend": True}}
    job["metadata"]["labels"][naming.KUEUE_QUEUE] = "team"
    return job


def test_queued_drivers_and_workers_are_reported_as_queued():
    health = look(cluster_of("jobs", [queued("driver"), queued("worker")]))
    assert (health.phase, health.is_queued) == (f'Job {RUN}-driver waits for its turn in queue "team"', True)
    health = look(cluster_of("jobs", [pod("driver"), JOBS[0], queued("worker")], said=answer(worker=(0, 2, 0))))
    assert health.phase == f'0 of 2 workers are ready: Job {RUN}-worker waits for its turn in queue "team"'
    assert (health.is_queued, health.trouble) == (True, "")
    assert look(cluster_of("kuberay", [ray_job(jobDeploymentStatus="Suspended")])).is_queued


def test_workers_that_have_given_up_are_trouble():
    gone = ended_job("Complete", role="worker")
    health = look(cluster_of("jobs", [pod("driver"), JOBS[0], gone], said=answer(worker=(0, 2, 1))))
    assert health.trouble == f"the Pods of Job {RUN}-worker have given up waiting for the driver; stop and resume it"
    # They also end well when the driver reports the end of the run, which its next Pod may have to report again.
    assert look(cluster_of("jobs", [JOBS[0], gone])).trouble == ""


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_workers_that_have_given_up_are_no_trouble_while_another_job_trains(kind):
    gone = ended_job(kind, role="worker")
    gone["metadata"]["name"] = f"{RUN}-worker-2"
    server = cluster_of("jobs", [pod("driver"), pod("worker"), *JOBS, gone], said=answer(worker=(6, 7, 7)))
    health = look(server)
    assert health.phase.startswith("6 of 7 workers are ready: ")
    assert f"Job {RUN}-worker-2 " in health.phase
    assert health.trouble == ""
    # Nor is it trouble while the driver is being replaced.
    assert look(cluster_of("jobs", [*server.objects.values()])).trouble == ""
    # Before the training has begun, they are needed.
    server.answers = answering(answer(worker=(0, 7, 0)))
    assert f"Job {RUN}-worker-2 " in look(server).trouble


def test_workers_are_trouble_once_all_their_jobs_have_given_up():
    both = [ended_job("Complete", role="worker") for _ in range(2)]
    both[1]["metadata"]["name"] = f"{RUN}-worker-2"
    health = look(cluster_of("jobs", [pod("driver"), JOBS[0], *both], said=answer(worker=(0, 7, 7))))
    assert "have given up waiting for the driver" in health.trouble


def test_a_missing_server_is_reported_before_workers_that_have_given_up():
    gone, server = ended_job("Complete", role="worker"), made("Job", f"{RUN}-server", "server")
    gone["metadata"]["name"] = f"{RUN}-worker-2"
    objects = [pod("driver"), pod("worker"), pod("server", 1, NOT_PULLED), *JOBS, gone, server]
    health = look(cluster_of("jobs", objects, said=answer(server=(0, 1, 0), worker=(6, 7, 7))))
    assert f"Pod {RUN}-server-1" in health.trouble


def test_starting_workers_are_counted():
    health = look(cluster_of("jobs", [pod("driver"), pod("worker"), *JOBS], said=answer(worker=(0, 1, 0))))
    assert (health.phase, health.trouble) == ("0 of 1 workers are ready", "")


def test_the_one_worker_of_a_thousand_that_does_not_run_is_found():
    server = cluster_of(
        "jobs", [*THOUSAND, pod("worker", 1000, NOT_PULLED), *JOBS], said=answer(worker=(1000, 1001, 1000))
    )
    assert f"Pod {RUN}-worker-1000 cannot be pulled" in look(server).phase
    assert server.sent <= 1 + len(JOBS) + 2 * workloads.MOST_PODS


def test_missing_workers_are_not_examined_every_second(monkeypatch):
    now = 1000.0
    set_clock(monkeypatch, monotonic=lambda: now)
    server = cluster_of("jobs", [pod("driver"), pod("worker", 1, NOT_PULLED), *JOBS], said=answer(worker=(1, 2, 1)))
    run = RemoteRun(server, RUN)
    first = run.look()
    server.requested.clear()
    now += remote_run.POOL_SECONDS / 2
    assert run.look() == first
    assert server.requested == ["Pod"]
    now += remote_run.POOL_SECONDS
    assert run.look() == first
    assert "Job" in server.requested


def test_the_first_worker_is_noticed_at_once():
    server = cluster_of("jobs", [pod("driver"), pod("worker", 1, NOT_PULLED), *JOBS], said=answer(worker=(0, 2, 0)))
    run = RemoteRun(server, RUN)
    assert run.look().trouble
    server.answers = answering(answer(worker=(1, 2, 1)))
    assert not run.look().trouble


@pytest.mark.parametrize(("engine", "is_final"), [("jobs", False), ("kuberay", True)])
def test_without_a_driver_only_workers_of_kuberay_are_trouble(engine, is_final):
    health = look(cluster_of(engine, [pod("driver"), pod("worker", 1, NOT_PULLED), *JOBS, ray_job()]))
    assert "the image steppe:1 of Pod" in health.phase
    assert bool(health.trouble) == is_final


@pytest.mark.parametrize("engine", ["jobs", "kuberay"])
def test_trouble_of_one_worker_does_not_end_a_moving_driver(engine):
    objects = [pod("driver"), pod("worker", 1, NOT_PULLED), pod("worker", 2), *JOBS, ray_job()]
    assert look(cluster_of(engine, objects)).trouble == ""


PENDING = [[], [pod("driver", 0, NOT_PULLED)], [pod("driver", 0, {"terminated": {"exitCode": 4, "message": "{}"}})]]


@pytest.mark.parametrize("drivers", [*PENDING, [pod("driver")]])
@pytest.mark.parametrize("read", [RemoteRun.log, RemoteRun.files])
def test_no_reader_is_started_that_would_block_the_disk_of_a_driver(monkeypatch, read, drivers):
    monkeypatch.setattr(RemoteRun, "_reader", lambda self: pytest.fail("a reader would be started"))
    with pytest.raises(ClusterError, match=r"its files cannot be read now: .*; try again when its driver answers"):
        read(RemoteRun(cluster_of("jobs", [*drivers, *JOBS]), RUN))


@pytest.mark.parametrize("drivers", [*PENDING, [pod("driver")]])
@pytest.mark.parametrize("pods", [{"results": "s3://bucket/runs"}, {"access_mode": "ReadWriteMany"}])
def test_a_reader_shows_the_files_if_it_blocks_no_disk(monkeypatch, pods, drivers):
    monkeypatch.setattr(RemoteRun, "_reader", lambda self: contextlib.nullcontext("reader"))
    server = cluster_of("jobs", [*drivers, *JOBS], pods=pods)
    server.answers = shown_by_the_reader
    assert RemoteRun(server, RUN).files() == []


def test_following_a_log_waits_for_the_driver_without_a_reader(monkeypatch):
    monkeypatch.setattr(RemoteRun, "_reader", lambda self: pytest.fail("a reader would be started"))
    run = RemoteRun(cluster_of("jobs", JOBS, pods={"results": "s3://bucket/runs"}), RUN)
    with pytest.raises(ClusterError, match="its files cannot be read now"):
        run.log(0, is_patient=True)


def shown_by_the_reader(pod: str, path: str, **_: Any) -> KubeAnswer:
    return KubeAnswer(200, b'{"files": []}') if pod == "reader" else KubeAnswer(503, b"")


def ended_driver() -> Json:
    words = json.dumps({"status": {"state": "completed"}, "is_over": True})
    return pod("driver", 0, {"terminated": {"exitCode": 0, "message": words}})


@pytest.mark.parametrize("engine", ["jobs", "kuberay"])
def test_a_reader_shows_the_files_if_no_driver_will(monkeypatch, engine):
    @contextlib.contextmanager
    def reader(self: RemoteRun) -> Any:
        yield "reader"

    monkeypatch.setattr(RemoteRun, "_reader", reader)
    # In the second case a simulator beside the ended driver keeps its Job from being complete.
    for objects in (
        [],
        [ended_driver(), *JOBS, ray_job()],
        [ended_job("Failed"), ray_job(jobDeploymentStatus="Failed")],
    ):
        server = cluster_of(engine, objects, said={"files": []})
        assert RemoteRun(server, RUN).files() == []


def ended_job(kind: str, message: str = "", role: str = "driver") -> Json:
    condition = {"type": kind, "status": "True", "message": message}
    return made("Job", f"{RUN}-{role}", role) | {"status": {"conditions": [condition]}}


@pytest.mark.parametrize("stored", ["completed", "paused", "stopped"])
def test_the_status_of_a_completed_job_without_pods_comes_from_its_results(monkeypatch, stored):
    monkeypatch.setattr(RemoteRun, "_status_of_results", lambda self: {"state": stored})
    health = look(cluster_of("jobs", [ended_job("Complete")]))
    assert (health.status, health.is_alive, health.trouble) == ({"state": stored}, False, "")


def test_a_failed_job_without_pods_is_a_failed_run(monkeypatch):
    monkeypatch.setattr(RemoteRun, "_status_of_results", lambda self: {"state": "running"})
    health = look(cluster_of("jobs", [ended_job("Failed", "backoff limit reached")]))
    assert (health.status, health.is_alive) == ({"state": "running"}, False)
    assert health.trouble == f"Job {RUN}-driver has failed: backoff limit reached"


def test_a_failed_job_is_reported_even_if_its_results_are_unreadable(monkeypatch):
    def unreadable(self: RemoteRun) -> Json:
        raise ClusterError("the results cannot be read")

    monkeypatch.setattr(RemoteRun, "_status_of_results", unreadable)
    health = look(cluster_of("jobs", [ended_job("Failed", "backoff limit reached")]))
    assert (health.status, health.is_alive) == (None, False)
    assert "has failed: backoff limit reached" in health.trouble


def test_a_failed_job_reports_the_end_of_its_last_pod():
    words = json.dumps({"status": {"state": "running", "reason": "exit code 7"}, "is_over": False})
    dead = pod("driver", 0, {"terminated": {"exitCode": 1, "reason": "OOMKilled", "message": words}})
    health = look(cluster_of("jobs", [dead, ended_job("Failed", "backoff limit reached")]))
    assert not health.is_alive
    assert "has failed: backoff limit reached; Pod" in health.trouble
    assert "ran out of memory" in health.trouble
    assert health.trouble.endswith("; its last Pod: exit code 7")


def beside(driver: Json, **ended: Any) -> Json:
    """A driver's Pod whose simulator has ended."""
    driver["spec"]["containers"].append({"name": "world", "image": "world:1"})
    driver["status"]["containerStatuses"].append({"name": "world", "state": {"terminated": ended}})
    return driver


OUT_OF_MEMORY = {"reason": "OOMKilled", "exitCode": 137}


def test_an_ended_simulator_is_reported_while_its_driver_runs():
    door = {"status": {"state": "running", "phase": "training"}, "is_over": False}
    health = look(cluster_of("jobs", [beside(pod("driver"), **OUT_OF_MEMORY), *JOBS], door))
    assert health.is_alive
    assert 'the container "world" beside' in health.phase
    # Only the driver decides whether to give up.
    assert health.trouble == ""


@pytest.mark.parametrize("is_answering", [True, False])
@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (OUT_OF_MEMORY, "ran out of memory; give it more by resources.limits.memory in kubernetes.sidecars[0]"),
        ({"exitCode": 2, "message": "starting\nno display\n"}, "has ended: no display"),
        ({"exitCode": 2}, "has ended: exit code 2"),
    ],
)
def test_a_failure_without_a_simulator_reports_how_that_ended(is_answering, ended, said):
    words = {"status": {"state": "failed", "reason": "the environment is away"}, "is_over": True}
    state = None if is_answering else {"terminated": {"exitCode": 3, "message": json.dumps(words)}}
    health = look(cluster_of("jobs", [beside(pod("driver", 0, state), **ended), *JOBS], words))
    assert health.status["reason"] == (
        f'the environment is away; the container "world" beside Pod {RUN}-driver-0\'s own {said}'
    )


def test_a_simulator_that_ended_well_or_after_a_completed_run_is_not_reported():
    words = {"status": {"state": "completed", "reason": "done"}, "is_over": True}
    assert look(cluster_of("jobs", [beside(pod("driver"), exitCode=143), *JOBS], words)).status["reason"] == "done"
    words["status"] = {"state": "failed", "reason": "its own"}
    assert look(cluster_of("jobs", [beside(pod("driver"), exitCode=0), *JOBS], words)).status["reason"] == "its own"


def test_waiting_until_a_thousand_pods_are_gone_lists_one_of_them():
    server, labels = cluster_of("jobs", [*THOUSAND]), {naming.RUN: RUN}
    assert Kube.wait_until_gone(server, "Pod", labels, seconds=0.0) == [THOUSAND[0]["metadata"]["name"]]
    assert server.sent == 1
    assert Kube.wait_until_gone(server, "Pod", labels | {naming.ROLE: "nobody"}) == []


def test_an_empty_page_does_not_mean_that_all_pods_are_gone(monkeypatch):
    # A server may return an empty page and announce more.
    server = cluster_of("jobs", [*THOUSAND])
    everything = server.listed
    monkeypatch.setattr(server, "listed", lambda *words, limit=0: [] if limit else everything(*words))
    assert Kube.wait_until_gone(server, "Pod", {naming.RUN: RUN}, seconds=0.0)


def test_a_run_without_a_workload_is_not_alive():
    assert not look(cluster_of("jobs", [])).is_alive
    assert not look(cluster_of("kuberay", [])).is_alive


def test_a_ray_job_reports_its_phase():
    assert "waits for the KubeRay operator" in look(cluster_of("kuberay", [ray_job()])).phase
    assert look(cluster_of("kuberay", [ray_job(jobDeploymentStatus="Initializing")])).phase == "waiting for a Pod"


def test_an_image_without_rays_dashboard_is_named():
    ended = {"terminated": {"exitCode": 1, "message": "Exception: Cannot include dashboard with missing packages."}}
    crashing = pod("driver", 0, {"waiting": {"reason": "CrashLoopBackOff"}})
    crashing["status"]["containerStatuses"][0]["lastState"] = ended
    health = look(cluster_of("kuberay", [crashing, ray_job(jobDeploymentStatus="Initializing")]))
    assert "steppe image build --package 'ray[default]'" in health.trouble


@pytest.mark.parametrize(
    ("job", "stored", "is_alive", "trouble"),
    [
        ("SUCCEEDED", "completed", False, ""),
        ("SUCCEEDED", "paused", False, ""),
        ("FAILED", "failed", False, "RayJob steppe-first-12345678 has ended: out of luck"),
        # The driver was lost before it could write its end.
        ("FAILED", "running", False, "RayJob steppe-first-12345678 has ended: out of luck"),
    ],
)
def test_the_status_of_an_ended_ray_job_comes_from_its_results(monkeypatch, job, stored, is_alive, trouble):
    phase = "Complete" if job == "SUCCEEDED" else "Failed"
    server = cluster_of("kuberay", [ray_job(jobDeploymentStatus=phase, jobStatus=job, message="out of luck")])
    monkeypatch.setattr(RemoteRun, "_status_of_results", lambda self: {"state": stored})
    health = look(server)
    assert (health.status, health.is_alive, health.trouble) == ({"state": stored}, is_alive, trouble)
