"""Keeps a run folder in object storage, and brings it back: the store is a run that can be resumed at any moment.

Checkpoints are stored first, arrays before their manifest, and the status last; what the run has removed is removed
after that. One Pod writes: the index names it, and one that finds another's name there stops.
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
from steppe.platforms.kubernetes.storage.object_store import BLOCK, WAY_OUT, Entry, Index, ObjectStore, blocks

SILENT_SECONDS = 60.0
"""A writer that has said nothing for so long is gone."""
FORGOTTEN_SECONDS = 600.0
"""One whose last word is older than this, by the clock, need not be waited for."""
RENEW_SECONDS = 10.0
"""How often a writer says that it is there while it sends something long."""
LOOK_SECONDS = 1.0
RACY_NANOSECONDS = 100_000_000
"""A file that changed so shortly before it was read may change again without its time showing it."""
LARGEST_BATCH = 2 * BLOCK
REQUEST_FILE = "request.json"
"""As the run calls them: the one hidden file that belongs to it, and the one other file that does not."""
STATUS_FILE = "status.json"
LAST = ("experiment.json", NOTE_FILE, STATUS_FILE)
"""What tells how far the run is, in this order after all that it speaks of."""
_CHECKPOINT = re.compile(r"checkpoints/[^/]+/(?P<file>.+)")

Signature = tuple[int, int, int]
Tell = Callable[[str], None]


class Superseded(Exception):
    """Another Pod writes this run by now."""


class Interrupted(Exception):
    """This Pod is to end before it has begun."""


@dataclass
class _Item:
    """A file that is to be stored: from memory, or from the open file where it is large."""

    name: str
    entry: Entry
    signature: Signature | None
    data: bytes | None
    file: BinaryIO | None = None

    def close(self) -> None:
        """Lets go of the file."""
        if self.file is not None:
            self.file.close()


class Mirror:
    """One run folder and its copy; used by one thread at a time."""

    def __init__(self, store: ObjectStore, folder: Path, session: str, tell: Tell = lambda sentence: None) -> None:
        """`session` is this writer's own name, never used before; `tell` hears what a user should know."""
        self.store, self.folder, self.session, self.tell = store, folder, session, tell
        self.damaged: list[str] = []
        """What was brought back and is not as it was stored, in sentences."""
        self._index = Index()
        self._sent: dict[str, Signature] = {}
        self._missing: set[str] = set()
        self._renewed = 0.0

    def claim(self, is_ending: Callable[[], bool] = lambda: False) -> None:
        """Becomes the writer, once an earlier one has let go or has fallen silent; Interrupted where it `is_ending`."""
        index = self.store.read_index()
        seen, since = index, time.monotonic()
        while index is not None and _may_live(index.writer):
            if index.writer == (seen.writer if seen is not None else None):
                if time.monotonic() - since > SILENT_SECONDS:
                    break
            else:
                seen, since = index, time.monotonic()
            pause(LOOK_SECONDS, is_ending)
            index = self.store.read_index()
        self._index = index or Index()
        self._sign()
        self._check_writer()

    def fetch(self) -> None:
        """Brings back what the store has; what is damaged is told, and an error where the run could not go on right."""
        index, held, damaged = self._index, dict[str, Entry](), list[str]()
        for name in sorted({*index.files, *index.coming}):
            wanted = [*index.coming.get(name, ()), *([index.files[name]] if name in index.files else ())]
            found = fetch_checked(self.store, name, self.folder / name, wanted)
            if found is not None:
                held[name] = found
                self._sent[name] = _signature((self.folder / name).stat())
            if found not in wanted and (found is not None or name in index.files):
                damaged.append(name)
            self._renew()
        for name in damaged:
            if name in LAST:
                raise UserError(f"{damage(self.store, name)}; {WAY_OUT}")
            # The run goes on with what there is; a damaged checkpoint is passed over, as it is on a disk.
            self.damaged.append(damage(self.store, name))
            self.tell(self.damaged[-1])
        if STATUS_FILE not in held:
            # Its writer was killed before it had stored anything to go on from.
            for name in held:
                (self.folder / name).unlink()
            index.leaving, held = sorted({*index.leaving, *held}), {}
        index.files, index.coming = held, {}
        self._write_index()

    def sync(self) -> bool:
        """Stores what has changed since the last time; whether anything had."""
        self._check_writer()
        # Read before anything else, so that they speak of nothing that is not stored yet when they are.
        pointers = [item for name in LAST for item in self._items([name])]
        here = self._scan()
        changed = sorted((name for name in here if self._sent.get(name) != here[name]), key=_rank)
        with contextlib.closing(self._batches([name for name in changed if name not in LAST])) as batches:
            for batch in batches:
                self._store(batch)
        self._store(pointers)
        # A folder that changes while it is looked at may hide a file: only what is missed twice is gone.
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
        """Stores the rest, looks whether all of it is there, and lets go."""
        while True:
            while self.sync():
                pass
            sizes = self.store.sizes()
            lacking = [name for name, entry in self._index.files.items() if sizes.get(name) != entry.size]
            if not lacking:
                break
            self.tell(f"{self.store.url}/{lacking[0]} is not as it was stored, and is stored again")
            for name in lacking:
                del self._index.files[name]
                self._sent.pop(name, None)
        self.let_go()

    def let_go(self) -> None:
        """Says that this Pod writes no more."""
        self._index.writer = None
        self.store.write_index(self._index)

    def _store(self, batch: list[_Item]) -> None:
        try:
            index = self._index
            news = [item for item in batch if index.files.get(item.name) != item.entry or item.name in index.coming]
            for item in news:
                index.coming.setdefault(item.name, []).append(item.entry)
            if news:
                self._write_index()
            for item in news:
                self._renew()
                if item.data is not None:
                    self.store.write(item.name, item.data)
                elif item.file is not None:
                    sent = self.store.upload(item.name, item.file, item.entry.size, self._renew)
                    if sent != item.entry.sha256:
                        # It was written to meanwhile; it is stored again, and what is there now is known.
                        item.entry, item.signature = Entry(item.entry.size, sent), None
                index.files[item.name] = item.entry
                index.coming.pop(item.name, None)
            for item in batch:
                if item.signature is not None:
                    self._sent[item.name] = item.signature
        finally:
            for item in batch:
                item.close()

    def _batches(self, names: list[str]) -> Generator[list[_Item], None, None]:
        """Files that are announced together: small ones, up to a size, behind at most one large one."""
        batch: list[_Item] = []
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

    def _items(self, names: list[str]) -> Iterator[_Item]:
        for name in names:
            # The run may have removed it meanwhile.
            with contextlib.suppress(FileNotFoundError):
                yield _read(name, self.folder / name)

    def _scan(self) -> dict[str, Signature]:
        found = {}
        for place, inner, names in os.walk(self.folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            for name in names:
                path = Path(place, name)
                if (name.startswith(".") and name != NOTE_FILE) or name == REQUEST_FILE or path.is_symlink():
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found[path.relative_to(self.folder).as_posix()] = _signature(path.stat())
        return found

    def _check_writer(self) -> None:
        index = self.store.read_index()
        if index is None:
            # Somebody has emptied the store: all of it is stored again.
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
    """Waits, and looks often: what a signal has changed is not told by any event, which might be locked just then."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if is_ending():
            raise Interrupted
        time.sleep(min(left, 0.1))


def fetch_checked(store: ObjectStore, name: str, to: Path, wanted: list[Entry]) -> Entry | None:
    """Fetches an object, a second time where it is not as it should be; what it was like, None if it is not there."""
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


def damage(store: ObjectStore, name: str) -> str:
    """The sentence for an object that is not as it was stored."""
    return f"{store.url}/{name} is damaged or gone: it is not what was stored there"


def _read(name: str, path: Path) -> _Item:
    """A file as it is now; what is appended later is stored later."""
    file = path.open("rb")
    about = os.fstat(file.fileno())
    is_racy = time.time_ns() - about.st_mtime_ns < RACY_NANOSECONDS
    signature = None if is_racy else _signature(about)
    if about.st_size <= BLOCK:
        with file:
            data = file.read(about.st_size)
        return _Item(name, Entry(len(data), hashlib.sha256(data).hexdigest()), signature, data)
    digest, size = hashlib.sha256(), 0
    for block in blocks(file, about.st_size):
        digest.update(block)
        size += len(block)
    return _Item(name, Entry(size, digest.hexdigest()), signature, None, file)


def _signature(about: os.stat_result) -> Signature:
    return about.st_ino, about.st_size, about.st_mtime_ns


def _rank(name: str) -> tuple[int, str]:
    """The order in which files are stored."""
    checkpoint = _CHECKPOINT.fullmatch(name)
    if checkpoint is None:
        return 2, name
    return (1 if checkpoint["file"].endswith(".json") else 0), name


def _may_live(writer: dict[str, object] | None) -> bool:
    if writer is None:
        return False
    said = writer.get("time")
    return not isinstance(said, int | float) or abs(time.time() - said) < FORGOTTEN_SECONDS
