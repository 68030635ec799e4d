"""Locks a ledger's file for one server; the kernel frees the lock however the server ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

from steppe.errors import StorageError, UserError
from steppe.specs.loading.files import shown_path

MAX_BYTES = 2000


class ServerLock:
    """A lock held from its making until `release`; its file names the holder."""

    def __init__(self, ledger: Path, address: str) -> None:
        """Takes the lock beside a ledger; raises a UserError that names the server which holds it."""
        path = ledger.with_name(f"{ledger.name}.lock")
        try:
            # Mode 0600, since any process that can open the file can hold the lock; O_NOFOLLOW, since others may write
            # to the folder.
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StorageError(f"cannot lock the ledger {shown_path(ledger)}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._descriptor)
            os.close(self._descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StorageError(f"this file system cannot lock files: {error.strerror or error}") from None
            raise UserError(
                f"the ledger {shown_path(ledger)} is in use by {holder}; end that server first, give this one another "
                "--name, or let both share a ledger in PostgreSQL by --database"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"pid": os.getpid(), "address": address}).encode(), 0)

    def release(self) -> None:
        """Frees the lock; the file stays, since another server may be waiting for it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _holder(descriptor: int) -> str:
    """The holder as written in the lock file, which may be incomplete."""
    try:
        data = json.loads(os.pread(descriptor, MAX_BYTES, 0))
        pid, address = int(data["pid"]), str(data["address"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "another server"
    return f"the server at {address} (process {pid})" if address else f"process {pid}"
