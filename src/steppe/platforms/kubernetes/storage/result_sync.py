"""Copies a run folder to object storage and back, so that the stored run can be resumed at any moment.

Checkpoints are stored first, arrays before their manifest, and the status last; then files that the run has removed are
removed. Only one Pod writes: the index names it, and a Pod that finds another's name there stops.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from steppe.errors import UserError
from steppe.files.durable import storing
from steppe.platforms.kubernetes.agreement import NOTE_FILE
from steppe.platforms.kubernetes.storage.object_store import BLOCK, WAY_OUT, Index, ObjectStore, StoredObject, blocks

SILENT_SECONDS = 60.0
"""A writer that has not renewed its claim for so long is gone."""
FORGOTTEN_SECONDS = 600.0
"""A writer whose last renewal is older than this, by the wall clock, is not waited for."""
RENEW_SECONDS = 10.0
"""How often a writer renews its claim while it sends large files."""
LOOK_SECONDS = 1.0
RACY_NANOSECONDS = 100_000_000
"""A file that changed so shortly before it was read may change again within the resolution of its time."""
LARGEST_BATCH = 2 * BLOCK
REQUEST_FILE = "request.json"
"""The name of the file with requests to the run, which is not stored."""
STATUS_FILE = "status.json"
LAST = ("experiment.json", NOTE_FILE, STATUS_FILE)
"""The files that tell how far the run is; they are stored in this order, after the files they refer to."""
_CHECKPOINT = re.compile(r"checkpoints/[^/]+/(?P<file>.+)")

Signature = tuple[int, int, int]
Tell = Callable[[str], None]


class Superseded(Exception):
    """Another Pod has become the writer of this run."""


class Interrupted(Exception):
    """This Pod must end before its training has begun."""


@dataclass
class _Upload:
    """A file to be stored: from memory, or from the open file if it is large."""

    name: str
    entry: StoredObject
    signature: Signature | None
    data: bytes | None
    file: BinaryIO | None = None

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            self.file.close()


class ResultSync:
    """One run folder and its copy in object storage; used by one thread at a time."""

    def __init__(self, store: ObjectStore, folder: Path, session: str, tell: Tell = lambda sentence: None) -> None:
        """`session` is a unique name of this writer; `tell` takes sentences for the user."""
        self.store, self.folder, self.session, self.tell = store, folder, session, tell
        self.damaged: list[str] = []
        """Sentences about fetched files that are not as they were stored."""
        self._index = Index()
        self._sent: dict[str, Signature] = {}
        self._missing: set[str] = set()
        self._renewed = 0.0

    def claim(self, is_ending: Callable[[], bool] = lambda: False) -> None:
        """Becomes the writer once the last one has released the run or is gone; Interrupted if this Pod `is_ending`."""
        index = self.store.read_index()
        last, since = index, time.monotonic()
        while index is not None and _may_live(index.writer):
            if index.writer == (last.writer if last is not None else None):
                if time.monotonic() - since > SILENT_SECONDS:
                    break
            else:
                last, since = index, time.monotonic()
            pause(LOOK_SECONDS, is_ending)
            index = self.store.read_index()
        self._index = index or Index()
        self._sign()
        self._check_writer()

    def fetch(self) -> None:
        """Fetches the stored files; reports damaged ones, by a UserError if the run cannot resume without them."""
        index, fetched, damaged = self._index, dict[str, StoredObject](), list[str]()
        for name in sorted({*index.files, *index.coming}):
            wanted = index.versions(name)
            found = fetch_checked(self.store, name, self.folder / name, wanted)
            if found is not None and found not in wanted and name in {*index.leaving} - {*index.files}:
                # An earlier file of that name, which was to be removed: the new one was announced but never written.
                (self.folder / name).unlink()
                found = None
            if found is not None:
                fetched[name] = found
                self._sent[name] = _signature((self.folder / name).stat())
            if found not in wanted and (found is not None or name in index.files):
                damaged.append(name)
            self._renew()
        for name in damaged:
            if name in LAST:
                raise UserError(f"{damage_of(self.store, name)}; {WAY_OUT}")
            # The run goes on without this file; a damaged checkpoint is passed over, as on a disk.
            self.damaged.append(damage_of(self.store, name))
            self.tell(self.damaged[-1])
        if STATUS_FILE not in fetched:
            # Its writer was killed before it had stored anything to resume from.
            for name in fetched:
                (self.folder / name).unlink()
            index.leaving, fetched = sorted({*index.leaving, *fetched}), {}
        index.files, index.coming = fetched, {}
        self._write_index()

    def sync(self) -> bool:
        """Stores all changes since the last time; returns whether there were any."""
        self._check_writer()
        # Read first, so that they refer to nothing that this pass does not store.
        pointers = [item for name in LAST for item in self._items([name])]
        here = self._scan()
        changed = sorted((name for name in here if self._sent.get(name) != here[name]), key=_rank)
        with contextlib.closing(self._batches([name for name in changed if name not in LAST])) as batches:
            for batch in batches:
                self._store(batch)
        self._store(pointers)
        # A scan may miss a file while the folder changes: only a file that is missed twice is gone.
        missing = {*self._index.files, *self._index.coming} - set(here)
        gone, self._missing = missing & self._missing, missing
        for name in gone:
            for names in (self._index.files, self._index.coming, self._sent):
                names.pop(name, None)
        self._index.leaving = sorted({*self._index.leaving, *gone} - set(self._index.files))
        self._write_index()
        if self._index.leaving:
            self.store.remove(self._index.leaving)
            self._index.leaving = []
        return bool(changed or missing)

    def settle(self) -> None:
        """Stores the rest, verifies that all objects exist, and releases the run."""
        while True:
            while self.sync():
                pass
            sizes = self.store.sizes()
            incomplete = [name for name, entry in self._index.files.items() if sizes.get(name) != entry.size]
            if not incomplete:
                break
            self.tell(f"{self.store.url}/{incomplete[0]} is not as it was stored, and is stored again")
            for name in incomplete:
                del self._index.files[name]
                self._sent.pop(name, None)
        self.release()

    def release(self) -> None:
        """Announces that this Pod writes no more."""
        self._index.writer = None
        self.store.write_index(self._index)

    def _store(self, batch: list[_Upload]) -> None:
        try:
            index = self._index
            changed = [item for item in batch if index.files.get(item.name) != item.entry or item.name in index.coming]
            for item in changed:
                index.coming.setdefault(item.name, []).append(item.entry)
            if changed:
                self._write_index()
            for item in changed:
                self._renew()
                if item.data is not None:
                    self.store.write(item.name, item.data)
                elif item.file is not None:
                    sent = self.store.upload(item.name, item.file, item.entry.size, self._renew)
                    if sent != item.entry.sha256:
                        # The file changed during the upload; this version is noted, and the new one is stored later.
                        item.entry, item.signature = StoredObject(item.entry.size, sent), None
                index.files[item.name] = item.entry
                index.coming.pop(item.name, None)
            for item in batch:
                if item.signature is not None:
                    self._sent[item.name] = item.signature
        finally:
            for item in batch:
                item.close()

    def _batches(self, names: list[str]) -> Generator[list[_Upload], None, None]:
        """Groups of files that are announced together: small files up to a total size, after at most one large file."""
        batch: list[_Upload] = []
        try:
            for item in self._items(names):
                full, batch = batch, [*batch, item]
                if full and (item.data is None or sum(each.entry.size for each in batch) > LARGEST_BATCH):
                    batch = [item]
                    yield full
            if batch:
                yield batch
        finally:
            for item in batch:
                item.close()

    def _items(self, names: list[str]) -> Iterator[_Upload]:
        for name in names:
            # The run may have removed it meanwhile.
            with contextlib.suppress(FileNotFoundError):
                yield _read(name, self.folder / name)

    def _scan(self) -> dict[str, Signature]:
        found = {}
        for parent, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(parent, name)
                if (name.startswith(".") and name != NOTE_FILE) or name == REQUEST_FILE or path.is_symlink():
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found[path.relative_to(self.folder).as_posix()] = _signature(path.stat())
        return found

    def _check_writer(self) -> None:
        index = self.store.read_index()
        if index is None:
            # Somebody has emptied the store, so everything is stored again.
            self.tell(f"{self.store.url} was emptied by somebody else; everything is stored again")
            for known in (self._index.files, self._index.coming, self._index.leaving, self._sent):
                known.clear()
            self._sign()
        elif (index.writer or {}).get("session") != self.session:
            raise Superseded

    def _renew(self) -> None:
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            self._write_index()

    def _write_index(self) -> None:
        self._check_writer()
        self._sign()

    def _sign(self) -> None:
        self._index.writer = {"session": self.session, "time": time.time()}
        self.store.write_index(self._index)
        self._renewed = time.monotonic()


def pause(seconds: float, is_ending: Callable[[], bool]) -> None:
    """Waits for `seconds` by polling: a signal handler cannot safely set an event, whose lock may be held just then."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if is_ending():
            raise Interrupted
        time.sleep(min(left, 0.1))


def fetch_checked(store: ObjectStore, name: str, to: Path, wanted: list[StoredObject]) -> StoredObject | None:
    """Fetches an object, twice if the first copy is damaged; returns what was fetched, None if it does not exist."""
    half = to.with_name(f".{to.name}.part")
    try:
        for _ in range(2):
            found = store.download(name, half, wanted[-1])
            if found in wanted:
                break
        if found is not None:
            with storing(to):
                half.replace(to)
        return found
    finally:
        half.unlink(missing_ok=True)


def damage_of(store: ObjectStore, name: str) -> str:
    """The sentence about an object that is not as it was stored."""
    return f"{store.url}/{name} is damaged or gone: it is not what was stored there"


def _read(name: str, path: Path) -> _Upload:
    """A file as it is now; appended lines are stored later."""
    file = path.open("rb")
    about = os.fstat(file.fileno())
    is_racy = time.time_ns() - about.st_mtime_ns < RACY_NANOSECONDS
    signature = None if is_racy else _signature(about)
    if about.st_size <= BLOCK:
        with file:
            data = file.read(about.st_size)
        return _Upload(name, StoredObject(len(data), hashlib.sha256(data).hexdigest()), signature, data)
    digest, size = hashlib.sha256(), 0
    for block in blocks(file, about.st_size):
        digest.update(block)
        size += len(block)
    return _Upload(name, StoredObject(size, digest.hexdigest()), signature, None, file)


def _signature(about: os.stat_result) -> Signature:
    return about.st_ino, about.st_size, about.st_mtime_ns


def _rank(name: str) -> tuple[int, str]:
    """The sort key of the order in which files are stored."""
    checkpoint = _CHECKPOINT.fullmatch(name)
    if checkpoint is None:
        return 2, name
    return (1 if checkpoint["file"].endswith(".json") else 0), name


def _may_live(writer: dict[str, object] | None) -> bool:
    if writer is None:
        return False
    renewed = writer.get("time")
    return not isinstance(renewed, int | float) or abs(time.time() - renewed) < FORGOTTEN_SECONDS
