"""A folder that is held open, to find it again after it or a parent folder was renamed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from steppe.errors import StorageError
from steppe.files.durable import storing


class FolderGone(StorageError):
    """The folder of a run was deleted while the run trained."""


class HeldFolder(os.PathLike[str]):
    """A folder at its current path: `held / "policy"` is a path in the folder that was opened.

    After a rename nothing is written under the old name, even if another folder has that name now.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        with storing(self._path):
            self._descriptor: int | None = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def path(self) -> Path:
        """The current path of the folder; FolderGone if it was deleted."""
        if self._descriptor is None:
            return self._path
        held = os.fstat(self._descriptor)
        if _is_at(held, self._path) is not False:
            return self._path
        found = _path_of(self._descriptor)
        # Some network file systems give a folder a new inode; the old name then still leads to it.
        if found is None or (found != self._path.resolve() and not _is_at(held, found)):
            raise FolderGone(f"the run folder {self._path} was deleted while it trained; nothing more is written")
        if _is_at(held, found):
            self._path = found
        elif not found.is_dir():
            raise FolderGone(f"the run folder {self._path} is no longer there; nothing more is written")
        return self._path

    def is_at(self, path: Path) -> bool:
        """Whether the folder lies at `path` now."""
        return self._descriptor is not None and bool(_is_at(os.fstat(self._descriptor), path))

    def close(self) -> None:
        """Releases the folder; `path` stays at its last path."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self._path)


def _is_at(held: os.stat_result, path: Path) -> bool | None:
    """Whether the folder lies at `path`; None if that cannot be determined."""
    try:
        return os.path.samestat(held, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None


def _path_of(descriptor: int) -> Path | None:
    """The kernel's path of an open folder."""
    try:
        if hasattr(fcntl, "F_GETPATH"):  # macOS
            return Path(os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return None
