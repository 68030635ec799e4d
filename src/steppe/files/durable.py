"""Files that survive a crash: written under a temporary name, forced to the disk, then renamed.

A temporary name carries its writer, `.tmp-<host>-<pid>-<token>-<count>-<name>`, so that what a killed process left
behind can be told from what a living one is still writing.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from steppe.errors import StorageError

# Process numbers start again in a restarted container, so the token tells this process from an earlier one like it.
_TOKEN = secrets.token_hex(4)
_COUNTER = itertools.count()
_TEMPORARY = re.compile(r"\.tmp-(?P<host>.+)-(?P<pid>\d+)-(?P<token>[0-9a-f]{8})-\d+-")
_FORGOTTEN_SECONDS = 24 * 3600.0

_FULL = "the disk is full; free some space"
_READ_ONLY = "it may not be written to (read-only disk or missing permission); make it writable"
_GONE = "the folder does not exist; it may have been moved or deleted"
REASONS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    errno.EPERM: _READ_ONLY,
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
}


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Make `path` hold `data` (text as UTF-8): a reader, even after a crash, finds all of the old or all of the new."""
    path = Path(path)
    with storing(path):
        remove_leftovers(path.parent)
        temporary = path.parent / temporary_name(path.name)
        try:
            write_synced(temporary, data.encode() if isinstance(data, str) else data)
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn any OSError of the block into a StorageError that says what could not be written and the way out."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error.errno, error.strerror or str(error)) from error


def storage_error(path: Path, code: int | None, words: str) -> StorageError:
    """The sentence for a failure to write `path`, from the system's error code and its own words."""
    return StorageError(f"cannot write {path}: {REASONS.get(code or 0, words)}")


def temporary_name(name: str) -> str:
    """A name for the unfinished `name`, never used before and recognised by `remove_leftovers`."""
    return f".tmp-{socket.gethostname()}-{os.getpid()}-{_TOKEN}-{next(_COUNTER)}-{name}"


def remove_leftovers(folder: Path) -> None:
    """Delete what writers that are no longer alive left unfinished in `folder`."""
    with os.scandir(folder) as entries:
        leftovers = [entry for entry in entries if entry.name.startswith(".tmp-") and _is_leftover(entry)]
    for entry in leftovers:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                Path(entry.path).unlink()


def write_synced(path: Path, data: bytes) -> None:
    """Create `path` with `data`, on the disk when this returns."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file: a disk that fills up writes a part, and fails only the next time."""
    written = 0
    while written < len(data):
        written += file.write(data[written:])


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` to the disk: without this a rename may be undone by a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_leftover(entry: os.DirEntry[str]) -> bool:
    match = _TEMPORARY.match(entry.name)
    if match is None:
        return False
    if match["host"] != socket.gethostname():
        # Whether another machine's process lives cannot be asked, so only time tells.
        with contextlib.suppress(OSError):
            return time.time() - entry.stat(follow_symlinks=False).st_mtime > _FORGOTTEN_SECONDS
        return False
    if int(match["pid"]) == os.getpid():
        return match["token"] != _TOKEN
    return not _is_alive(int(match["pid"]))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
