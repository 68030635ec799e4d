"""Files that survive a crash: written under a temporary name, forced to the disk, then renamed.

A temporary name identifies its writer, `.tmp-<host>-<pid>-<token>-<count>-<name>`, to distinguish leftovers of killed
processes from files that are being written.
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

# A restarted container reuses process ids, so a token identifies this process.
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
    """Write `data` (text as UTF-8) to `path`; a reader, even after a crash, finds all of the old or all of the new."""
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
    """Turn any OSError of the block into a StorageError that names the path, the reason and the way out."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error.errno, error.strerror or str(error)) from error


def storage_error(path: Path, code: int | None, words: str) -> StorageError:
    """The error for a failure to write `path`, from the system's error code and message."""
    return StorageError(f"cannot write {path}: {REASONS.get(code or 0, words)}")


def temporary_name(name: str) -> str:
    """A name for the unfinished `name`, never used before and recognised by `remove_leftovers`."""
    return f".tmp-{socket.gethostname()}-{os.getpid()}-{_TOKEN}-{next(_COUNTER)}-{name}"


def remove_leftovers(folder: Path) -> None:
    """Delete unfinished files in `folder` whose writers are dead."""
    with os.scandir(folder) as entries:
        leftovers = [entry for entry in entries if entry.name.startswith(".tmp-") and _is_leftover(entry)]
    for entry in leftovers:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                Path(entry.path).unlink()


def write_synced(path: Path, data: bytes) -> None:
    """Create `path` with `data`, synced to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file; on a full disk one write is partial and only the next one fails."""
    written = 0
    while written < len(data):
        written += file.write(data[written:])


def sync_folder(folder: Path) -> None:
    """Sync the names in `folder` to the disk, since a power cut may undo a rename otherwise."""
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
        # Processes of another machine cannot be checked, so their files are leftovers after a while.
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
