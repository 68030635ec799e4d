"""The contract of a location, which every location passes: a run on this machine, and a run on a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from kube_memory import MemoryKube

from steppe.clusters import registry
from steppe.clusters._base import Reachable
from steppe.errors import StateError, UserError
from steppe.experiments import lifecycle
from steppe.experiments.locations import Location, location_of, location_to_start
from steppe.experiments.on_cluster import idle_nodes, location, placement
from steppe.experiments.on_cluster.address import ClusterAddress, address_of
from steppe.experiments.process.run import run
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.platforms import LocalPlatform
from steppe.platforms.kubernetes.client.kubeapi import KubeAnswer
from steppe.platforms.kubernetes.client.remote_run import RemoteRun
from steppe.platforms.kubernetes.client.result_files import sum_of
from steppe.platforms.kubernetes.manifests import naming
from steppe.specs.running.cluster import ClusterSpec


def begin(train: Callable[..., None], folder: RunFolder, *, resume: bool) -> None:
    """Starts the training and waits until it owns the folder."""
    before = folder.read_status()
    train(folder, resume=resume)
    while folder.read_status() == before:
        time.sleep(0.002)


class Machine:
    """This machine: a thread stands for the process that would be started."""

    cluster = None

    def __init__(self, folder: RunFolder, train: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder

        def launch(platform: LocalPlatform, command: list[str], log: Path) -> Any:
            begin(train, folder, resume="--resume" in command)
            return SimpleNamespace(pid=os.getpid(), exit_code=lambda: None)

        monkeypatch.setattr(LocalPlatform, "launch", launch)

    def after_start(self, resume: bool) -> None:
        """Does nothing: the process trains by itself."""

    def left(self) -> list[str]:
        return []


class Cluster:
    """A cluster in memory: a thread stands for the driver's Pod, which has a run folder of its own."""

    cluster = "lab"

    def __init__(self, folder: RunFolder, train: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.train, self.kube = folder, train, MemoryKube()
        self.kube.answers = self.answer
        self.in_pod = RunFolder(folder.path.parents[1] / "pod" / "first")
        self.in_pod.create(folder.spec())

        @contextlib.contextmanager
        def reached(address: ClusterAddress) -> Iterator[tuple[Reachable, Any]]:
            spec = ClusterSpec(provider="kubeconfig")
            yield Reachable("lab", Path("none"), "", "space", False, spec), RemoteRun(self.kube, address.name)  # type: ignore[arg-type]

        project = folder.path.parent.name
        address = ClusterAddress("lab", "space", naming.run_name(project, "first"), project=project)
        monkeypatch.setattr(placement, "settle_address", lambda *_: address_of(folder) or address)
        monkeypatch.setattr(location, "reach", reached)
        monkeypatch.setattr(location, "LOOK_SECONDS", 0.01)
        monkeypatch.setattr(registry, "knows", lambda name: True)
        monkeypatch.setattr(idle_nodes, "notice_of", lambda spec, cluster: "")

    def after_start(self, resume: bool) -> None:
        """Makes the Job's Pod, whose driver trains."""
        (job,) = self.kube.listed("Job")
        labels = job["metadata"]["labels"] | {naming.ROLE: "driver"}
        owner = {"uid": job["metadata"]["uid"]}
        name = f"driver-{job['metadata']['uid']}"
        self.kube.create(
            {"kind": "Pod", "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}, "spec": {}}
        )
        statuses = [{"name": "driver", "state": {"running": {}}}]
        self.kube.objects["Pod", name]["status"] = {"phase": "Running", "containerStatuses": statuses}
        begin(self.train, self.in_pod, resume=resume)

    def answer(self, pod: str, path: str, *, body: Any = None, sink: Any = None, **_: Any) -> KubeAnswer:
        """The answers of the driver's status server."""
        asked = urlsplit(path)
        names = [each.relative_to(self.in_pod.path).as_posix() for each in self.in_pod.files()]
        if asked.path == "/ask":
            self.in_pod.ask(body["action"])
        elif asked.path == "/log":
            return KubeAnswer(200, self.in_pod.log.read_bytes()[int(parse_qs(asked.query)["from"][0]) :])
        elif asked.path == "/files":
            files = [self.in_pod.path / name for name in names]
            about = [
                {"path": name, "size": file.stat().st_size, "sha256": sum_of(file)}
                for name, file in zip(names, files, strict=True)
            ]
            return KubeAnswer(200, json.dumps({"files": about}).encode())
        elif asked.path.startswith("/files/"):
            sink((self.in_pod.path / unquote(asked.path.removeprefix("/files/"))).read_bytes())
            return KubeAnswer(200, b"")
        status = self.in_pod.local_status()
        over = status.state not in ("created", "starting", "running", "pausing")
        return KubeAnswer(200, json.dumps({"is_over": over, "status": dataclasses.asdict(status)}).encode())

    def left(self) -> list[str]:
        return [kind for kind in self.kube.kinds if kind != "Pod"]


class Site:
    """An experiment at a location, and a trainer that holds at timestep 10 until it is asked to end or let go."""

    def __init__(self, place: Any, held: threading.Event) -> None:
        self.place, self.held = place, held
        self.folder: RunFolder = place.folder

    @property
    def location(self) -> Location:
        return location_of(self.folder)

    def start(self, *, resume: bool = False, hold: bool = True) -> None:
        """Starts the experiment as the commands do."""
        self.held.set() if hold else self.held.clear()
        lifecycle.prepare(self.folder, resume=resume)
        location_to_start(self.folder, self.place.cluster).start(resume=resume)
        self.place.after_start(resume)

    def wait(self, condition: Callable[[Status], bool]) -> Status:
        """Follows the run until a condition holds."""

        class Reached(Exception):
            """Raised to end the following."""

        last = Status()

        def look(status: Status) -> None:
            nonlocal last
            last = status
            if condition(status):
                raise Reached

        with contextlib.suppress(Reached):
            self.location.follow(look, 0.01)
        return last


@pytest.fixture(params=[Machine, Cluster], ids=["local", "cluster"])
def site(
    request: pytest.FixtureRequest, folder: RunFolder, trainer: Any, in_background: Any, monkeypatch: Any
) -> Iterator[Site]:
    held = threading.Event()

    def train(folder: RunFolder, *, resume: bool) -> None:
        in_background(lambda: run(folder, resume=resume, trainer=trainer(hold=held.is_set())))

    monkeypatch.setattr("steppe.records.report.write_report", lambda folder: folder)
    made = Site(request.param(folder, train, monkeypatch), held)
    yield made
    if made.location.status().is_live:
        made.location.stop(30.0)


def is_training(status: Status) -> bool:
    return status.state == "running" and status.timestep >= 10


def test_a_run_is_started_paused_resumed_and_completes(site: Site) -> None:
    site.start()
    assert site.wait(is_training).timestep == 10
    assert site.location.is_here == (site.place.cluster is None)
    paused = site.location.pause(30.0)
    assert (paused.state, paused.timestep) == ("paused", 10)
    assert site.location.status() == paused
    site.start(resume=True, hold=False)
    completed = site.location.follow(lambda status: None, 0.01)
    assert (completed.state, completed.timestep) == ("completed", 30)
    assert site.location.status().state == "completed"


def test_a_running_experiment_stops_and_a_paused_one_is_marked_stopped(site: Site) -> None:
    site.start()
    site.wait(is_training)
    assert site.location.stop(30.0).state == "stopped"
    site.start(resume=True)
    site.wait(lambda status: is_training(status) and status.timestep >= 20)
    site.location.pause(30.0)
    stopped = site.location.stop(30.0)
    assert (stopped.state, stopped.reason) == ("stopped", "stopped while paused")


def test_a_running_experiment_is_neither_started_again_nor_deleted(site: Site) -> None:
    site.start()
    status = site.wait(is_training)
    with pytest.raises(StateError, match="is running already"):
        site.location.check_idle(status, "start")
    with pytest.raises(StateError, match="is running already"):
        lifecycle.prepare(site.folder, resume=True)
    with pytest.raises(StateError, match="is running and cannot be deleted"):
        site.location.check_deletable()


def test_an_ended_experiment_is_not_paused(site: Site) -> None:
    site.start(hold=False)
    site.location.follow(lambda status: None, 0.01)
    with pytest.raises(StateError, match="is completed and cannot be paused"):
        site.location.pause(1.0)


def test_the_log_is_read_from_any_byte_on(site: Site) -> None:
    site.start()
    site.wait(is_training)
    with site.location.log() as (read_log, is_running):
        assert is_running()
        data = read_log(0, False)
        assert b"starting " in data
        assert read_log(8, True).startswith(data[8:])


def test_files_are_listed_and_downloaded(site: Site, tmp_path: Path) -> None:
    site.start()
    status = site.wait(is_training)
    files, elsewhere = site.location.files(status)
    assert {"experiment.json", "log.txt"} <= {name for name, _ in files}
    assert elsewhere == ""
    to = tmp_path / "copy"
    lifecycle.download(site.folder, to)
    assert json.loads((to / "experiment.json").read_text())["name"] == "first"
    (to / "experiment.json").write_text("mine")
    with pytest.raises(UserError, match=r"experiment\.json exists already"):
        lifecycle.download(site.folder, to)
    lifecycle.download(site.folder, to, force=True)
    assert json.loads((to / "experiment.json").read_text())["name"] == "first"


def test_nothing_is_left_outside_of_the_run_folder_after_a_deletion(site: Site) -> None:
    site.start()
    site.wait(is_training)
    site.location.stop(30.0)
    site.location.check_deletable()
    assert site.location.delete() is None
    assert site.place.left() == []


def test_a_location_describes_itself(site: Site) -> None:
    site.start(hold=False)
    assert all(len(pair) == 2 for pair in site.location.describe())
    assert isinstance(site.location.deleted_too(), str)
    assert site.location.newest_checkpoint() is None or site.location.has_checkpoint()
