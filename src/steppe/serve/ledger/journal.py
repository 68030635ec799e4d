"""A journal of answers that are not in the ledger yet, which survives a killed process.

The ledger is written a few times a second, since each write delays requests. Until then every record is also a line of
a journal file: one system call copies it to the kernel, which keeps it whatever happens to the process. The next start
writes into the ledger what the killed process could not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from steppe.files.durable import storing
from steppe.serve.ledger._base import (
    ANSWERED,
    RECORDS,
    Decision,
    Ledger,
    LedgerAway,
    Record,
    ShadowDifference,
    batch_of,
)

log = logging.getLogger("steppe.serve")

FORMAT = 1
MAX_FILE_BYTES = 4 << 20
"""Bytes after which a new file begins; a file is deleted once all of it is in the ledger."""
RETRY_SECONDS = 1.0
"""Seconds after a failure until a new file begins."""
MAX_AT_ONCE = 5000
ENDING, REFUSED = ".journal", ".refused"


class _File(NamedTuple):
    """One file of a journal; its lock is held as long as the descriptor is open."""

    path: Path
    descriptor: int

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self.descriptor)


class Journals:
    """The journals of one endpoint: of this process, and of processes that were killed."""

    def __init__(self, folder: Path, endpoint: str, ledger: str) -> None:
        """`ledger` names the database they belong to, so that records are replayed into no other."""
        self._folder = folder
        self._head = json.dumps([FORMAT, endpoint, ledger]).encode() + b"\n"

    def begin(self, writer: str) -> Journal:
        """A journal for the records of a writer, numbered from 1."""
        return Journal(self._folder, writer, self._head)

    def replay(self, ledger: Ledger) -> int:
        """Writes the records of killed processes into the ledger; returns how many."""
        total = 0
        for writer, files in self._abandoned().items():
            try:
                total += _write(ledger, writer, [line for file in files for line in _lines(file.path)])
            except LedgerAway:
                for file in files:
                    os.close(file.descriptor)
                raise
            except Exception:
                # The endpoint must start even with a damaged file, which is kept for people to look at.
                log.exception("the journal %s%s cannot be written into the ledger", files[0].path, REFUSED)
                for file in files:
                    file.path.rename(file.path.with_name(file.path.name + REFUSED))
                    os.close(file.descriptor)
            else:
                for file in files:
                    file.delete()
        return total

    def _abandoned(self) -> dict[str, list[_File]]:
        """Writer -> its files, oldest first, whose process has ended; locks them."""
        found: dict[str, list[_File]] = {}
        paths = sorted(self._folder.glob(f"*-*{ENDING}"), key=lambda path: (len(path.name), path.name))
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = os.pread(descriptor, len(self._head), 0) == self._head
            except OSError:
                is_ours = False
            if is_ours:
                found.setdefault(path.name.partition("-")[0], []).append(_File(path, descriptor))
            else:
                os.close(descriptor)
        return found


class Journal:
    """The records of one writer; `add` belongs to the thread of the event loop and never fails."""

    def __init__(self, folder: Path, writer: str, head: bytes) -> None:
        self._folder, self._writer, self._head = folder, writer, head
        self._count = self._size = self._files = 0
        self._file: _File | None = None
        self._full: deque[tuple[int, _File]] = deque()
        """(number of its last record, file) of each full file."""
        self._problem: str | None = None
        self._retry = 0.0
        self.missing = 0
        """Number of records that could not be kept."""

    def add(self, number: int, line: bytes) -> None:
        """Keeps the next record, with its number, as the line that `line_of` made."""
        self._count = number
        try:
            line += b"\n"
            if self._file is None or self._size + len(line) > MAX_FILE_BYTES:
                self._next_file()
            assert self._file is not None
            written = os.write(self._file.descriptor, line)
            self._size += written
            if written < len(line):
                raise OSError("the disk took only a part of a record")
        except Exception as error:
            # An answer must neither wait for the disk nor fail because of it.
            self._fail(error)

    def written(self, number: int) -> None:
        """Deletes files whose records up to that number are all in the ledger; called by the ledger's thread."""
        while self._full and self._full[0][0] <= number:
            self._full.popleft()[1].delete()

    def close(self, number: int) -> None:
        """Deletes everything if all records are in the ledger; otherwise the next start finds them."""
        self.written(number)
        file, self._file = self._file, None
        if file is not None and self._count <= number:
            file.delete()
        elif file is not None:
            os.close(file.descriptor)
        for _, left in self._full:
            os.close(left.descriptor)
        self._full.clear()

    def _next_file(self) -> None:
        if self._retry and time.monotonic() < self._retry:
            raise OSError(self._problem or "there is no file")
        before, self._file = self._file, None
        if before is not None:
            self._full.append((self._count - 1, before))
        with storing(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{self._writer}-{self._files:x}{ENDING}"
        # Renamed only when it is locked: a process that starts now could take it for abandoned.
        temporary = path.with_name(f".{path.name}")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, self._head)
            temporary.rename(path)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._file, self._size, self._files = _File(path, descriptor), len(self._head), self._files + 1
        if self._problem is not None:
            log.warning("answers are kept in %s again", self._folder)
        self._problem, self._retry = None, 0.0

    def _fail(self, error: Exception) -> None:
        self.missing += 1
        if self._problem is None:
            log.error("answers cannot be kept in %s until the ledger has them: %s", self._folder, error)
            self._problem = str(error)
        # The file may end with a part of a line: the next record goes into another file.
        if self._file is not None:
            self._full.append((self._count, self._file))
            self._file = None
        self._retry = self._retry if time.monotonic() < self._retry else time.monotonic() + RETRY_SECONDS


def _write(ledger: Ledger, writer: str, lines: list[tuple[int, Record]]) -> int:
    """Writes the records that the ledger does not have yet; returns how many."""
    done = ledger.written_by(writer)
    rest = [(number, record) for number, record in lines if number > done]
    for start in range(0, len(rest), MAX_AT_ONCE):
        some = rest[start : start + MAX_AT_ONCE]
        ledger.write(batch_of(some, writer))
    return len(rest)


def _lines(path: Path) -> Iterator[tuple[int, Record]]:
    """(number, record) of each line; a line that was cut off by a kill or a full disk is skipped."""
    for line in path.read_bytes().splitlines()[1:]:
        try:
            number, kind, *values = json.loads(line)
            record = _record(kind, values)
        except (ValueError, TypeError, KeyError, RecursionError):
            log.warning("a record in %s cannot be read and is left out", path)
            continue
        yield int(number), record


def _record(kind: str, values: list[Any]) -> Record:
    if kind == ANSWERED:
        return _steps(*values)
    record = RECORDS[kind](*values)
    if isinstance(record, Decision):
        return record._replace(steps=_steps(record.steps), is_routed=bool(record.is_routed))
    if isinstance(record, ShadowDifference):
        node, branch = record.step
        return record._replace(step=(str(node), str(branch)))
    return record


def _steps(values: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(node), str(branch)) for node, branch in values)
