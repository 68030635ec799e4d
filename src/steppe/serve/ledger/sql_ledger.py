"""A ledger in tables, in SQL that SQLite and PostgreSQL both understand: connections, transactions, queries."""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from steppe.errors import UserError
from steppe.serve.ledger._base import (
    Arms,
    BatchResult,
    EpisodeEnd,
    Ledger,
    LedgerAway,
    LedgerBatch,
    LoggedDecision,
    OpenEpisode,
)
from steppe.serve.ledger.sql_batch import read_arms, write_batch
from steppe.serve.ledger.sql_cursor import AT_ONCE, Dialect, SqlCursor
from steppe.serve.ledger.sql_tables import SCHEMA, TABLES

_EPISODE = "key, sequence, policy, version, propensity, steps, is_routed"


class SqlLedger(Ledger):
    """A ledger in tables; a back end says how to connect and which errors mean that the database is away."""

    dialect: Dialect

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._connection: Any = None

    @abstractmethod
    def _connect(self) -> Any:
        """A new connection, without a transaction."""

    @abstractmethod
    def _begin(self, cursor: SqlCursor) -> None:
        """Begins a transaction that no other writer of this endpoint can interrupt."""

    @abstractmethod
    def _away(self, error: Exception) -> LedgerAway | None:
        """The LedgerAway for an error that means that the database is away; None for any other error."""

    def open(self) -> None:
        """Connects, and makes the tables if there are none."""
        with self._cursor() as cursor:
            self._begin(cursor)
            for statement in TABLES:
                cursor.execute(statement.format(number=self.dialect.number, schema=SCHEMA))
            cursor.execute("COMMIT")
            ((schema,),) = cursor.execute("SELECT value FROM steppe_about WHERE name = 'schema'").fetchall()
        if schema != SCHEMA:
            self.close()
            raise UserError(
                f"the ledger has version {schema} of its tables but this Steppe writes version {SCHEMA}; upgrade Steppe"
            )

    def close(self) -> None:
        """Disconnects; the next call connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closing fails if the database is away.
            with contextlib.suppress(Exception):
                connection.close()

    def write(self, batch: LedgerBatch) -> BatchResult:
        """Writes the batch in one transaction."""
        with self._transaction() as cursor:
            return write_batch(cursor, batch)

    def written_by(self, writer: str) -> int:
        """The number of the writer's last batch; 0 if the writer is unknown."""
        with self._cursor() as cursor:
            rows = cursor.rows("SELECT number FROM steppe_writers WHERE endpoint = ? AND writer = ?", writer)
            return rows[0][0] if rows else 0

    def prune(self, before: float, now: float) -> int:
        """Forgets up to a few hundred decisions in one transaction."""
        silent = f"endpoint = ? AND ended IS NULL AND made < ? ORDER BY number LIMIT {AT_ONCE}"
        over = f"endpoint = ? AND ended < ? ORDER BY ended LIMIT {AT_ONCE}"
        with self._transaction() as cursor:
            left = [key for (key,) in cursor.rows(f"SELECT key FROM steppe_decisions WHERE {silent}", before)]
            if left:
                write_batch(cursor, LedgerBatch(ended=[EpisodeEnd(key, now, "expired") for key in left]))
            keys = [key for (key,) in cursor.rows(f"SELECT key FROM steppe_decisions WHERE {over}", before)]
            for table in ("steppe_rewards", "steppe_requests", "steppe_decisions") if keys else ():
                marks = ", ".join("?" * len(keys))
                cursor.execute(f"DELETE FROM {table} WHERE endpoint = ? AND key IN ({marks})", (self.endpoint, *keys))
            return len(left) + len(keys)

    def arms(self) -> Arms:
        """The current statistics of all arms."""
        with self._cursor() as cursor:
            return read_arms(cursor)

    def open_episodes(self, limit: int) -> list[OpenEpisode]:
        """The newest episodes that have not ended, oldest first."""
        where = "endpoint = ? AND ended IS NULL AND sequence IS NOT NULL ORDER BY number DESC LIMIT ?"
        with self._cursor() as cursor:
            rows = cursor.rows(f"SELECT {_EPISODE} FROM steppe_decisions WHERE {where}", limit)
            return [_episode(row) for row in reversed(rows)]

    def find_episode(self, sequence: str) -> OpenEpisode | None:
        """The newest episode of that name, if it has not ended."""
        where = "endpoint = ? AND sequence = ? ORDER BY number DESC LIMIT 1"
        with self._cursor() as cursor:
            rows = cursor.rows(f"SELECT {_EPISODE}, ended FROM steppe_decisions WHERE {where}", sequence)
            return _episode(rows[0][:-1]) if rows and rows[0][-1] is None else None

    def decisions(self) -> Iterator[LoggedDecision]:
        """Every decision ever made, in order."""
        columns = "number, policy, version, propensity, is_routed, ended, feedback, total"
        where = "endpoint = ? AND number > ? ORDER BY number LIMIT 10000"
        last: Any = -1
        while True:
            with self._cursor() as cursor:
                rows = cursor.rows(f"SELECT {columns} FROM steppe_decisions WHERE {where}", last)
            for _, policy, version, propensity, is_routed, ended, feedback, total in rows:
                yield LoggedDecision(policy, version, propensity, bool(is_routed), ended is not None, feedback, total)
            if not rows:
                return
            last = rows[-1][0]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[SqlCursor]:
        """A cursor whose statements take effect together or not at all."""
        with self._cursor() as cursor:
            self._begin(cursor)
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(Exception):
                    cursor.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[SqlCursor]:
        """A cursor; if the database is away, raises LedgerAway and drops the connection."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with contextlib.closing(self._connection.cursor()) as cursor:
                yield SqlCursor(cursor, self.dialect, self.endpoint)
        except Exception as error:
            away = self._away(error)
            if away is None:
                raise
            self.close()
            raise away from error


def _episode(row: tuple[Any, ...]) -> OpenEpisode:
    key, sequence, policy, version, propensity, steps, is_routed = row
    pairs = tuple((node, branch) for node, branch in json.loads(steps))
    return OpenEpisode(key, sequence, policy, version, propensity, pairs, bool(is_routed))
