"""The watcher of a run on a cluster; tests/kubernetes runs one from its start to its end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clocks import set_clock

from steppe.clusters import lifecycle as clusters
from steppe.clusters import registry
from steppe.errors import ClusterError, StateError, SteppeError
from steppe.experiments.locations import location_of
from steppe.experiments.on_cluster import ephemeral_cluster, handover, watcher
from steppe.experiments.on_cluster.address import ClusterAddress
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder, Status, Store
from steppe.files.run_files import CLUSTER_FILE
from steppe.platforms import LocalPlatform
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.kubernetes import KubernetesSpec

PLAIN = KubernetesSpec()
SIDECARS = KubernetesSpec(sidecars=[{"name": "world", "image": "world:1"}])
Settle = Callable[..., RunFolder]


@pytest.fixture
def settle(store: Store, spec: ExperimentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settle:
    """Makes a running experiment on a cluster."""
    monkeypatch.setenv("STEPPE_CLUSTERS", str(tmp_path / "clusters"))

    def settled(*, owns: bool, pods: KubernetesSpec = PLAIN, cluster: KubernetesSpec = PLAIN) -> RunFolder:
        folder = store.folder("first")
        folder.create(spec.model_copy(update={"kubernetes": pods}))
        folder.write_status(Status(state="running", created=1.0, timestep=10))
        made_for = str(folder.path) if owns else ""
        described = ClusterSpec(provider="kind", num_nodes=1, kubernetes=cluster)
        registry.write(dataclasses.replace(clusters.plan(described, "lab", made_for), state="ready"))
        place(folder, start=1, owns=owns)
        return folder

    return settled


def place(folder: RunFolder, *, start: int, owns: bool = True) -> None:
    there = ClusterAddress("lab", "default", "steppe-first-1", start=start, owns_cluster=owns)
    (folder.path / CLUSTER_FILE).write_text(json.dumps(dataclasses.asdict(there)))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of processes that would have been started."""
    commands: list[list[str]] = []

    @dataclasses.dataclass
    class Started:
        pid: int = 4321

    def launch(platform: LocalPlatform, command: list[str], log: Path) -> Started:
        commands.append(command)
        return Started()

    monkeypatch.setattr(LocalPlatform, "launch", launch)
    return commands


def test_a_run_on_a_cluster_of_its_own_is_not_left_alone(settle: Settle, launched: list[list[str]]) -> None:
    folder, told = settle(owns=True), list[str]()
    handover.hand_over(folder, told.append)
    assert [command[1:] for command in launched] == [[*handover.WATCHER, str(folder.path)]]
    assert told == [
        'process 4321 on this machine waits for its end, to fetch its results and delete cluster "lab"; what it does: '
        f"{folder.path / '.watcher.log'}"
    ]


@pytest.mark.parametrize("fields", [{"pods": SIDECARS}, {"cluster": SIDECARS}], ids=["experiment's", "cluster's"])
def test_a_run_with_simulators_beside_it_is_not_left_alone(
    settle: Settle, launched: list[list[str]], fields: dict[str, Any]
) -> None:
    told = list[str]()
    handover.hand_over(settle(owns=False, **fields), told.append)
    assert len(launched) == 1
    assert told[0].startswith("process 4321 on this machine waits for its end, to end the containers beside it;")


def test_a_run_that_ends_by_itself_is_left_alone(settle: Settle, launched: list[list[str]]) -> None:
    told = list[str]()
    handover.hand_over(settle(owns=False), told.append)
    assert (launched, told) == ([], [])


def test_a_watcher_that_cannot_be_started_is_reported(settle: Settle, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object, **__: object) -> None:
        raise SteppeError("cannot start a process")

    monkeypatch.setattr(LocalPlatform, "launch", launch)
    told = list[str]()
    handover.hand_over(settle(owns=True), told.append)
    assert told[0].startswith("nobody on this machine waits for its end, to fetch its results and delete cluster")
    assert "(cannot start a process); look after it: steppe experiment show -e" in told[0]


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt),
        (lambda: os.kill(os.getpid(), signal.SIGHUP), SystemExit),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), SystemExit),
        (lambda: 1 / 0, ZeroDivisionError),
    ],
    ids=["Ctrl-C", "a closed terminal", "SIGTERM", "a mistake of ours"],
)
def test_whoever_is_interrupted_while_it_watches_leaves_one(
    settle: Settle, launched: list[list[str]], end: Callable[[], None], raised: type[BaseException]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
    folder = settle(owns=True)

    def watch() -> None:
        with handover.handing_over(folder, lambda line: None):
            end()
            time.sleep(5)

    with pytest.raises(raised):
        watch()
    assert len(launched) == (raised is not ZeroDivisionError)
    assert [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)] == handlers


def test_whoever_cannot_reach_the_cluster_any_more_leaves_one(settle: Settle, launched: list[list[str]]) -> None:
    with pytest.raises(ClusterError), handover.handing_over(settle(owns=True), lambda line: None):
        raise ClusterError("out of reach")
    assert len(launched) == 1


class Run:
    """Stands in for `ClusterLocation.follow`: a list of statuses and errors, with actions between them."""

    def __init__(self, folder: RunFolder, *script: Status | Exception | Callable[[], None]) -> None:
        self.folder, self.script = folder, iter(script)
        self.follows = 0

    @property
    def follow_location(self) -> Callable[..., Status]:
        return lambda location, on_status, pause: self.follow(location.folder, on_status, pause)

    def follow(self, folder: RunFolder, on_status: Callable[[Status], None], pause: float) -> Status:
        assert (folder.path, pause) == (self.folder.path, watcher.LOOK_SECONDS)
        self.follows += 1
        for event in self.script:
            if isinstance(event, Exception):
                raise event
            if not isinstance(event, Status):
                event()
                continue
            folder.write_status(event)
            on_status(event)
            if not event.is_live:
                return event
        raise AssertionError("followed beyond the end")


RUNNING = Status(state="running", created=1.0, timestep=20)
COMPLETED = dataclasses.replace(RUNNING, state="completed", reason="30 timesteps", timestep=30)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The pauses before repeated calls."""
    pauses: list[float] = []
    set_clock(monkeypatch, sleep=pauses.append)
    return pauses


def test_a_run_is_followed_through_troubles_and_its_cluster_ended(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, slept: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = settle(owns=True)
    away = ClusterError("the API server does not answer")
    run = Run(folder, RUNNING, away, RUNNING, away, away, *[away] * 5, RUNNING, COMPLETED)
    fetched, ended = list[Path](), list[str]()
    troubles = iter([ClusterError("connection lost"), None])

    def download(location: ClusterLocation, to: Path, *, force: bool) -> None:
        if error := next(troubles):
            raise error
        fetched.append(to)

    def end(name: str, tell: object, place: ClusterAddress) -> None:
        ended.append(f"{name} with {place.name}")
        if len(ended) == 1:
            raise ClusterError("the cloud is away")

    monkeypatch.setattr(ClusterLocation, "follow", run.follow_location)
    monkeypatch.setattr(ClusterLocation, "fetch", download)
    monkeypatch.setattr(ephemeral_cluster, "_end", end)
    assert watcher.main([str(folder.path)]) == 0
    assert run.follows == 9
    assert slept == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 10.0, 20.0]
    assert (fetched, ended) == ([folder.path], ["lab with steppe-first-1"] * 2)
    said = capsys.readouterr().out
    assert "the API server does not answer; tried again in 10 s" in said
    assert "completed: 30 timesteps" in said
    assert "connection lost; tried again in 10 s" in said
    assert "was not deleted (the cloud is away)" in said


def test_a_run_that_is_begun_again_is_followed_anew(settle: Settle, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = settle(owns=False, pods=SIDECARS)
    again = lambda: place(folder, start=2, owns=False)  # noqa: E731
    run = Run(folder, RUNNING, again, dataclasses.replace(RUNNING, state="paused"), RUNNING, COMPLETED)
    monkeypatch.setattr(ClusterLocation, "follow", run.follow_location)
    assert watcher.main([str(folder.path)]) == 0
    assert run.follows == 2


def test_one_ends_when_another_process_has_brought_the_results_home(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = settle(owns=True)
    run = Run(folder, RUNNING, (folder.path / CLUSTER_FILE).unlink, COMPLETED)
    monkeypatch.setattr(ClusterLocation, "follow", run.follow_location)
    assert watcher.main([str(folder.path)]) == 0
    assert "another process has brought its results home" in capsys.readouterr().out


@pytest.mark.parametrize("gone", ["the cluster", "the experiment"])
def test_one_ends_when_there_is_nothing_left_to_wait_for(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    folder = settle(owns=True)

    def vanish() -> None:
        registry.forget("lab") if gone == "the cluster" else folder.path.rename(folder.path.with_name("elsewhere"))

    run = Run(folder, RUNNING, vanish, ClusterError("nobody answers"))
    monkeypatch.setattr(ClusterLocation, "follow", run.follow_location)
    assert watcher.main([str(folder.path)]) == 1
    assert "error: nobody answers" in capsys.readouterr().out


def test_there_is_one_of_them_at_most(settle: Settle, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = settle(owns=True)
    monkeypatch.setattr(watcher, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(ClusterLocation, "follow", Run(folder).follow_location)
    descriptor = locks.acquire(folder.path, file=watcher.LOCK_FILE)
    assert descriptor is not None
    assert watcher.main([str(folder.path)]) == 0
    locks.release(descriptor)


def test_nothing_is_started_on_a_cluster_that_is_about_to_end(settle: Settle) -> None:
    folder = settle(owns=True)
    descriptor = locks.acquire(folder.path, file=ephemeral_cluster.FETCH_LOCK)
    assert descriptor is not None
    with pytest.raises(StateError, match="are being fetched from its cluster, which ends then"):
        location_of(folder).start(resume=True)
    locks.release(descriptor)


@pytest.mark.parametrize("other", ["has fetched them", "has begun it again"])
def test_results_stay_where_they_are_when_another_process_was_first(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    folder, told = settle(owns=True), list[str]()
    folder.write_status(COMPLETED)
    descriptor = locks.acquire(folder.path, file=ephemeral_cluster.FETCH_LOCK)
    assert descriptor is not None

    def tell(line: str) -> None:
        told.append(line)
        if other == "has fetched them":
            (folder.path / CLUSTER_FILE).unlink()
        else:
            folder.write_status(dataclasses.replace(RUNNING, state="starting"))
        locks.release(descriptor)

    monkeypatch.setattr(ClusterLocation, "fetch", lambda *_, **__: pytest.fail("fetched"))
    monkeypatch.setattr(ephemeral_cluster, "_end", lambda *_: pytest.fail("its cluster was ended"))
    ClusterLocation(folder).bring_home(tell)
    assert told == ["another process fetches the results already, or trains it on; waiting for it"]
