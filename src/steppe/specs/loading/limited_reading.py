"""Reads small untrusted files: regular files only, up to a size limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MEGABYTE = 1_000_000


def read_small(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; raises an OSError with the reason for anything else.

    A FIFO, a socket or a device is refused before it is read, since reading it could block for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        seen = os.fstat(descriptor)
        if stat.S_ISDIR(seen.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        data = file.read(limit + 1) if seen.st_size <= limit else b""
    if len(data) > limit or seen.st_size > limit:
        raise OSError(errno.EFBIG, f"it is larger than {_shown(limit)}", str(path))
    return data


def exists(path: Path) -> bool:
    """Whether the path exists; broken links, and paths that may not be examined, count as existing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return True


def _shown(limit: int) -> str:
    return f"{limit / MEGABYTE:g} MB"
