"""Starts an experiment on a cluster, and reads the status of one whose start was interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demonstrated import made_up
from kube_memory import MemoryKube

from steppe.clusters import registry
from steppe.clusters._base import Reachable
from steppe.errors import ClusterError, StateError, UserError
from steppe.experiments import lifecycle
from steppe.experiments.locations import location_of
from steppe.experiments.on_cluster import idle_nodes, location
from steppe.experiments.on_cluster.address import ClusterAddress, address_of, required_address
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.files.run_files import CLUSTER_FILE
from steppe.platforms.kubernetes.client.kubeapi import KubeAnswer, KubeError
from steppe.platforms.kubernetes.client.remote_run import RemoteRun
from steppe.platforms.kubernetes.manifests import naming
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.spaces import Box, Discrete


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> MemoryKube:
    """The only registered cluster."""
    server = MemoryKube()

    @contextlib.contextmanager
    def reached(place: ClusterAddress) -> Iterator[tuple[Reachable, Any]]:
        spec = ClusterSpec(provider="kubeconfig")
        yield Reachable("lab", Path("none"), "", "space", False, spec), RemoteRun(server, place.name)  # type: ignore[arg-type]

    monkeypatch.setattr(location, "reach", reached)
    monkeypatch.setattr(registry, "knows", lambda name: True)
    monkeypatch.setattr(idle_nodes, "notice_of", lambda spec, cluster: "")
    return server


def place_for(folder: RunFolder) -> ClusterAddress:
    project = folder.path.parent.name
    return ClusterAddress("lab", "space", naming.run_name(project, "first"), project=project)


def start(folder: RunFolder) -> ClusterAddress:
    return ClusterLocation(folder).start_at(address_of(folder) or place_for(folder))


def paused(folder: RunFolder, kube: MemoryKube) -> Status:
    """The status of a paused experiment, after a first start."""
    start(folder)
    for job in kube.listed("Job"):
        kube.delete("Job", job["metadata"]["name"])
    status = Status(state="paused", created=1.0, timestep=10)
    folder.write_status(status)
    return status


def interrupt(kube: MemoryKube, kind: str, *, is_away: bool = False) -> None:
    """Interrupts with Ctrl-C, or the loss of the cluster, after an object of the kind was made, before the answer."""

    def after(done: str, what: str) -> None:
        if (done, what) == ("create", kind):
            kube.after, kube.is_away = lambda *_: None, is_away
            raise KubeError("no answer") if is_away else KeyboardInterrupt

    kube.after = after


def starts_of(kube: MemoryKube) -> list[str]:
    return [job["metadata"]["labels"][naming.START] for job in kube.listed("Job")]


def test_a_start_is_remembered(folder: RunFolder, kube: MemoryKube):
    start(folder)
    assert kube.kinds == ["ConfigMap", "Job", "NetworkPolicy", "PersistentVolumeClaim", "Secret", "Service"]
    place = address_of(folder)
    assert place is not None
    assert (place.start, place.has_begun) == (1, True)
    assert location_of(folder).status().state == "starting"


@pytest.mark.parametrize("kind", ["Secret", "PersistentVolumeClaim", "Service", "NetworkPolicy", "Job"])
def test_nothing_is_left_of_a_first_start_that_is_interrupted(folder: RunFolder, kube: MemoryKube, kind: str):
    interrupt(kube, kind)
    with pytest.raises(KeyboardInterrupt):
        start(folder)
    assert kube.kinds == []
    assert address_of(folder) is None
    assert location_of(folder).status().state == "created"


def test_leftovers_of_an_interrupted_start_can_be_deleted(folder: RunFolder, kube: MemoryKube):
    interrupt(kube, "ConfigMap")
    with pytest.raises(KeyboardInterrupt):
        start(folder)
    assert kube.kinds == ["ConfigMap"]
    assert location_of(folder).status().state == "created"
    ClusterLocation(folder).delete()
    assert kube.kinds == []


def test_pods_of_a_first_start_that_lost_its_cluster_are_found_and_ended(folder: RunFolder, kube: MemoryKube):
    interrupt(kube, "Job", is_away=True)
    with pytest.raises(KubeError):
        start(folder)
    kube.is_away = False
    assert "Job" in kube.kinds
    assert location_of(folder).status().state == "starting"
    assert ClusterLocation(folder).stop(1.0).state == "stopped"
    assert "Job" not in kube.kinds
    assert location_of(folder).status().state == "stopped"


def test_pods_of_a_resume_that_lost_its_cluster_are_found_and_ended(folder: RunFolder, kube: MemoryKube):
    paused(folder, kube)
    interrupt(kube, "Job", is_away=True)
    with pytest.raises(KubeError):
        start(folder)
    kube.is_away = False
    assert starts_of(kube) == ["2"]
    assert location_of(folder).status().state == "starting"
    ClusterLocation(folder).stop(1.0)
    assert starts_of(kube) == []


def test_a_resume_that_is_interrupted_leaves_the_experiment_as_it_was(folder: RunFolder, kube: MemoryKube):
    before = paused(folder, kube)
    interrupt(kube, "Job")
    with pytest.raises(KeyboardInterrupt):
        start(folder)
    assert kube.kinds == ["ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Secret", "Service"]
    assert location_of(folder).status() == before
    start(folder)
    assert starts_of(kube) == ["3"]


def test_reading_the_status_during_a_resume_ends_no_pods(folder: RunFolder, kube: MemoryKube):
    before = paused(folder, kube)
    seen = []

    def after(verb: str, kind: str) -> None:
        kube.after = lambda *_: None
        seen.append(location_of(folder).status())
        kube.after = after

    kube.after = after
    start(folder)
    kube.after = lambda *_: None
    assert seen[0] == before
    assert seen[-1].state == "starting"
    assert starts_of(kube) == ["2"]
    assert location_of(folder).status().state == "starting"


def test_an_experiment_of_another_user_is_not_started(folder: RunFolder, kube: MemoryKube):
    start(folder)
    (folder.path / CLUSTER_FILE).unlink()
    folder.write_status(Status(created=1.0))
    kube.objects["ConfigMap", place_for(folder).name]["metadata"]["annotations"][naming.ORIGIN] = "ann@desk:/first"
    before = json.dumps(sorted(kube.objects))
    with pytest.raises(StateError, match=r'has an experiment "first" .* started from ann@desk:/first; choose another'):
        start(folder)
    assert json.dumps(sorted(kube.objects)) == before
    assert address_of(folder) is None


def test_an_experiment_is_resumed_from_another_machine_and_a_moved_folder(
    folder: RunFolder, kube: MemoryKube, monkeypatch: pytest.MonkeyPatch
):
    paused(folder, kube)
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    moved = RunFolder(folder.path.rename(folder.path.parent.with_name("elsewhere")))
    assert start(moved).name == place_for(folder).name
    assert starts_of(kube) == ["2"]
    (root,) = kube.listed("ConfigMap")
    assert root["metadata"]["annotations"][naming.ORIGIN].endswith(f"@another:{moved.path}")


def test_demonstrations_go_along_and_are_replaced_and_removed(tmp_path: Path, kube: MemoryKube):
    file = tmp_path / "good.safetensors"
    made_up(Box((4,)), Discrete(2)).save(file)
    agent = {"type": "dqfd", "demonstrations": str(file)}
    folder = RunFolder(tmp_path / "first")
    folder.create(ExperimentSpec(name="first", environment="CartPole-v1", agent=agent))

    def maps() -> list[str]:
        found = kube.listed("ConfigMap", {naming.ROLE: naming.FILES})
        assert all(each["metadata"]["ownerReferences"] for each in found)
        return [each["metadata"]["name"] for each in found]

    start(folder)
    (first,) = maps()
    paused(folder, kube)
    assert maps() == [first]
    made_up(Box((4,)), Discrete(2), seed=1).save(file)
    start(folder)
    (second,) = maps()
    assert second != first
    job = next(each for each in kube.listed("Job"))
    assert second in json.dumps(job["spec"]["template"]["spec"]["volumes"])
    file.unlink()
    folder.write_status(Status(state="paused", timestep=10))
    with pytest.raises(UserError, match=r"agent\.demonstrations cannot go along"):
        start(folder)
    ClusterLocation(folder).delete_there(place_for(folder))
    assert kube.kinds == ["Job"] or not kube.objects


def test_modules_that_an_experiment_names_no_more_leave_its_root(folder: RunFolder, kube: MemoryKube, monkeypatch):
    given: dict[str, str | bytes] = {"one.py": "a = 1\n", "level.bin": b"\xff"}
    monkeypatch.setattr("steppe.experiments.on_cluster.user_modules.user_modules", lambda spec, folders: dict(given))
    start(folder)
    given.clear()
    given["two.py"] = "a = 2\n"
    paused(folder, kube)
    (root,) = kube.listed("ConfigMap")
    assert "a = 2\n" in root["data"].values()
    assert len(root["data"]) == 2
    assert not root["binaryData"]


def test_an_experiment_that_is_gone_from_its_cluster_can_be_started_anew(folder: RunFolder, kube: MemoryKube):
    start(folder)
    kube.objects.clear()
    status = location_of(folder).status()
    assert status.state == "failed"
    assert 'cluster "lab" has no experiment' in status.reason
    assert "start it anew with --force" in status.reason
    lifecycle.prepare(folder, force=True)
    location_of(folder).start(force=True)
    assert starts_of(kube) == ["2"]


def test_of_two_starts_at_once_the_second_is_refused_and_ends_nothing(folder: RunFolder, kube: MemoryKube):
    """Both starts read the address before either of them makes anything."""
    place, refused = place_for(folder), []

    def after(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Job"):
            kube.after = lambda *_: None
            with pytest.raises(StateError, match=r'"first" is being started by another process; see how it goes: '):
                ClusterLocation(folder).start_at(place)
            refused.append(kind)

    kube.after = after
    ClusterLocation(folder).start_at(place)
    assert refused == ["Job"]
    # Refused too once the other start is done.
    with pytest.raises(StateError, match="is being started by another process"):
        ClusterLocation(folder).start_at(place)
    assert starts_of(kube) == ["1"]
    assert required_address(folder).start == 1
    assert location_of(folder).status().state == "starting"


def test_deleting_on_an_unreachable_cluster_names_the_way_out(folder: RunFolder, kube: MemoryKube):
    start(folder)
    kube.is_away = True
    with pytest.raises(ClusterError, match="steppe cluster delete -c lab --forget, and then this again"):
        ClusterLocation(folder).delete()


def driver(kube: MemoryKube, folder: RunFolder, state: str) -> None:
    """Adds a driver's Pod whose container is in that state."""
    labels = {naming.RUN: place_for(folder).name, naming.ROLE: "driver"}
    made = kube.create({"kind": "Pod", "metadata": {"name": "driver", "labels": labels}, "spec": {}})
    statuses = [{"name": "driver", "state": {state: {}}}]
    kube.objects["Pod", "driver"] = made | {"status": {"phase": "Running", "containerStatuses": statuses}}


def note(kube: MemoryKube, folder: RunFolder, status: Status) -> None:
    """Writes the end of an earlier start to the status kept on the cluster."""
    RemoteRun(kube, place_for(folder).name).note(dataclasses.asdict(status))  # type: ignore[arg-type]


def test_a_run_whose_driver_is_being_replaced_can_be_paused(folder: RunFolder, kube: MemoryKube):
    start(folder)
    driver(kube, folder, "waiting")
    assert ClusterLocation(folder).pause(1.0).state == "paused"
    assert "Job" not in kube.kinds


def test_a_run_that_has_not_begun_to_train_is_not_paused(folder: RunFolder, kube: MemoryKube):
    start(folder)
    driver(kube, folder, "running")
    said = {"is_over": False, "status": {"state": "starting", "timestep": 0, "phase": "compiling"}}
    kube.answers = lambda pod, path, **_: KubeAnswer(200, json.dumps(said).encode())
    with pytest.raises(StateError, match=r"has not begun to train \(compiling\), so there is nothing to pause"):
        ClusterLocation(folder).pause(1.0)
    assert "Job" in kube.kinds


def test_a_missed_answer_ends_no_driver(folder: RunFolder, kube: MemoryKube, monkeypatch: pytest.MonkeyPatch):
    start(folder)
    driver(kube, folder, "running")
    monkeypatch.setattr(location, "LOOK_SECONDS", 0.01)
    asked: list[str] = []

    def answer(pod: str, path: str, **_: Any) -> KubeAnswer:
        asked.append(path)
        if len(asked) == 1:
            return KubeAnswer(503, b"")
        is_over = "/ask" in asked[:-1]
        status = {"state": "paused" if is_over else "running", "timestep": 20}
        return KubeAnswer(200, json.dumps({"is_over": is_over, "status": status}).encode())

    kube.answers = answer
    assert ClusterLocation(folder).pause(60.0).timestep == 20
    assert "/ask" in asked


@pytest.mark.parametrize(("ask", "state"), [(ClusterLocation.stop, "stopped"), (ClusterLocation.pause, "paused")])
def test_the_end_of_an_earlier_start_is_not_taken_for_how_far_this_one_has_come(
    folder: RunFolder, kube: MemoryKube, ask: Any, state: str
):
    earlier = paused(folder, kube)
    note(kube, folder, dataclasses.replace(earlier, heartbeat=100.0, finished=100.0))
    start(folder)
    folder.write_status(dataclasses.replace(folder.read_status(), state="running", heartbeat=200.0, timestep=1000))
    ended = ask(ClusterLocation(folder), 1.0)
    assert (ended.state, ended.timestep) == (state, 1000)


def test_the_newer_of_two_known_statuses_is_used(folder: RunFolder, kube: MemoryKube):
    start(folder)
    note(kube, folder, Status(state="paused", heartbeat=100.0, timestep=10))
    assert ClusterLocation(folder).pause(1.0).timestep == 10


def test_an_experiment_begun_anew_has_not_come_as_far_as_before(folder: RunFolder, kube: MemoryKube):
    earlier = paused(folder, kube)
    note(kube, folder, dataclasses.replace(earlier, heartbeat=100.0, finished=100.0))
    lifecycle.prepare(folder, force=True)
    location_of(folder).start(force=True)
    assert location_of(folder).status().timestep == 0
