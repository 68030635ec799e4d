"""The messages to a user about a run on a cluster, by the health of its Pods."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clocks import set_clock

from steppe.clusters import registry
from steppe.errors import ClusterError
from steppe.experiments.locations import location_of
from steppe.experiments.on_cluster import location
from steppe.experiments.on_cluster.address import ClusterAddress
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.on_cluster.seen_status import PODS_GONE
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.files.run_files import CLUSTER_FILE
from steppe.platforms.kubernetes.client.kubeapi import KubeError
from steppe.platforms.kubernetes.diagnosis.pod_health import PodHealth

BEGIN = 1000.0
RUNNING = {"state": "running", "timestep": 10, "phase": "training"}


class Cluster:
    """Returns one PodHealth after the other, the last one for ever, each a second after the one before."""

    def __init__(self, *sights: PodHealth | KubeError) -> None:
        self.sights, self.looks, self.now = sights, 0, BEGIN
        self.asked: list[str] = []
        self.ended: list[int] = []
        self.noted: list[dict[str, Any]] = []

    def look(self) -> PodHealth:
        self.looks += 1
        sight = self.sights[min(self.looks, len(self.sights)) - 1]
        if isinstance(sight, Exception):
            raise sight
        return sight

    def ask(self, action: str) -> None:
        self.asked.append(action)

    def end_pods(self, start: int) -> None:
        self.ended.append(start)

    def note(self, status: dict[str, Any]) -> None:
        self.noted.append(status)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def on(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts the experiment on a cluster that reports these values."""

    def put(*sights: PodHealth | KubeError) -> Cluster:
        cluster = Cluster(*sights)

        @contextlib.contextmanager
        def reached(place: ClusterAddress) -> Iterator[tuple[None, Cluster]]:
            yield None, cluster

        monkeypatch.setattr(location, "reach", reached)
        monkeypatch.setattr(registry, "knows", lambda name: True)
        set_clock(monkeypatch, monotonic=lambda: cluster.now, sleep=cluster.sleep)
        place = ClusterAddress("lab", "default", "steppe-first-1", start=3)
        (folder.path / CLUSTER_FILE).write_text(json.dumps(dataclasses.asdict(place)))
        folder.write_status(Status(state="starting", created=1.0))
        return cluster

    return put


def test_trouble_that_lasts_ends_the_run_with_its_sentence(folder: RunFolder, on: Any) -> None:
    cluster = on(PodHealth(RUNNING, True, "0 of 2 workers are ready: no image", "no image", 90.0, may_pass=True))
    status = ClusterLocation(folder).follow(lambda seen: None)
    assert (status.state, status.reason) == ("failed", "no image")
    assert cluster.now == BEGIN + 90.0
    assert cluster.ended == [3]


def test_trouble_that_passes_ends_nothing(folder: RunFolder, on: Any) -> None:
    troubled = PodHealth(RUNNING, True, "no image yet", trouble="no image yet", seconds=90.0)
    completed = PodHealth({"state": "completed", "timestep": 30}, False)
    on(*[troubled] * 80, PodHealth(RUNNING, True), *[troubled] * 80, completed)
    assert ClusterLocation(folder).follow(lambda seen: None).state == "completed"


@pytest.mark.parametrize("may_pass", [True, False])
def test_a_run_that_has_trained_outlives_a_registry_that_is_away(folder: RunFolder, on: Any, may_pass: bool) -> None:
    away = PodHealth(RUNNING, True, "no image", "no image", 90.0, may_pass=may_pass, is_heard=False)
    trained = PodHealth(RUNNING | {"timestep": 20}, True)
    on(PodHealth(RUNNING, True), trained, *[away] * 600, PodHealth({"state": "completed", "timestep": 30}, False))
    assert ClusterLocation(folder).follow(lambda seen: None).state == ("completed" if may_pass else "failed")


def test_a_run_in_a_queue_is_followed_for_as_long_as_it_waits_there(folder: RunFolder, on: Any) -> None:
    queued = PodHealth(None, True, 'Job x waits for its turn in queue "team"', is_queued=True, is_heard=False)
    on(*[queued] * int(3 * location.PENDING_SECONDS), PodHealth({"state": "completed", "timestep": 30}, False))
    assert ClusterLocation(folder).follow(lambda seen: None).state == "completed"


def test_a_run_that_waits_for_its_workers_is_not_followed_for_ever(folder: RunFolder, on: Any) -> None:
    cluster = on(PodHealth(RUNNING, True, "0 of 2 workers are ready: Pod x waits for a node"))
    with pytest.raises(ClusterError, match=r"still waits on cluster .lab.: 0 of 2 workers are ready: Pod x waits"):
        ClusterLocation(folder).follow(lambda seen: None)
    assert location.PENDING_SECONDS < cluster.now - BEGIN < location.PENDING_SECONDS + 5
    assert cluster.ended == []


def test_a_run_that_trains_with_some_of_its_workers_is_followed_on(folder: RunFolder, on: Any) -> None:
    phase = "1 of 2 workers are ready: Pod x waits for a node"
    many = int(location.PENDING_SECONDS) + 100
    training = [PodHealth(RUNNING | {"timestep": number // 30}, True, phase) for number in range(many)]
    on(*training, PodHealth({"state": "completed", "timestep": 30}, False))
    seen: list[Status] = []
    assert ClusterLocation(folder).follow(seen.append).state == "completed"
    assert seen[0].phase == phase


def test_the_status_names_what_the_run_waits_for(folder: RunFolder, on: Any) -> None:
    on(PodHealth(None, True, "the image cannot be pulled", trouble="the image cannot be pulled"))
    status = location_of(folder).status()
    assert (status.state, status.phase) == ("starting", "the image cannot be pulled")


@pytest.mark.parametrize("stored", [None, RUNNING, {"state": "paused", "timestep": 10}])
def test_a_failed_driver_job_fails_a_run_that_nobody_followed(folder: RunFolder, on: Any, stored: Any) -> None:
    cluster = on(PodHealth(stored, False, trouble="Job x has failed: too often"))
    status = location_of(folder).status()
    assert (status.state, status.reason) == ("failed", "Job x has failed: too often")
    assert cluster.ended == [3]
    assert location_of(folder).status() == status
    assert cluster.looks == 1


def test_a_failure_that_the_run_has_written_down_itself_keeps_its_reason(folder: RunFolder, on: Any) -> None:
    on(PodHealth({"state": "failed", "reason": "the agent diverged"}, False, trouble="Job x has failed"))
    assert location_of(folder).status().reason == "the agent diverged"


def test_deleted_pods_fail_the_run(folder: RunFolder, on: Any) -> None:
    on(PodHealth(RUNNING, False))
    assert location_of(folder).status().reason == PODS_GONE


@pytest.mark.parametrize(("code", "seconds"), [(403, location.FORBIDDEN_SECONDS), (0, location.UNREACHABLE_SECONDS)])
def test_missing_permission_is_reported_sooner_than_an_unreachable_cluster(
    folder: RunFolder, on: Any, code: int, seconds: float
) -> None:
    cluster = on(PodHealth(None, True, "its Pod is starting"), KubeError("may not get pods/proxy", code))
    with pytest.raises(KubeError, match="may not get pods/proxy"):
        ClusterLocation(folder).follow(lambda seen: None)
    assert seconds < cluster.now - BEGIN < seconds + 3
    assert cluster.ended == []


@pytest.mark.parametrize(("ask", "state"), [(ClusterLocation.stop, "stopped"), (ClusterLocation.pause, "paused")])
def test_a_run_whose_crashed_driver_is_being_replaced_can_be_ended(
    folder: RunFolder, on: Any, ask: Any, state: str
) -> None:
    # The last log line of the dead Pod.
    died = RUNNING | {"reason": "the training ended without a word (exit code 7)"}
    cluster = on(PodHealth(died, True, is_heard=False, phase="its Pod is being replaced"))
    seen = location_of(folder).status()
    assert (seen.state, seen.reason, seen.phase) == ("starting", "", "its Pod is being replaced")
    ended = ask(ClusterLocation(folder), 1.0)
    assert (ended.state, ended.timestep) == (state, 10)
    assert ended.reason == f"{state} while its Pod was starting"
    assert cluster.ended == [3]
    assert location_of(folder).status() == ended


SILENT = PodHealth(RUNNING, True, "its Pod is starting", is_heard=False, is_silent=True)


@pytest.mark.parametrize(("ask", "state"), [(ClusterLocation.stop, "stopped"), (ClusterLocation.pause, "paused")])
def test_a_driver_that_misses_an_answer_is_asked_and_not_ended(
    folder: RunFolder, on: Any, ask: Any, state: str
) -> None:
    saved = PodHealth({"state": state, "timestep": 20}, False)
    cluster = on(SILENT, SILENT, PodHealth(RUNNING, True), PodHealth(RUNNING, True), saved)
    ended = ask(ClusterLocation(folder), 60.0)
    assert (ended.state, ended.timestep) == (state, 20)
    assert cluster.asked == [ask.__name__]


def test_a_driver_that_is_never_heard_is_ended_after_a_while(folder: RunFolder, on: Any) -> None:
    cluster = on(SILENT)
    assert ClusterLocation(folder).pause(1.0).state == "paused"
    assert location.LISTEN_SECONDS <= cluster.now - BEGIN < location.LISTEN_SECONDS + 2
    assert (cluster.asked, cluster.ended) == ([], [3])
