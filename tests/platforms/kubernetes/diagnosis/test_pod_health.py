import pytest

from steppe.platforms.kubernetes.diagnosis.pod_health import (
    HEALTHY,
    PATIENT_SECONDS,
    SURE_SECONDS,
    ending_of,
    health_of,
    ray_job_health,
)


def pod(state=None, role="driver", **status):
    containers = [
        {
            "name": role,
            "image": "steppe:1",
            "resources": {"requests": {"cpu": "1000m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}},
        }
    ]
    states = [{"name": role, "image": "steppe:1", "state": state}] if state else []
    return {
        "metadata": {"name": f"x-{role}-1", "labels": {"steppe/role": role}},
        "spec": {"containers": containers},
        "status": {"containerStatuses": states, **status},
    }


def job(role="driver", active=0, wanted=1, **status):
    return {
        "metadata": {"name": f"x-{role}", "uid": role, "labels": {"steppe/role": role}},
        "spec": {"parallelism": wanted},
        "status": {"active": active, **status},
    }


def no_room(role="driver", at="2026-01-01T10:00:00Z"):
    message = 'Error creating: pods "x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0'
    return {"reason": "FailedCreate", "message": message, "involvedObject": {"uid": role}, "lastTimestamp": at}


def owned(role, created):
    made = pod({"running": {}}, role)
    made["metadata"] |= {"ownerReferences": [{"uid": role}], "creationTimestamp": created}
    return made


def not_pulled(role="driver", reason="ImagePullBackOff"):
    return pod({"waiting": {"reason": reason, "message": "no answer"}}, role)


def test_a_running_pod_is_healthy():
    assert health_of([pod({"running": {}})], [], []) == HEALTHY


def test_an_image_that_cannot_be_pulled_is_named():
    health = health_of(
        [pod({"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "steppe:1"'}})], [], []
    )
    assert health.trouble
    assert health.phase.startswith(
        'the image steppe:1 of Pod x-driver-1 cannot be pulled (Back-off pulling image "steppe:1"); build'
    )


def test_a_pod_without_a_node_reports_its_requests():
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/2 nodes are available: 2 Insufficient memory.",
    }
    health = health_of([pod(conditions=[condition])], [], [])
    assert not health.trouble
    assert health.phase == (
        "Pod x-driver-1 waits for a node: 0/2 nodes are available: 2 Insufficient memory; it asks for 1000m cpu, "
        "3Gi memory; ask for less (kubernetes.driver), or add nodes"
    )


def test_a_pod_rejected_by_its_node_reports_why():
    message = "Allocate failed due to [at most 1 nvidia.com/gpu can be requested on GPU nodes], which is unexpected"
    health = health_of([pod(phase="Failed", reason="UnexpectedAdmissionError", message=message)], [], [])
    assert health.phase == f"Pod x-driver-1 was turned away by its node: {message}"
    assert not health.trouble


def test_out_of_memory_ends_a_driver_but_not_an_expendable_worker():
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    driver = health_of([pod(ended)], [], [])
    worker = health_of([pod(ended, role="worker")], [], [], expendable={"worker"})
    assert (
        driver.phase == "Pod x-driver-1 ran out of memory (its limit is 3Gi); give it more by kubernetes.driver.memory"
    )
    assert (bool(driver.trouble), bool(worker.trouble)) == (True, False)


def beside(state, limits=None):
    """A driver's Pod with a running own container and a problem of the second of two simulators."""
    made = pod({"running": {}})
    made["spec"]["containers"] += [
        {"name": "physics", "image": "world:1"},
        {"name": "sidecar-1", "image": "world:2", "resources": {"limits": limits or {}}},
    ]
    made["status"]["containerStatuses"] += [
        {"name": "physics", "state": {"running": {}}},
        {"name": "sidecar-1", "state": state},
    ]
    return made


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"memory": "1Gi"}, "ran out of memory (its limit is 1Gi); give"), ({}, "ran out of memory; give")],
)
def test_out_of_memory_of_a_simulator_names_its_own_field(limits, said):
    health = health_of([beside({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, limits)], [], [])
    assert health.phase == (
        f'the container "sidecar-1" beside Pod x-driver-1\'s own {said} it more by resources.limits.memory in '
        "kubernetes.sidecars[1]"
    )


def test_a_missing_image_of_a_simulator_names_its_own_field():
    health = health_of([beside({"waiting": {"reason": "ErrImagePull"}})], [], [])
    assert health.phase == (
        "the image world:2 of Pod x-driver-1 cannot be pulled; push it, name another one in "
        "kubernetes.sidecars[1].image, or give kubernetes.image_pull_secrets"
    )


def test_out_of_memory_of_a_reader_names_no_field():
    health = health_of([pod({"terminated": {"reason": "OOMKilled"}}, "reader")], [], [])
    assert health.phase == "Pod x-reader-1 ran out of memory (its limit is 3Gi)"


@pytest.mark.parametrize(
    ("role", "reason", "seconds"),
    [
        ("driver", "ErrImagePull", PATIENT_SECONDS),
        ("driver", "ImagePullBackOff", PATIENT_SECONDS),
        ("worker", "ImagePullBackOff", PATIENT_SECONDS),
        # These reasons do not depend on a registry.
        ("driver", "InvalidImageName", SURE_SECONDS),
        ("driver", "ErrImageNeverPull", SURE_SECONDS),
    ],
)
def test_a_pull_counts_as_failed_only_after_a_slow_registry_would_have_answered(role, reason, seconds):
    health = health_of([not_pulled(role, reason)], [], [])
    assert (bool(health.trouble), health.seconds) == (True, seconds)
    assert PATIENT_SECONDS >= 60


@pytest.mark.parametrize(
    ("pods", "jobs", "events"),
    [
        ([not_pulled("worker")], [], []),
        ([pod({"waiting": {"reason": "CreateContainerError"}}, "worker")], [], []),
        ([], [job("worker")], [no_room("worker")]),
    ],
)
def test_trouble_of_workers_is_final_unless_they_are_expendable(pods, jobs, events):
    vital, expendable = health_of(pods, jobs, events), health_of(pods, jobs, events, expendable={"worker"})
    assert (bool(vital.trouble), bool(expendable.trouble)) == (True, False)
    assert vital.phase == expendable.phase


def test_a_failed_job_of_workers_is_final_even_if_they_are_expendable():
    failed = job("worker", conditions=[{"type": "Failed", "status": "True", "message": "too often"}])
    health = health_of([not_pulled("worker")], [failed], [], expendable={"worker"})
    assert (health.phase, bool(health.trouble)) == ("Job x-worker has failed: too often", True)
    assert health.seconds == SURE_SECONDS


def test_final_trouble_is_reported_first():
    health = health_of([not_pulled("worker"), not_pulled("driver")], [], [], expendable={"worker"})
    assert health.trouble
    assert "x-driver-1" in health.phase


def test_an_exceeded_quota_is_found_in_the_events_of_a_job():
    health = health_of([], [job()], [no_room()])
    assert health.trouble
    assert "exceeded quota: small, requested: pods=1, used: pods=0; ask for less" in health.phase


def test_an_exceeded_quota_for_some_workers_is_reported():
    there = owned("worker", "2026-01-01T10:00:00Z")
    health = health_of([there], [job("worker", active=1, wanted=3)], [no_room("worker")], expendable={"worker"})
    assert "the namespace has no room for a Pod" in health.phase


@pytest.mark.parametrize(
    ("made", "active"),
    [
        ("2026-01-01T09:00:00Z", 1),  # all Pods exist
        ("2026-01-01T10:00:05Z", 0),  # a Pod was made since, and has ended
    ],
)
def test_an_event_is_ignored_once_its_job_got_a_pod(made, active):
    assert health_of([owned("driver", made)], [job(active=active)], [no_room()]) == HEALTHY


def test_an_event_of_another_job_is_ignored():
    there = owned("driver", "2026-01-01T10:00:00Z")
    assert health_of([there], [job(active=1)], [no_room("worker")]) == HEALTHY


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"kueue.x-k8s.io/queue-name": "team"}, 'Job x-driver waits for its turn in queue "team"'),
        ({}, "Job x-driver waits until it is not suspended any more"),
    ],
)
def test_a_suspended_job_waits_in_its_queue(labels, said):
    suspended = job()
    suspended["spec"]["suspend"] = True
    suspended["metadata"]["labels"] |= labels
    health = health_of([not_pulled("worker")], [suspended], [], expendable={"worker"})
    assert (health.phase, bool(health.trouble), health.is_queued) == (said, False, True)
    suspended["spec"]["suspend"] = False
    assert health_of([], [suspended], []) == HEALTHY


@pytest.mark.parametrize(
    ("pods", "events", "may_pass"),
    [
        ([not_pulled()], [], True),
        ([], [no_room()], True),
        ([not_pulled(reason="InvalidImageName")], [], False),
        ([pod({"terminated": {"reason": "OOMKilled"}})], [], False),
        ([pod({"waiting": {"reason": "CreateContainerConfigError"}})], [], False),
    ],
)
def test_trouble_with_registries_and_quotas_may_pass(pods, events, may_pass):
    health = health_of(pods, [job()], events)
    assert (bool(health.trouble), health.may_pass) == (True, may_pass)


def test_a_job_reports_how_it_ended():
    completed = {"type": "Complete", "status": "True"}
    failed = {"type": "Failed", "status": "True", "message": "Job has reached the specified backoff limit."}
    assert ending_of(job()) is None
    assert ending_of(job(conditions=[completed | {"status": "False"}])) is None
    assert ending_of(job(conditions=[completed])) == ""
    assert ending_of(job(conditions=[failed])) == (
        "Job x-driver has failed: Job has reached the specified backoff limit"
    )


@pytest.mark.parametrize(
    ("status", "is_over", "has_succeeded", "sentence"),
    [
        ({}, False, False, "RayJob x waits for the KubeRay operator to take it up"),
        ({"jobDeploymentStatus": "Initializing"}, False, False, ""),
        ({"jobDeploymentStatus": "Suspended"}, False, False, "RayJob x waits for its turn, as its queue says"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "message": "fine."}, True, True, None),
        (
            {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": "exit code 3\n last words."},
            True,
            False,
            "RayJob x has ended: exit code 3 last words",
        ),
        ({"jobDeploymentStatus": "ValidationFailed", "reason": "Bad"}, True, False, "RayJob x has ended: Bad"),
        (
            {
                "jobDeploymentStatus": "Initializing",
                "rayClusterStatus": {
                    "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small"}]
                },
            },
            False,
            False,
            "KubeRay cannot make a Pod: exceeded quota: small",
        ),
    ],
)
def test_the_status_of_a_ray_job_becomes_a_sentence(status, is_over, has_succeeded, sentence):
    found = ray_job_health({"metadata": {"name": "x"}, "status": status})
    assert (not found.is_alive, not found.is_alive and not found.trouble) == (is_over, has_succeeded)
    assert sentence is None or found.phase == sentence
