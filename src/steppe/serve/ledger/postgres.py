"""A ledger in PostgreSQL, which several replicas of an endpoint share."""

from __future__ import annotations

import zlib
from typing import Any
from urllib.parse import urlsplit

from steppe.errors import MissingExtra, UserError
from steppe.serve.ledger._base import LedgerAway
from steppe.serve.ledger.sql_cursor import Dialect, SqlCursor
from steppe.serve.ledger.sql_ledger import SqlLedger


class PostgresLedger(SqlLedger):
    """A ledger in PostgreSQL, by URL."""

    is_shared = True
    dialect = Dialect(
        number="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        mark="%s",
        lines="json_array_elements((convert_from(?, 'UTF8') || ']')::json) AS lines (value)",
        field="(value ->> {index})::{type}",
    )

    def __init__(self, url: str, endpoint: str) -> None:
        super().__init__(endpoint)
        try:
            import psycopg
        except ImportError:
            raise MissingExtra("a ledger in PostgreSQL", "postgres") from None
        self._psycopg = psycopg
        self._url = url
        try:
            psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise UserError(f"the ledger's URL is invalid: {' '.join(str(error).split())}") from None
        # The rest of the URL may contain a password.
        self._shown = urlsplit(url).hostname or "this machine"

    def hold(self, address: str) -> None:
        """Does nothing: any number of replicas write into it."""

    def release(self) -> None:
        """Does nothing: nothing was locked."""

    def _connect(self) -> Any:
        # A database that stopped answering must be noticed within seconds, since rewards wait for it.
        return self._psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=5,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=10_000,
            options="-c statement_timeout=10000 -c lock_timeout=10000 -c synchronous_commit=on",
            application_name="steppe serve",
        )

    def _begin(self, cursor: SqlCursor) -> None:
        cursor.execute("BEGIN")
        # Replicas write one after the other, so nobody changes an arm between its reading and its writing.
        cursor.execute("SELECT pg_advisory_xact_lock(?, ?)", (7_837_706, _signed(zlib.crc32(self.endpoint.encode()))))

    def _away(self, error: Exception) -> LedgerAway | None:
        errors = self._psycopg
        if isinstance(error, (errors.OperationalError, errors.InterfaceError, errors.errors.InsufficientPrivilege)):
            words = " ".join(str(error).split()) or type(error).__name__
            return LedgerAway(f"the ledger in PostgreSQL on {self._shown} cannot be used: {words}")
        return None


def _signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number
