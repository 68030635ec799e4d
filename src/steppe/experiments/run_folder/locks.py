"""Locks of a run folder: its owner holds `.lock`, which the kernel releases however that process ends.

Other lock files protect what only one process may do at a time, such as fetching results.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path

from steppe.errors import StorageError

LOCK_FILE = ".lock"

_held: set[int] = set()


def acquire(folder: Path, patience: float = 0.0, file: str = LOCK_FILE) -> int | None:
    """A descriptor that holds a lock of the folder, or None if another holds it for all of `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        descriptor = _open(folder / file)
        if _lock(descriptor) and is_still_there(descriptor, folder / file):
            _held.add(descriptor)
            return descriptor
        os.close(descriptor)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.01)


def release(descriptor: int) -> None:
    """Releases the lock."""
    _held.discard(descriptor)
    os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
        except OSError as error:
            # A reader of a read-only folder must also see whether a run is alive.
            if error.errno not in (errno.EROFS, errno.EACCES) or not path.exists():
                raise
            return os.open(path, os.O_RDONLY | flags)
        _restrict(descriptor, path.parent)
    except OSError as error:
        raise StorageError(f"cannot lock {path.parent}: {error.strerror or error}") from error
    return descriptor


def _restrict(descriptor: int, folder: Path) -> None:
    """Gives the lock file the folder's write permissions: a user who can open the file can hold the lock."""
    with contextlib.suppress(OSError):
        found, around = os.fstat(descriptor), folder.stat().st_mode
        group = 0o060 if around & stat.S_IWGRP else 0
        others = 0o006 if around & stat.S_IWOTH else 0
        wanted = 0o600 | group | others
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != wanted:
            os.fchmod(descriptor, wanted)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        os.close(descriptor)
        raise StorageError(f"this file system cannot lock files: {error.strerror or error}") from error
    return True


def is_still_there(descriptor: int, path: Path) -> bool:
    """Whether the opened lock file is still the one at `path`; it, or its folder, may be gone or renamed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _forget_after_fork() -> None:
    # A forked environment process shares the lock; an orphan of a killed run would hold it for ever.
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
