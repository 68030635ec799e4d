"""Downloads that are cut short, by a Pod that ends, a file that changes, or a disk that is full."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_memory import MemoryKube

from steppe.errors import ClusterError, StorageError
from steppe.platforms.kubernetes import fetching, naming, rendering
from steppe.platforms.kubernetes.fetching import Files, download
from steppe.platforms.kubernetes.kubeapi import Answer, KubeError
from steppe.platforms.kubernetes.remote_run import RemoteRun

WHOLE = bytes(range(256)) * 100


class Pods:
    """Pods that show files; each ends when it has sent `life` bytes."""

    def __init__(self, files: dict[str, bytes], life: int = 1_000_000) -> None:
        self.files, self.life = files, life
        self.left: dict[str, int] = {}
        self.ended: list[str] = []
        self.is_away = False

    @contextlib.contextmanager
    def open_door(self) -> Iterator[str]:
        if self.is_away:
            raise KubeError("no answer")
        name = f"reader-{len(self.left)}"
        self.left[name] = self.life
        yield name
        self.ended.append(name)

    def answers(self, pod: str) -> bool:
        if self.is_away:
            raise KubeError("no answer")
        return self.left[pod] > 0

    def ask(self, pod: str, path: str, *, headers: Any = None, sink: Any = None, seconds: float = 0.0) -> Answer:
        if not self.left[pod]:
            raise KubeError(f'pods "{pod}" not found', 404)
        if path == "/files":
            listed = [{"path": name, "sha256": hashlib.sha256(data).hexdigest()} for name, data in self.files.items()]
            return Answer(200, json.dumps({"files": listed}).encode())
        data = self.files.get(path.removeprefix("/files/"))
        if data is None:
            return Answer(404, b"")
        start = int((headers or {}).get("Range", "bytes=0-")[6:-1])
        sent = data[start : start + self.left[pod]]
        sink(sent)
        self.left[pod] -= len(sent)
        if start + len(sent) < len(data):
            raise KubeError("the connection was closed")
        return Answer(206 if start else 200, b"")

    def opened(self) -> Files:
        return Files(self.open_door, self.answers, self.ask, lambda answer, what: KubeError(what, answer.code))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_SECONDS", 0.0)


def fetched(pods: Pods, to: Path) -> dict[str, bytes]:
    with pods.opened() as files:
        copies = download(files, to, lambda path: True, force=False)
    return {copy.relative_to(to).as_posix(): copy.read_bytes() for copy in copies}


def test_a_download_outlives_many_readers(tmp_path: Path):
    pods = Pods({"log.txt": b"all", "policy/weights": WHOLE, "report.html": b"x" * 900}, life=1_000)
    assert fetched(pods, tmp_path) == pods.files
    assert len(pods.left) == 27
    # None of them is left.
    assert pods.ended == list(pods.left)


def test_a_pod_that_is_gone_does_not_count_as_a_file_that_is_gone(tmp_path: Path):
    pods = Pods({"a": WHOLE, "b": WHOLE}, life=len(WHOLE))
    assert fetched(pods, tmp_path) == pods.files


def test_a_file_that_never_comes_is_given_up(tmp_path: Path):
    pods = Pods({"a": WHOLE})
    with pods.opened() as files:
        pods.left["reader-0"], pods.is_away = 0, True
        with pytest.raises(KubeError):
            files.fetch({"path": "a", "sha256": "?"}, tmp_path)


def test_a_cluster_that_comes_back_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pods = Pods({"a": WHOLE}, life=1_000)
    paused = []

    def pause(seconds: float) -> None:
        pods.is_away = len(paused) % 2 == 0
        paused.append(seconds)

    monkeypatch.setattr(fetching.time, "sleep", pause)
    assert fetched(pods, tmp_path) == pods.files


def test_a_file_that_changes_all_the_time_is_named(tmp_path: Path):
    pods = Pods({"a": WHOLE})
    with pods.opened() as files:
        about = files.listed()[0]
        ask = pods.ask

        def changing(*words: Any, **asked: Any) -> Answer:
            pods.files["a"] += b"more"
            return ask(*words, **asked)

        files._ask = changing
        with pytest.raises(ClusterError, match="a changes faster than it can be fetched; pause the experiment first"):
            files.fetch(about, tmp_path)


def test_a_full_disk_is_named(tmp_path: Path):
    pods = Pods({"a": WHOLE})
    with pods.opened() as files:

        def full(*words: Any, **asked: Any) -> Answer:
            raise OSError(errno.ENOSPC, "No space left on device")

        about = files.listed()[0]
        files._ask = full
        with pytest.raises(StorageError, match=r"cannot write .*\.a\.part: "):
            files.fetch(about, tmp_path)


def test_readers_at_once_leave_each_other_alone(planned):
    plan = planned()
    kube = MemoryKube()
    uid = kube.create(rendering.root(plan))["metadata"]["uid"]
    kube.create(rendering.with_owner(plan, rendering.secret(plan, dict.fromkeys(("door", "ray", "learner"), "t")), uid))
    ended = kube.create(rendering.reader(plan, owner_uid=uid, suffix="old"))["metadata"]["name"]
    kube.objects["Pod", ended]["status"] = {"phase": "Failed"}
    kube.answers = lambda pod, path, **_: Answer(200, b'{"files": [], "status": null}')
    create = kube.create

    def running(manifest: Any) -> Any:
        made = create(manifest)
        states = [{"name": "reader", "state": {"running": {}}}]
        kube.objects[made["kind"], made["metadata"]["name"]]["status"] = {"containerStatuses": states}
        return made

    kube.create = running  # type: ignore[method-assign]
    first, second = (RemoteRun(kube, plan.name) for _ in range(2))  # type: ignore[arg-type]
    with first._files() as here:
        (name,) = names_of_readers(kube)
        with second._files() as there:
            assert len(names_of_readers(kube)) == 2
            assert (here.listed(), there.listed()) == ([], [])
        assert names_of_readers(kube) == [name]
    assert names_of_readers(kube) == []


def names_of_readers(kube: MemoryKube) -> list[str]:
    return [pod["metadata"]["name"] for pod in kube.listed("Pod", {naming.ROLE: "reader"})]
