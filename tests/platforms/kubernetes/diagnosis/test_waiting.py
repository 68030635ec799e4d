import pytest

from steppe.platforms.kubernetes.diagnosis.waiting import PATIENT_SECONDS, SURE_SECONDS, end_of, trouble_of


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


def test_a_pod_that_runs_is_no_trouble():
    assert trouble_of([pod({"running": {}})], [], []) is None


def test_an_image_that_cannot_be_pulled_is_named():
    trouble = trouble_of(
        [pod({"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "steppe:1"'}})], [], []
    )
    assert trouble.is_final
    assert trouble.sentence.startswith(
        'the image steppe:1 of Pod x-driver-1 cannot be pulled (Back-off pulling image "steppe:1"); build'
    )


def test_a_pod_that_fits_on_no_node_says_what_it_asks_for():
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/2 nodes are available: 2 Insufficient memory.",
    }
    trouble = trouble_of([pod(conditions=[condition])], [], [])
    assert not trouble.is_final
    assert trouble.sentence == (
        "Pod x-driver-1 waits for a node: 0/2 nodes are available: 2 Insufficient memory; it asks for 1000m cpu, "
        "3Gi memory; ask for less (kubernetes.driver), or add nodes"
    )


def test_a_pod_that_its_node_turns_away_says_why():
    message = "Allocate failed due to [at most 1 nvidia.com/gpu can be requested on GPU nodes], which is unexpected"
    trouble = trouble_of([pod(phase="Failed", reason="UnexpectedAdmissionError", message=message)], [], [])
    assert trouble.sentence == f"Pod x-driver-1 was turned away by its node: {message}"
    assert not trouble.is_final


def test_memory_that_ran_out_ends_a_driver_and_not_a_worker_that_others_step_in_for():
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    driver = trouble_of([pod(ended)], [], [])
    worker = trouble_of([pod(ended, role="worker")], [], [], spare={"worker"})
    assert (
        driver.sentence
        == "Pod x-driver-1 ran out of memory (its limit is 3Gi); give it more by kubernetes.driver.memory"
    )
    assert (driver.is_final, worker.is_final) == (True, False)


def beside(state, limits=None):
    """A driver's Pod whose own container is well, and the second of its two simulators is not."""
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
def test_memory_that_ran_out_for_a_simulator_is_its_own(limits, said):
    trouble = trouble_of([beside({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, limits)], [], [])
    assert trouble.sentence == (
        f'the container "sidecar-1" beside Pod x-driver-1\'s own {said} it more by resources.limits.memory in '
        "kubernetes.sidecars[1]"
    )


def test_an_image_of_a_simulator_that_cannot_be_pulled_is_its_own():
    trouble = trouble_of([beside({"waiting": {"reason": "ErrImagePull"}})], [], [])
    assert trouble.sentence == (
        "the image world:2 of Pod x-driver-1 cannot be pulled; push it, name another one in "
        "kubernetes.sidecars[1].image, or give kubernetes.image_pull_secrets"
    )


def test_a_reader_that_ran_out_of_memory_is_given_no_field_that_is_not_there():
    trouble = trouble_of([pod({"terminated": {"reason": "OOMKilled"}}, "reader")], [], [])
    assert trouble.sentence == "Pod x-reader-1 ran out of memory (its limit is 3Gi)"


@pytest.mark.parametrize(
    ("role", "reason", "seconds"),
    [
        ("driver", "ErrImagePull", PATIENT_SECONDS),
        ("driver", "ImagePullBackOff", PATIENT_SECONDS),
        ("worker", "ImagePullBackOff", PATIENT_SECONDS),
        # No registry can change these.
        ("driver", "InvalidImageName", SURE_SECONDS),
        ("driver", "ErrImageNeverPull", SURE_SECONDS),
    ],
)
def test_a_registry_may_be_slow_before_a_pull_counts_as_failed(role, reason, seconds):
    trouble = trouble_of([not_pulled(role, reason)], [], [])
    assert (trouble.is_final, trouble.seconds) == (True, seconds)
    assert PATIENT_SECONDS >= 60


@pytest.mark.parametrize(
    ("pods", "jobs", "events"),
    [
        ([not_pulled("worker")], [], []),
        ([pod({"waiting": {"reason": "CreateContainerError"}}, "worker")], [], []),
        ([], [job("worker")], [no_room("worker")]),
    ],
)
def test_the_trouble_of_workers_is_final_unless_the_run_can_do_without(pods, jobs, events):
    vital, spare = trouble_of(pods, jobs, events), trouble_of(pods, jobs, events, spare={"worker"})
    assert (vital.is_final, spare.is_final) == (True, False)
    assert vital.sentence == spare.sentence


def test_a_job_of_workers_that_has_failed_is_final_even_if_the_run_could_do_without():
    failed = job("worker", conditions=[{"type": "Failed", "status": "True", "message": "too often"}])
    trouble = trouble_of([not_pulled("worker")], [failed], [], spare={"worker"})
    assert (trouble.sentence, trouble.is_final) == ("Job x-worker has failed: too often", True)
    assert trouble.seconds == SURE_SECONDS


def test_a_final_trouble_comes_before_one_that_may_pass():
    trouble = trouble_of([not_pulled("worker"), not_pulled("driver")], [], [], spare={"worker"})
    assert trouble.is_final
    assert "x-driver-1" in trouble.sentence


def test_a_quota_is_told_from_the_jobs_events():
    trouble = trouble_of([], [job()], [no_room()])
    assert trouble.is_final
    assert "exceeded quota: small, requested: pods=1, used: pods=0; ask for less" in trouble.sentence


def test_a_quota_for_some_of_the_workers_is_told():
    there = owned("worker", "2026-01-01T10:00:00Z")
    trouble = trouble_of([there], [job("worker", active=1, wanted=3)], [no_room("worker")], spare={"worker"})
    assert "the namespace has no room for a Pod" in trouble.sentence


@pytest.mark.parametrize(
    ("made", "active"),
    [
        ("2026-01-01T09:00:00Z", 1),  # there are as many as there should be
        ("2026-01-01T10:00:05Z", 0),  # there was room since, for one that has ended now
    ],
)
def test_an_old_event_is_forgotten_when_the_pod_is_there(made, active):
    assert trouble_of([owned("driver", made)], [job(active=active)], [no_room()]) is None


def test_the_event_of_another_job_is_not_held_against_one_that_has_its_pods():
    there = owned("driver", "2026-01-01T10:00:00Z")
    assert trouble_of([there], [job(active=1)], [no_room("worker")]) is None


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"kueue.x-k8s.io/queue-name": "team"}, 'Job x-driver waits for its turn in queue "team"'),
        ({}, "Job x-driver waits until it is not suspended any more"),
    ],
)
def test_a_job_that_is_suspended_waits_in_its_queue(labels, said):
    suspended = job()
    suspended["spec"]["suspend"] = True
    suspended["metadata"]["labels"] |= labels
    trouble = trouble_of([not_pulled("worker")], [suspended], [], spare={"worker"})
    assert (trouble.sentence, trouble.is_final, trouble.is_queued) == (said, False, True)
    suspended["spec"]["suspend"] = False
    assert trouble_of([], [suspended], []) is None


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
def test_what_others_bring_about_may_pass(pods, events, may_pass):
    trouble = trouble_of(pods, [job()], events)
    assert (trouble.is_final, trouble.may_pass) == (True, may_pass)


def test_a_job_that_has_ended_says_how():
    completed = {"type": "Complete", "status": "True"}
    failed = {"type": "Failed", "status": "True", "message": "Job has reached the specified backoff limit."}
    assert end_of(job()) is None
    assert end_of(job(conditions=[completed | {"status": "False"}])) is None
    assert end_of(job(conditions=[completed])).sentence == ""
    assert end_of(job(conditions=[failed])).sentence == (
        "Job x-driver has failed: Job has reached the specified backoff limit"
    )
