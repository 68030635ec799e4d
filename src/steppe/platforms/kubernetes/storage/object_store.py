"""One experiment's place in object storage (`s3://`, `gs://` and what else fsspec knows): its objects, and their index.

Objects are called as the files of the run folder are. The index says which there are, with size and sha256. It is
written before objects change, with what is coming, and again after: whenever a writer is killed, every object is either
the one that was there or the one that was coming, and anything else is damage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from steppe.errors import SteppeError, UserError
from steppe.files.durable import storing
from steppe.platforms.kubernetes.storage import store_client
from steppe.platforms.kubernetes.storage.store_client import meaning_of, open_client, plain

INDEX = ".steppe-index.json"
FORMAT, VERSION = "steppe-results", 1
BLOCK = 1 << 24
"""What is sent or fetched in one go; smaller objects are written in one step."""
WAY_OUT = (
    "bring back an earlier version of this object, or delete the experiment, which leaves what is stored, and start it "
    "again"
)
TRIES = 3
FIRST_PAUSE = 0.5
PATIENCE = 20.0
"""A library that has tried for so long by itself is not asked again."""

T = TypeVar("T")


class StoreTrouble(SteppeError):
    """Object storage did not do what was asked; it may another time, unless `is_final`."""

    def __init__(self, sentence: str, is_final: bool = False) -> None:
        super().__init__(sentence)
        self.is_final = is_final


class Entry(NamedTuple):
    """What an object must be like."""

    size: int
    sha256: str


@dataclass
class Index:
    """What the store holds of a run."""

    writer: dict[str, Any] | None = None
    """Which Pod writes, and when it last did; None where none does."""
    files: dict[str, Entry] = field(default_factory=dict)
    coming: dict[str, list[Entry]] = field(default_factory=dict)
    """What was begun to be written: these objects may be the old ones, or any of these."""
    leaving: list[str] = field(default_factory=list)
    """Objects that no longer belong to the run, and may still be there."""

    @classmethod
    def parse(cls, data: bytes) -> Index:
        """The inverse of `text`; ValueError where it is none."""
        content = json.loads(data)
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"it is not in format {FORMAT} {VERSION}")
        files = {str(name): Entry(int(size), str(sha256)) for name, (size, sha256) in content["files"].items()}
        coming = {
            str(name): [Entry(int(size), str(sha256)) for size, sha256 in entries]
            for name, entries in content["coming"].items()
        }
        index = cls(content["writer"], files, coming, [str(name) for name in content["leaving"]])
        if not all(map(_is_plain, (*files, *coming, *index.leaving))):
            raise ValueError("it names objects that lie elsewhere")
        return index

    def text(self) -> str:
        """As it is stored."""
        return json.dumps({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}, indent=1) + "\n"


class ObjectStore:
    """The objects below one URL, which belongs to one experiment alone; retries, and errors in sentences."""

    def __init__(self, url: str) -> None:
        """Nothing is asked of the store yet."""
        self.url = url.rstrip("/")
        self._files, self._root = self._tried("open", "", lambda: open_client(self.url))

    def read_index(self) -> Index | None:
        """What the store holds; None where it holds nothing."""
        data = self._tried("read", INDEX, lambda: _if_there(lambda: self._files.cat_file(self._path(INDEX))))
        if data is None:
            return None
        try:
            return Index.parse(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.url}/{INDEX} is damaged ({plain(error)}), so it cannot be told what the run has stored; "
                f"{WAY_OUT}"
            ) from error

    def write_index(self, index: Index) -> None:
        """In one step."""
        self.write(INDEX, index.text().encode())

    def write(self, name: str, data: bytes) -> None:
        """An object from memory, in one step."""
        self._tried("write", name, lambda: self._files.pipe_file(self._path(name), data))

    def upload(self, name: str, file: BinaryIO, size: int, after_block: Callable[[], None]) -> str:
        """An object from the first `size` bytes of a file, there whole or not at all; the sha256 of what was sent."""

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
                _throw_away(target)
                if is_begun:
                    # Not the bucket is missing: it has taken a part.
                    raise ConnectionAbortedError("it has forgotten an upload that was begun") from error
                raise
            except BaseException:
                _throw_away(target)
                raise
            return digest.hexdigest()

        return self._tried("write", name, send)

    def download(self, name: str, to: Path, expected: Entry) -> Entry | None:
        """Fetches an object to a file; what it was like, None if it is not there."""
        digest, size = hashlib.sha256(), 0
        with storing(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            with to.open("wb") as file:
                for block in self._blocks(name, expected.size):
                    if block is None:
                        return None
                    digest.update(block)
                    size += file.write(block)
        return Entry(size, digest.hexdigest())

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; one that is not there is no mistake."""
        for name in names:
            self._remove(name)

    def sizes(self) -> dict[str, int]:
        """Every object that is there, the index too."""

        def listed() -> dict[str, int]:
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
            return {path.removeprefix(self._root).lstrip("/"): int(about["size"]) for path, about in found.items()}

        return self._tried("list", "", listed)

    def erase(self) -> int:
        """Removes everything; how many objects that were."""
        count = len(self.sizes())
        if count:
            self._tried("remove", "", lambda: _if_there(lambda: self._files.rm(self._root, recursive=True)))
        return count

    def _blocks(self, name: str, expected_size: int) -> Iterator[bytes | None]:
        """An object in parts; None where it is not there."""
        path = self._path(name)
        if expected_size <= BLOCK:
            # As a whole: no range of an empty object can be had.
            yield self._tried("read", name, lambda: _if_there(lambda: self._files.cat_file(path)))
            return
        about = self._tried("read", name, lambda: _if_there(lambda: self._files.info(path)))
        size = 0 if about is None else int(about["size"])
        if about is None:
            yield None
        for start in range(0, size, BLOCK):
            yield self._part(name, start, min(start + BLOCK, size))

    def _part(self, name: str, start: int, stop: int) -> bytes | None:
        read = self._files.cat_file
        return self._tried("read", name, lambda: _if_there(lambda: read(self._path(name), start=start, end=stop)))

    def _remove(self, name: str) -> None:
        self._tried("remove", name, lambda: _if_there(lambda: self._files.rm_file(self._path(name))))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _tried(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """What the call gives, at the third time at the latest; each library retries the quick way by itself."""
        begin = time.monotonic()
        for attempt in range(TRIES):
            try:
                return call()
            except (SteppeError, MemoryError):
                raise
            except Exception as error:
                trouble = self._trouble(verb, name, error)
                if trouble.is_final or attempt == TRIES - 1 or time.monotonic() - begin > PATIENCE:
                    raise trouble from error
                time.sleep(FIRST_PAUSE * 2**attempt)
        raise AssertionError

    def _trouble(self, verb: str, name: str, error: Exception) -> StoreTrouble:
        cannot = f"cannot {verb} {self.url}/{name}" if name else f"cannot {verb} {self.url}"
        meaning, way_out = meaning_of(error), store_client.way_out(self.url)
        match meaning.kind:
            case "no credentials":
                why = f"there are no credentials for it, or they are not accepted ({meaning.clause}); {way_out.sign_in}"
            case "denied":
                why = f"access is denied ({meaning.clause}); {way_out.rights}"
            case "no bucket":
                why = f"{meaning.clause}; {way_out.bucket}"
            case "passing":
                why = meaning.clause
        return StoreTrouble(f"{cannot}: {why}", meaning.is_final)


def stored_at(results: str, run: str, token: str) -> str:
    """Where an experiment's objects are: never where those of another are, nor of an earlier one of the same name."""
    return f"{results.rstrip('/')}/{run}-{hashlib.sha256(f'results {token}'.encode()).hexdigest()[:12]}"


def blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, or what there is of them."""
    file.seek(0)
    while size > 0 and (block := file.read(min(BLOCK, size))):
        yield block
        size -= len(block)


def _throw_away(target: Any) -> None:
    """Leaves nothing of an object that was begun; what comes of that must not hide why."""
    with contextlib.suppress(Exception):
        target.discard()
    with contextlib.suppress(AttributeError):
        # Else it would be finished when it is forgotten.
        target.closed = True


def _if_there(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except FileNotFoundError:
        return None


def _is_plain(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
