"""Downloads that are interrupted by a Pod that ends, a file that changes, or a full disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from clocks import set_clock
from kube_memory import MemoryKube

from steppe.errors import ClusterError, StorageError
from steppe.platforms.kubernetes.client import result_files
from steppe.platforms.kubernetes.client.kubeapi import KubeAnswer, KubeError
from steppe.platforms.kubernetes.client.remote_run import RemoteRun
from steppe.platforms.kubernetes.client.result_files import NotNow, ResultFiles, download
from steppe.platforms.kubernetes.manifests import naming, rendering

WHOLE = bytes(range(256)) * 100


class Pods:
    """Pods that show files; each ends after it has sent `life` bytes."""

    def __init__(self, files: dict[str, bytes], life: int = 1_000_000) -> None:
        self.files, self.life = files, life
        self.left: dict[str, int] = {}
        self.ended: list[str] = []
        self.is_away = False
        self.closed: KubeError | None = None
        """The error that prevents another Pod from showing the files."""

    @contextlib.contextmanager
    def open_source(self) -> Iterator[str]:
        if self.is_away:
            raise KubeError("no answer")
        if self.closed is not None:
            raise self.closed
        name = f"reader-{len(self.left)}"
        self.left[name] = self.life
        yield name
        self.ended.append(name)

    def answers(self, pod: str) -> bool:
        if self.is_away:
            raise KubeError("no answer")
        return self.left[pod] > 0

    def ask(self, pod: str, path: str, *, headers: Any = None, sink: Any = None, seconds: float = 0.0) -> KubeAnswer:
        if not self.left[pod]:
            raise KubeError(f'pods "{pod}" not found', 404)
        if path.startswith("/files?") or path == "/files":
            names = parse_qs(urlsplit(path).query).get("name", self.files)
            listed = [self.described(name) for name in names if name in self.files]
            return KubeAnswer(200, json.dumps({"files": listed}).encode())
        data = self.files.get(path.removeprefix("/files/"))
        if data is None:
            return KubeAnswer(404, b"")
        start, last = map(int, headers["Range"].removeprefix("bytes=").split("-"))
        asked = data[start : last + 1]
        sent = asked[: self.left[pod]]
        sink(sent)
        self.left[pod] -= len(sent)
        if len(sent) < len(asked):
            raise KubeError("the connection was closed")
        return KubeAnswer(206, b"")

    def described(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        return {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def opened(self) -> ResultFiles:
        return ResultFiles(self.open_source, self.answers, self.ask, lambda answer, what: KubeError(what, answer.code))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_files, "PAUSE_SECONDS", 0.0)


def fetched(pods: Pods, to: Path) -> dict[str, bytes]:
    with pods.opened() as files:
        copies = download(files, to, lambda path: True, force=False)
    return {copy.relative_to(to).as_posix(): copy.read_bytes() for copy in copies}


def test_a_download_continues_over_many_readers(tmp_path: Path):
    pods = Pods({"log.txt": b"all", "policy/weights": WHOLE, "report.html": b"x" * 900}, life=1_000)
    assert fetched(pods, tmp_path) == pods.files
    assert len(pods.left) == 27
    # Every Pod was closed.
    assert pods.ended == list(pods.left)


def test_a_file_is_not_lost_with_the_pod_that_showed_it(tmp_path: Path):
    pods = Pods({"a": WHOLE, "b": WHOLE}, life=len(WHOLE))
    assert fetched(pods, tmp_path) == pods.files


def test_a_file_that_never_arrives_is_given_up(tmp_path: Path):
    pods = Pods({"a": WHOLE})
    with pods.opened() as files:
        pods.left["reader-0"], pods.is_away = 0, True
        with pytest.raises(KubeError):
            files.fetch({"path": "a", "size": 1, "sha256": "?"}, tmp_path)


def losing_its_pod(pods: Pods, monkeypatch: pytest.MonkeyPatch, why: KubeError, seconds: float) -> ResultFiles:
    """A download whose Pod is gone; for so many seconds there is no other, for the reason `why`."""
    now = 1000.0

    def pause(time: float) -> None:
        nonlocal now
        now += time
        if now > 1000.0 + seconds:
            pods.closed = None

    set_clock(monkeypatch, monotonic=lambda: now, sleep=pause)
    files = pods.opened()
    files.__enter__()
    pods.left["reader-0"], pods.closed = 0, why
    return files


COMING = NotNow("its files cannot be read now: its Pod is being replaced; try again when its driver answers")


def test_a_download_resumes_when_a_driver_is_back_within_two_minutes(tmp_path: Path, monkeypatch: Any):
    pods = Pods({"a": WHOLE})
    files = losing_its_pod(pods, monkeypatch, COMING, seconds=100.0)
    copy = files.fetch(pods.described("a"), tmp_path)
    assert copy is not None
    assert copy.read_bytes() == WHOLE


@pytest.mark.parametrize("why", [COMING, KubeError('"ann" may not create pods in namespace "space"', 403)])
def test_a_download_without_another_pod_says_why(tmp_path: Path, monkeypatch: Any, why: KubeError):
    pods = Pods({"a": WHOLE})
    files = losing_its_pod(pods, monkeypatch, why, seconds=1000.0)
    with pytest.raises(KubeError, match=re.escape(str(why))):
        files.fetch(pods.described("a"), tmp_path)


def test_a_download_resumes_when_the_cluster_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pods = Pods({"a": WHOLE}, life=1_000)
    paused = []

    def pause(seconds: float) -> None:
        pods.is_away = len(paused) % 2 == 0
        paused.append(seconds)

    set_clock(monkeypatch, sleep=pause)
    assert fetched(pods, tmp_path) == pods.files


def test_a_growing_file_is_fetched_up_to_its_listed_size(tmp_path: Path):
    pods = Pods({"metrics.jsonl": WHOLE})
    with pods.opened() as files:
        files._request = after_each_request(pods, lambda: pods.files.update({"metrics.jsonl": grown()}))

        def grown() -> bytes:
            return pods.files["metrics.jsonl"] + b"more"

        (copy,) = download(files, tmp_path, lambda path: True, force=False)
    assert copy.read_bytes() == WHOLE


def test_an_interrupted_download_of_a_growing_file_resumes(tmp_path: Path):
    (tmp_path / ".log.txt.part").write_bytes(WHOLE[:1000])
    pods = Pods({"log.txt": WHOLE + b"more"}, life=len(WHOLE) - 1000 + 4)
    assert fetched(pods, tmp_path) == pods.files
    assert len(pods.left) == 1


def test_an_empty_file_is_fetched(tmp_path: Path):
    pods = Pods({"log.txt": b""})
    assert fetched(pods, tmp_path) == pods.files


def test_a_replaced_file_is_listed_again_alone(tmp_path: Path):
    pods = Pods({"status.json": b"0", "weights": WHOLE})
    asked: list[str] = []
    with pods.opened() as files:
        files._request = after_each_request(pods, lambda: pods.files.update({"status.json": newer()}), asked)

        def newer() -> bytes:
            # The file changes with each of the first requests and then stays the same.
            return str(min(len(asked), 15)).encode()

        copies = download(files, tmp_path, lambda path: path == "status.json", force=False)
    assert [copy.read_bytes() for copy in copies] == [b"15"]
    assert asked.count("/files") == 1


def test_a_file_that_changes_all_the_time_is_an_error(tmp_path: Path):
    pods = Pods({"a": WHOLE})
    with pods.opened() as files:
        files._request = after_each_request(pods, lambda: pods.files.update(a=pods.files["a"][::-1] + b"more"))
        about = files.listed()[0]
        with pytest.raises(ClusterError, match="a changes faster than it can be fetched; pause the experiment first"):
            files.fetch(about, tmp_path)


def after_each_request(
    pods: Pods, change: Callable[[], None], asked: list[str] | None = None
) -> Callable[..., KubeAnswer]:
    """A request function that calls `change` after each answer."""
    ask = pods.ask

    def asking(pod: str, path: str, **more: Any) -> KubeAnswer:
        answer = ask(pod, path, **more)
        if asked is not None:
            asked.append(path)
        change()
        return answer

    return asking


@pytest.mark.parametrize("name", ["/etc/cron.d/job", "../outside", "policy/../../outside", ".bashrc", ""])
def test_a_pod_cannot_write_files_outside_of_the_download(tmp_path: Path, name: str):
    pods = Pods({name: b"bad"})
    to = tmp_path / "results"
    with pods.opened() as files:
        with pytest.raises(ClusterError, match=f'the Pod lists "{re.escape(name)}", which is no name of a result'):
            download(files, to, lambda path: True, force=True)
        with pytest.raises(ClusterError, match="which is no name of a result"):
            files.fetch(pods.described(name), to)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path):
    pods = Pods({"a": WHOLE})
    with pods.opened() as files:

        def full(*words: Any, **asked: Any) -> KubeAnswer:
            raise OSError(errno.ENOSPC, "No space left on device")

        about = files.listed()[0]
        files._request = full
        with pytest.raises(StorageError, match=r"cannot write .*\.a\.part: "):
            files.fetch(about, tmp_path)


def test_simultaneous_readers_do_not_delete_each_other(planned):
    plan = planned()
    kube = MemoryKube()
    uid = kube.create(rendering.root(plan))["metadata"]["uid"]
    kube.create(rendering.with_owner(plan, rendering.secret(plan, dict.fromkeys(("door", "ray", "learner"), "t")), uid))
    ended = kube.create(rendering.reader(plan, owner_uid=uid, suffix="old"))["metadata"]["name"]
    kube.objects["Pod", ended]["status"] = {"phase": "Failed"}
    kube.answers = lambda pod, path, **_: KubeAnswer(200, b'{"files": [], "status": null}')
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
