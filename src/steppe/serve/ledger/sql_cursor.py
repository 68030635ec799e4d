"""A database cursor that knows its SQL dialect and whose rows it works on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

AT_ONCE = 500
"""How many values one statement compares with; old versions of SQLite allow no more than 999."""


class Dialect(NamedTuple):
    """The differences between the databases' SQL."""

    number: str
    """The declaration of a column that numbers its rows by itself."""
    mark: str
    """The placeholder of a value in a statement."""
    lines: str
    """A table expression with each element of a JSON array in its column `value`."""
    field: str
    """How an element of the JSON array `value` is read, with {index} and {type}."""


class SqlCursor:
    """Runs statements for one endpoint. Statements are written with `?`, whose first one stands for the endpoint."""

    def __init__(self, cursor: Any, dialect: Dialect, endpoint: str) -> None:
        self.dialect, self.endpoint = dialect, endpoint
        self._cursor = cursor

    def execute(self, statement: str, values: Sequence[Any] | None = None) -> Any:
        """Runs a statement with exactly these values; returns the database's own cursor."""
        if values is None:
            self._cursor.execute(statement)
        else:
            self._cursor.execute(statement.replace("?", self.dialect.mark), values)
        return self._cursor

    def execute_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Runs a statement once for each row of values."""
        if rows:
            self._cursor.executemany(statement.replace("?", self.dialect.mark), rows)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement selects; the endpoint comes before the values."""
        return self.execute(statement, (self.endpoint, *values)).fetchall()

    def rows_in(self, statement: str, values: Iterable[Any], tail: str = "") -> Iterator[tuple[Any, ...]]:
        """The rows of a statement that ends in `IN`, for any number of values; `tail` follows them."""
        every = list(dict.fromkeys(values))
        for start in range(0, len(every), AT_ONCE):
            some = every[start : start + AT_ONCE]
            yield from self.rows(f"{statement} ({', '.join('?' * len(some))}){tail}", *some)
