"""Fetching the files of a run: each is checked, goes on where it was cut short, and comes from a Pod that is there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from steppe.errors import ClusterError, StateError
from steppe.files.durable import storing
from steppe.platforms.kubernetes.client.kubeapi import Answer, KubeError
from steppe.platforms.kubernetes.pod.status_server import is_shown

Json = dict[str, Any]
FILE_SECONDS = 300.0
"""How long nothing may come while a file is fetched or summed up."""
TRIES = 5
"""How often a file is tried of which nothing more comes."""
CHANGES = 20
"""How often a file is fetched anew that the run replaces meanwhile; its status is, every second."""
PAUSE_SECONDS = 0.5
COMING_SECONDS = 120.0
"""How long a download waits for a driver that is to come: one that is replaced is back by then, if it has a node."""
LOOK_SECONDS = 2.0


class NotNow(KubeError):
    """Nobody shows the files now, and somebody will."""


class Files:
    """The files of a run as a Pod shows them, and another Pod when that one is gone; opened with the context."""

    def __init__(
        self,
        open_door: Callable[[], AbstractContextManager[str]],
        answers: Callable[[str], bool],
        ask: Callable[..., Answer],
        refused: Callable[[Answer, str], KubeError],
    ) -> None:
        """`open_door` gives a Pod, of which `answers` tells whether it is still there; `ask` asks it for a path."""
        self._open_door, self._answers, self._ask, self._refused = open_door, answers, ask, refused
        self._stack = ExitStack()
        self._pod = ""

    def __enter__(self) -> Self:
        self._pod = self._stack.enter_context(self._open_door())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def listed(self, name: str | None = None) -> list[Json]:
        """Every file with its size and checksum, or only the one of that name."""
        path = "/files" if name is None else f"/files?name={quote(name)}"
        answer = self._expected(self._ask(self._pod, path, seconds=FILE_SECONDS))
        # A Pod of an older image lists them all, whatever was asked.
        return [each for each in json.loads(answer.body)["files"] if name in (None, each["path"])]

    def fetch(self, about: Json, to: Path) -> Path | None:
        """One file, into the folder `to`; None if the run has removed it meanwhile."""
        copy = _inside(to, about["path"])
        if copy.exists() and sum_of(copy) == about["sha256"]:
            return copy
        half = copy.with_name(f".{copy.name}.part")
        with storing(copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
        tries, changes = TRIES, 0
        closed: KubeError | None = None
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
                # It was replaced since it was listed, or came damaged: from the start, as it is now.
                half.unlink(missing_ok=True)
                changes += 1
                again = self.listed(about["path"])
                if not again:
                    return None
                about = again[0]
            except KubeError as error:
                tries = TRIES if _size(half) > had else tries - 1
                if not tries:
                    # Why there is no other Pod says more than that the one from before is gone.
                    raise closed or error from None
                time.sleep(PAUSE_SECONDS * 2 ** (TRIES - tries))
                closed = self._find_door()
        raise ClusterError(f"{about['path']} changes faster than it can be fetched; pause the experiment first")

    def _fetch_rest(self, about: Json, half: Path) -> bool:
        """Whether the file was there; what of it is here already is kept."""
        start, size = _size(half), int(about["size"])
        with storing(half), half.open("ab") as file:
            if start >= size:
                return True
            # No further than it was when it was listed, which its checksum is of: a running experiment's logs grow.
            headers = {"Range": f"bytes={start}-{size - 1}"}
            answer = self._ask(
                self._pod, f"/files/{quote(about['path'])}", headers=headers, sink=file.write, seconds=FILE_SECONDS
            )
        if answer.code == 404:
            return False
        self._expected(answer)
        return True

    def _find_door(self) -> KubeError | None:
        """Another Pod, where the one that showed the files has gone: a driver that is done, a reader after its time.

        Why there is none, where the one from before is to be tried again, as when the cluster cannot be reached.
        """
        deadline = time.monotonic() + COMING_SECONDS
        while True:
            try:
                if not self._answers(self._pod):
                    stack = ExitStack()
                    self._pod = stack.enter_context(self._open_door())
                    self._stack.close()
                    self._stack = stack
                return None
            except NotNow:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_SECONDS)
            except KubeError as error:
                return error

    def _expected(self, answer: Answer) -> Answer:
        if answer.code >= 400:
            raise self._refused(answer, "the Pod")
        return answer


def download(
    files: Files, to: Path, wanted: Callable[[str], bool], *, force: bool, tell: Callable[[str], None] | None = None
) -> list[Path]:
    """Fetches the wanted files; what is here already, whole or in part, is not fetched again."""
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
    return _without_remains(copies, removed - {to})


def sum_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(to: Path, name: str) -> Path:
    """Where a file goes. The Pod that names it runs what others wrote, and must not write elsewhere on this machine."""
    if not is_shown(name):
        raise ClusterError(
            f'the Pod lists "{name}", which is no name of a result, so nothing is fetched from it; look at what else '
            "its image runs, or answers in its place"
        )
    return to / name


def _without_remains(copies: list[Path], folders: set[Path]) -> list[Path]:
    """A running experiment removes its oldest checkpoint: better none of it than a part."""
    for copy in [each for each in copies if each.parent in folders]:
        copy.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            copy.parent.rmdir()
    return [each for each in copies if each.parent not in folders]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
