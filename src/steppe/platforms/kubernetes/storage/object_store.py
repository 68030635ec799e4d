"""The results of one experiment in object storage (`s3://`, `gs://` and others that fsspec knows), with an index.

Objects have the names of the files in the run folder. The index lists them with size and sha256. It is written before
objects change, with the new versions, and again after: whenever a writer is killed, every object is either in its old
version or in an announced one, and anything else is damage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from steppe.errors import SteppeError, UserError, clause
from steppe.files.durable import storing
from steppe.platforms.kubernetes.storage.store_client import meaning_of, open_client, remedies_for

INDEX = ".steppe-index.json"
FORMAT, VERSION = "steppe-results", 1
BLOCK = 1 << 24
"""The size of a part of an upload or download; smaller objects are written in one step."""
WAY_OUT = (
    "bring back an earlier version of this object, or delete the experiment, which leaves what is stored, and start it "
    "again"
)
TRIES = 3
FIRST_PAUSE = 0.5
RETRY_SECONDS = 20.0
"""A library that has retried by itself for so long is not called again."""

T = TypeVar("T")


class StoreError(SteppeError):
    """A request to object storage failed; another attempt may succeed, unless `is_final`."""

    def __init__(self, sentence: str, is_final: bool = False) -> None:
        super().__init__(sentence)
        self.is_final = is_final


class StoredObject(NamedTuple):
    """The size and checksum that an object must have."""

    size: int
    sha256: str


@dataclass
class Index:
    """The list of a run's objects."""

    writer: dict[str, Any] | None = None
    """The Pod that writes, and when it last did; None if none does."""
    files: dict[str, StoredObject] = field(default_factory=dict)
    coming: dict[str, list[StoredObject]] = field(default_factory=dict)
    """Announced versions: each object may be the old one or any of these."""
    leaving: list[str] = field(default_factory=list)
    """Objects that no longer belong to the run, and may still be there."""

    @classmethod
    def parse(cls, data: bytes) -> Index:
        """The inverse of `text`; ValueError if it is not an index."""
        content = json.loads(data)
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"it is not in format {FORMAT} {VERSION}")
        files = {str(name): StoredObject(int(size), str(sha256)) for name, (size, sha256) in content["files"].items()}
        coming = {
            str(name): [StoredObject(int(size), str(sha256)) for size, sha256 in entries]
            for name, entries in content["coming"].items()
        }
        index = cls(content["writer"], files, coming, [str(name) for name in content["leaving"]])
        if not all(map(_is_plain, (*files, *coming, *index.leaving))):
            raise ValueError("it names objects that lie elsewhere")
        return index

    def versions(self, name: str) -> list[StoredObject]:
        """The versions that an object may have: the announced ones, then the last complete one."""
        return [*self.coming.get(name, ()), *([self.files[name]] if name in self.files else ())]

    def text(self) -> str:
        """The index as JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}, indent=1) + "\n"


class ObjectStore:
    """The objects below one URL, which belongs to one experiment alone; requests are repeated, errors are sentences."""

    def __init__(self, url: str) -> None:
        """Makes the client; no request is sent yet."""
        self.url = url.rstrip("/")
        self._files, self._root = self._retried("open", "", lambda: open_client(self.url))

    def read_index(self) -> Index | None:
        """The index; None if the store has none."""
        data = self._retried("read", INDEX, lambda: _if_there(lambda: self._files.cat_file(self._path(INDEX))))
        if data is None:
            return None
        try:
            return Index.parse(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.url}/{INDEX} is damaged ({clause(error)}), so it cannot be told what the run has stored; "
                f"{WAY_OUT}"
            ) from error

    def write_index(self, index: Index) -> None:
        """Writes the index in one step."""
        self.write(INDEX, index.text().encode())

    def write(self, name: str, data: bytes) -> None:
        """Writes an object from memory in one step."""
        self._retried("write", name, lambda: self._files.pipe_file(self._path(name), data))

    def upload(self, name: str, file: BinaryIO, size: int, after_block: Callable[[], None]) -> str:
        """Writes an object from the first `size` bytes of a file, whole or not at all; returns their sha256."""

        def send() -> str:
            target = self._files.open(self._path(name), "wb", block_size=BLOCK, autocommit=False)
            is_begun = False
            try:
                digest = hashlib.sha256()
                for block in blocks(file, size):
                    digest.update(block)
                    target.write(block)
                    is_begun = True
                    after_block()
                target.close()
                target.commit()
            except FileNotFoundError as error:
                _discard(target)
                if is_begun:
                    # The bucket exists, since it has taken a part.
                    raise ConnectionAbortedError("it has forgotten an upload that was begun") from error
                raise
            except BaseException:
                _discard(target)
                raise
            return digest.hexdigest()

        return self._retried("write", name, send)

    def download(self, name: str, to: Path, expected: StoredObject) -> StoredObject | None:
        """Fetches an object to a file; returns its size and checksum, or None if it does not exist."""
        digest, size = hashlib.sha256(), 0
        with storing(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            with to.open("wb") as file:
                for block in self._blocks(name, expected.size):
                    if block is None:
                        return None
                    digest.update(block)
                    size += file.write(block)
        return StoredObject(size, digest.hexdigest())

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects, if they exist."""
        for name in names:
            path = self._path(name)
            self._retried("remove", name, functools.partial(_if_there, functools.partial(self._files.rm_file, path)))

    def sizes(self) -> dict[str, int]:
        """The sizes of all objects, including the index."""

        def listed() -> dict[str, int]:
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
            return {path.removeprefix(self._root).lstrip("/"): int(about["size"]) for path, about in found.items()}

        return self._retried("list", "", listed)

    def erase(self) -> int:
        """Removes all objects; returns how many there were."""
        count = len(self.sizes())
        if count:
            self._retried("remove", "", lambda: _if_there(lambda: self._files.rm(self._root, recursive=True)))
        return count

    def _blocks(self, name: str, expected_size: int) -> Iterator[bytes | None]:
        """An object in parts; None if it does not exist."""
        path = self._path(name)
        if expected_size <= BLOCK:
            # Fetched as a whole, since an empty object has no valid range.
            yield self._retried("read", name, lambda: _if_there(lambda: self._files.cat_file(path)))
            return
        about = self._retried("read", name, lambda: _if_there(lambda: self._files.info(path)))
        size = 0 if about is None else int(about["size"])
        if about is None:
            yield None
        for start in range(0, size, BLOCK):
            yield self._part(name, start, min(start + BLOCK, size))

    def _part(self, name: str, start: int, stop: int) -> bytes | None:
        read = self._files.cat_file
        return self._retried("read", name, lambda: _if_there(lambda: read(self._path(name), start=start, end=stop)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _retried(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """The result of a call, which is repeated after a pause; each library also retries quickly by itself."""
        begin = time.monotonic()
        for attempt in range(TRIES):
            try:
                return call()
            except (SteppeError, MemoryError):
                raise
            except Exception as error:
                failure = self._failure(verb, name, error)
                if failure.is_final or attempt == TRIES - 1 or time.monotonic() - begin > RETRY_SECONDS:
                    raise failure from error
                time.sleep(FIRST_PAUSE * 2**attempt)
        raise AssertionError

    def _failure(self, verb: str, name: str, error: Exception) -> StoreError:
        cannot = f"cannot {verb} {self.url}/{name}" if name else f"cannot {verb} {self.url}"
        meaning, remedies = meaning_of(error), remedies_for(self.url)
        match meaning.kind:
            case "no credentials":
                why = (
                    f"there are no credentials for it, or they are not accepted ({meaning.clause}); {remedies.sign_in}"
                )
            case "denied":
                why = f"access is denied ({meaning.clause}); {remedies.rights}"
            case "no bucket":
                why = f"{meaning.clause}; {remedies.bucket}"
            case "passing":
                why = meaning.clause
        return StoreError(f"{cannot}: {why}", meaning.is_final)


def stored_at(results: str, run: str, token: str) -> str:
    """The URL of an experiment's objects: different for every experiment, even after one of the same name."""
    return f"{results.rstrip('/')}/{run}-{hashlib.sha256(f'results {token}'.encode()).hexdigest()[:12]}"


def blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file in blocks, or fewer if the file is shorter."""
    file.seek(0)
    while size > 0 and (block := file.read(min(BLOCK, size))):
        yield block
        size -= len(block)


def _discard(target: Any) -> None:
    """Discards an unfinished upload; errors of this must not hide the reason for it."""
    with contextlib.suppress(Exception):
        target.discard()
    with contextlib.suppress(AttributeError):
        # Otherwise the garbage collector would finish the upload.
        target.closed = True


def _if_there(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except FileNotFoundError:
        return None


def _is_plain(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
