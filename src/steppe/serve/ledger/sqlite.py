"""A ledger in a SQLite file."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from steppe.files.durable import storing
from steppe.serve.ledger._base import LedgerAway
from steppe.serve.ledger.lock import ServerLock
from steppe.serve.ledger.sql_cursor import Dialect, SqlCursor
from steppe.serve.ledger.sql_ledger import SqlLedger


class SqliteLedger(SqlLedger):
    """SQLite with a write-ahead log, so that a report can be made while an endpoint writes."""

    dialect = Dialect(
        number="INTEGER PRIMARY KEY AUTOINCREMENT",
        mark="?",
        lines="json_each(CAST(? AS TEXT) || ']')",
        field="json_extract(value, '$[{index}]')",
    )

    def __init__(self, path: Path | str, endpoint: str) -> None:
        super().__init__(endpoint)
        self.path = Path(path).absolute()
        self._file: tuple[int, int] | None = None
        self._is_made = False
        self._lock: ServerLock | None = None

    def open(self) -> None:
        """Opens the file, and makes it if there is none."""
        with storing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        super().open()
        self._is_made = True

    def hold(self, address: str) -> None:
        """Locks the file: two servers would each count and choose by themselves."""
        if self._lock is None:
            self._lock = ServerLock(self.path, address)

    def release(self) -> None:
        """Unlocks the file; may be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _connect(self) -> Any:
        # A file that has disappeared must not be made anew: its rewards were promised to be kept.
        mode = "rw" if self._is_made else "rwc"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}",
            uri=True,
            timeout=5.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # With a write-ahead log the default could lose a confirmed reward in a power cut.
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
            raise
        self._file = self._identity()
        return connection

    def _begin(self, cursor: SqlCursor) -> None:
        if self._file is None or self._identity() != self._file:
            # Nobody would find what is written into a file that was moved or deleted.
            raise sqlite3.OperationalError("its file was moved or deleted; put it back")
        cursor.execute("BEGIN IMMEDIATE")

    def _away(self, error: Exception) -> LedgerAway | None:
        if isinstance(error, (sqlite3.OperationalError, sqlite3.DatabaseError)) and not isinstance(
            error, (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)
        ):
            return LedgerAway(f"the ledger {self.path} cannot be used: {error}")
        return None

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
