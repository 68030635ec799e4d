"""Fetches the files of a run: each is checked, resumed after an interruption, and comes from a Pod that answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from steppe.errors import ClusterError, StateError
from steppe.files.durable import storing
from steppe.platforms.kubernetes.client.kubeapi import KubeAnswer, KubeError
from steppe.platforms.kubernetes.pod.status_server import is_shown

Json = dict[str, Any]
FILE_SECONDS = 300.0
"""How long a Pod may be silent while it sends a file or computes its checksum."""
TRIES = 5
"""How often a file is tried without any more of it arriving."""
CHANGES = 20
"""How often a file is fetched again because the run has replaced it; the status is replaced every second."""
PAUSE_SECONDS = 0.5
COMING_SECONDS = 120.0
"""How long a download waits for a driver: one that is being replaced is back by then, if there is a node for it."""
LOOK_SECONDS = 2.0


class NotNow(KubeError):
    """No Pod shows the files now, but a driver is expected to."""


class ResultFiles:
    """The files of a run, as shown by one Pod or, once that is gone, another; opened as a context."""

    def __init__(
        self,
        open_source: Callable[[], AbstractContextManager[str]],
        still_answers: Callable[[str], bool],
        request: Callable[..., KubeAnswer],
        refused: Callable[[KubeAnswer, str], KubeError],
    ) -> None:
        """`open_source` yields the name of a Pod that shows the files.

        `request` sends a request to a Pod, and `refused` makes the error of an answer with an error code.
        """
        self._open_source, self._still_answers = open_source, still_answers
        self._request, self._refused = request, refused
        self._stack = ExitStack()
        self._pod = ""

    def __enter__(self) -> Self:
        self._pod = self._stack.enter_context(self._open_source())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def listed(self, name: str | None = None) -> list[Json]:
        """Every file with its size and checksum, or only the file of that name."""
        path = "/files" if name is None else f"/files?name={quote(name)}"
        answer = self._accepted(self._request(self._pod, path, seconds=FILE_SECONDS))
        # A Pod of an older image lists all files, even if asked for one.
        return [each for each in json.loads(answer.body)["files"] if name in (None, each["path"])]

    def fetch(self, about: Json, to: Path) -> Path | None:
        """Fetches one file into the folder `to`; None if the run has removed it meanwhile."""
        copy = _inside(to, about["path"])
        if copy.exists() and sum_of(copy) == about["sha256"]:
            return copy
        half = copy.with_name(f".{copy.name}.part")
        with storing(copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
        tries, changes = TRIES, 0
        no_source: KubeError | None = None
        while changes < CHANGES:
            had = _size(half)
            try:
                if not self._fetch_rest(about, half):
                    half.unlink(missing_ok=True)
                    return None
                if sum_of(half) == about["sha256"]:
                    with storing(copy):
                        half.replace(copy)
                    return copy
                # It was replaced since it was listed, or damaged on the way: start again with the file as it is now.
                half.unlink(missing_ok=True)
                changes += 1
                again = self.listed(about["path"])
                if not again:
                    return None
                about = again[0]
            except KubeError as error:
                tries = TRIES if _size(half) > had else tries - 1
                if not tries:
                    # The reason why there is no other Pod is more useful than the loss of the last one.
                    raise no_source or error from None
                time.sleep(PAUSE_SECONDS * 2 ** (TRIES - tries))
                no_source = self._find_source()
        raise ClusterError(f"{about['path']} changes faster than it can be fetched; pause the experiment first")

    def _fetch_rest(self, about: Json, half: Path) -> bool:
        """Appends the missing part of a file; returns whether the run still has it."""
        start, size = _size(half), int(about["size"])
        with storing(half), half.open("ab") as file:
            if start >= size:
                return True
            # Only as far as the listed checksum reaches: the logs of a running experiment grow.
            headers = {"Range": f"bytes={start}-{size - 1}"}
            answer = self._request(
                self._pod, f"/files/{quote(about['path'])}", headers=headers, sink=file.write, seconds=FILE_SECONDS
            )
        if answer.code == 404:
            return False
        self._accepted(answer)
        return True

    def _find_source(self) -> KubeError | None:
        """Changes to another Pod if the last one is gone, such as a driver that is done or a reader after its time.

        Returns why there is none if the last one is to be tried again, as when the cluster cannot be reached.
        """
        deadline = time.monotonic() + COMING_SECONDS
        while True:
            try:
                if not self._still_answers(self._pod):
                    stack = ExitStack()
                    self._pod = stack.enter_context(self._open_source())
                    self._stack.close()
                    self._stack = stack
                return None
            except NotNow:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_SECONDS)
            except KubeError as error:
                return error

    def _accepted(self, answer: KubeAnswer) -> KubeAnswer:
        if answer.code >= 400:
            raise self._refused(answer, "the Pod")
        return answer


def download(
    files: ResultFiles,
    to: Path,
    wanted: Callable[[str], bool],
    *,
    force: bool,
    tell: Callable[[str], None] | None = None,
) -> list[Path]:
    """Fetches the wanted files; files that exist here, whole or in part, are not sent again."""
    found = [each for each in files.listed() if wanted(each["path"])]
    for each in found:
        copy = _inside(to, each["path"])
        if copy.exists() and not force and sum_of(copy) != each["sha256"]:
            raise StateError(f"{copy} exists already; choose another --to, or use --force to replace it")
    copies: list[Path] = []
    removed: set[Path] = set()
    for number, each in enumerate(found, 1):
        if tell is not None:
            tell(f"{number} of {len(found)}: {each['path']}")
        if (fetched := files.fetch(each, to)) is not None:
            copies.append(fetched)
        else:
            removed.add(_inside(to, each["path"]).parent)
    return _without_partial_folders(copies, removed - {to})


def sum_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(to: Path, name: str) -> Path:
    """The path of a file's copy. The Pod that names it may run anybody's code, so the name must stay inside `to`."""
    if not is_shown(name):
        raise ClusterError(
            f'the Pod lists "{name}", which is no name of a result, so nothing is fetched from it; look at what else '
            "its image runs, or answers in its place"
        )
    return to / name


def _without_partial_folders(copies: list[Path], folders: set[Path]) -> list[Path]:
    """Deletes the copies in folders of which the run has removed files: an old checkpoint is useless in part."""
    for copy in [each for each in copies if each.parent in folders]:
        copy.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            copy.parent.rmdir()
    return [each for each in copies if each.parent not in folders]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
