from steppe.platforms.kubernetes.waiting import trouble_of


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


def test_memory_that_ran_out_ends_a_driver_and_not_a_worker():
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    driver, worker = trouble_of([pod(ended)], [], []), trouble_of([pod(ended, role="worker")], [], [])
    assert (
        driver.sentence
        == "Pod x-driver-1 ran out of memory (its limit is 3Gi); give it more by kubernetes.driver.memory"
    )
    assert (driver.is_final, worker.is_final) == (True, False)


def test_a_quota_is_told_from_the_jobs_events():
    job = {"metadata": {"name": "x-driver", "uid": "1", "labels": {"steppe/role": "driver"}}, "status": {}}
    event = {
        "reason": "FailedCreate",
        "message": 'Error creating: pods "x" is forbidden: exceeded quota: small, requested: pods=1, '
        "used: pods=0, limited: pods=0",
    }
    trouble = trouble_of([], [job], [event])
    assert trouble.is_final
    assert "exceeded quota: small, requested: pods=1, used: pods=0, limited: pods=0; ask for less" in trouble.sentence


def test_an_old_event_is_forgotten_when_the_pod_is_there():
    job = {"metadata": {"name": "x-driver", "uid": "1", "labels": {"steppe/role": "driver"}}, "status": {}}
    there = pod({"running": {}})
    there["metadata"]["ownerReferences"] = [{"uid": "1"}]
    event = {"reason": "FailedCreate", "message": "exceeded quota: small"}
    assert trouble_of([there], [job], [event]) is None
