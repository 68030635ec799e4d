"""A ledger in tables, in SQL that SQLite and PostgreSQL both understand."""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from steppe.errors import UserError
from steppe.serve.ledger._base import (
    FIRST_FIELD,
    Arms,
    Batch,
    Decision,
    Ended,
    Ledger,
    LedgerAway,
    Lines,
    Logged,
    Named,
    OpenEpisode,
    Outcome,
    Reward,
    Step,
    Written,
)
from steppe.serve.ledger.layout import SCHEMA, TABLES
from steppe.serve.messages.exchange import NotFound
from steppe.serve.routing.bandits import Arm

_TYPES = {"made": "DOUBLE PRECISION", "propensity": "DOUBLE PRECISION", "is_routed": "BOOLEAN::INTEGER"}
"""The types of columns that do not hold text."""
_EPISODE = "key, sequence, policy, version, propensity, steps, is_routed"
_MANY = 500
"""How many values one statement compares with; SQLite allows no more than 999 in old versions."""


class SqlLedger(Ledger):
    """A ledger in tables; how to connect and what counts as away is the back end's."""

    number: str
    """How a column that counts by itself is declared."""
    mark = "?"
    """What stands for a value in a statement."""
    lines: str
    """A table with each element of a piece of lines in the column `value`."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._connection: Any = None

    @abstractmethod
    def _connect(self) -> Any:
        """A new connection, without a transaction."""

    @abstractmethod
    def _begin(self, cursor: Any) -> None:
        """Begins a transaction that no other writer of this endpoint can interrupt."""

    @abstractmethod
    def _field(self, index: int, sql_type: str) -> str:
        """How SQL reads an element of the JSON array `value` as that type."""

    @abstractmethod
    def _away(self, error: Exception) -> LedgerAway | None:
        """The sentence for an error that means that the database is away; None for any other."""

    def open(self) -> None:
        """Connects, and makes the tables where there are none."""
        with self._answering() as cursor:
            self._begin(cursor)
            for statement in TABLES:
                cursor.execute(statement.format(number=self.number, schema=SCHEMA))
            cursor.execute("COMMIT")
            ((schema,),) = self._rows(cursor, "SELECT value FROM steppe_about WHERE name = 'schema'", ())
        if schema != SCHEMA:
            self.close()
            raise UserError(
                f"the ledger has version {schema} of its tables but this Steppe writes version {SCHEMA}; upgrade Steppe"
            )

    def close(self) -> None:
        """Disconnects; whatever is asked next connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # A database that is away cannot be told goodbye.
            with contextlib.suppress(Exception):
                connection.close()

    def write(self, batch: Batch) -> Written:
        """One transaction."""
        with self._transaction() as cursor:
            return self._write(cursor, batch)

    def written_by(self, writer: str) -> int:
        """The number of the last batch of a writer."""
        statement = "SELECT number FROM steppe_writers WHERE endpoint = ? AND writer = ?"
        with self._answering() as cursor:
            rows = self._rows(cursor, statement, (self.endpoint, writer))
            return rows[0][0] if rows else 0

    def prune(self, before: float, now: float) -> int:
        """One transaction for a few hundred decisions."""
        where = f"endpoint = ? AND ended IS NULL AND made < ? ORDER BY number LIMIT {_MANY}"
        over = f"endpoint = ? AND ended < ? ORDER BY ended LIMIT {_MANY}"
        with self._transaction() as cursor:
            values = (self.endpoint, before)
            left = [row[0] for row in self._rows(cursor, f"SELECT key FROM steppe_decisions WHERE {where}", values)]
            if left:
                self._write(cursor, Batch(ended=[Ended(key, now, "expired") for key in left]))
            keys = [row[0] for row in self._rows(cursor, f"SELECT key FROM steppe_decisions WHERE {over}", values)]
            for table in ("steppe_rewards", "steppe_requests", "steppe_decisions") if keys else ():
                statement = f"DELETE FROM {table} WHERE endpoint = ? AND key IN ({', '.join('?' * len(keys))})"
                cursor.execute(statement.replace("?", self.mark), (self.endpoint, *keys))
            return len(left) + len(keys)

    def arms(self) -> Arms:
        """All arms as they now are."""
        with self._answering() as cursor:
            return self._arms(cursor)

    def open_episodes(self, limit: int) -> list[OpenEpisode]:
        """The newest episodes that have not ended, the oldest first."""
        where = "endpoint = ? AND ended IS NULL AND sequence IS NOT NULL ORDER BY number DESC LIMIT ?"
        with self._answering() as cursor:
            rows = self._rows(cursor, f"SELECT {_EPISODE} FROM steppe_decisions WHERE {where}", (self.endpoint, limit))
            return [_episode(row) for row in reversed(rows)]

    def find_episode(self, sequence: str) -> OpenEpisode | None:
        """The newest episode of that name, if it has not ended."""
        where = "endpoint = ? AND sequence = ? ORDER BY number DESC LIMIT 1"
        statement = f"SELECT {_EPISODE}, ended FROM steppe_decisions WHERE {where}"
        with self._answering() as cursor:
            rows = self._rows(cursor, statement, (self.endpoint, sequence))
            return _episode(rows[0][:-1]) if rows and rows[0][-1] is None else None

    def decisions(self) -> Iterator[Logged]:
        """Everything that was ever decided, in order."""
        columns = "number, policy, version, propensity, is_routed, ended, feedback, total"
        where = "endpoint = ? AND number > ? ORDER BY number LIMIT 10000"
        last: Any = -1
        while True:
            with self._answering() as cursor:
                statement = f"SELECT {columns} FROM steppe_decisions WHERE {where}"
                rows = self._rows(cursor, statement, (self.endpoint, last))
            for _, policy, version, propensity, is_routed, ended, feedback, total in rows:
                yield Logged(policy, version, propensity, bool(is_routed), ended is not None, feedback, total)
            if not rows:
                return
            last = rows[-1][0]

    def endpoints(self) -> list[str]:
        """The names of all endpoints that ever wrote into this database."""
        with self._answering() as cursor:
            return [row[0] for row in self._rows(cursor, "SELECT DISTINCT endpoint FROM steppe_arms ORDER BY 1", ())]

    def _write(self, cursor: Any, batch: Batch) -> Written:
        if self._is_written(cursor, batch):
            batch = Batch(rewards=batch.rewards)
        self._insert_decisions(cursor, batch)
        arms = self._arms(cursor)
        changed: set[Step] = set()
        for steps, number in batch.chosen.items():
            for step in steps:
                arms.setdefault(step, Arm()).chosen += number
                changed.add(step)
        for steps, number in batch.requests.items():
            for step in steps:
                arms.setdefault(step, Arm()).requests += number
                changed.add(step)
        for difference in batch.differences:
            arm = arms.setdefault(difference.step, Arm())
            arm.requests += 1
            if difference.value is not None:
                arm.learn(difference.value)
            changed.add(difference.step)
        found = _Found(self, cursor, batch)
        for ended in batch.ended:
            if (row := found.rows.get(ended.key)) is not None and row.ended is None:
                row.ended, row.ending, row.is_changed = ended.made, ended.how, True
        outcomes = [self._apply(found, reward) for reward in batch.rewards]
        for row in found.rows.values():
            changed.update(row.teach(arms))
        self._store(cursor, found, {step: arms[step] for step in changed})
        return Written(outcomes, arms)

    def _is_written(self, cursor: Any, batch: Batch) -> bool:
        """Whether it was written before; it is from now on."""
        if not batch.writer:
            return False
        statement = (
            "INSERT INTO steppe_writers (endpoint, writer, number) VALUES (?, ?, ?) ON CONFLICT (endpoint, writer) "
            "DO UPDATE SET number = excluded.number WHERE steppe_writers.number < excluded.number"
        )
        cursor.execute(statement.replace("?", self.mark), (self.endpoint, batch.writer, batch.number))
        return cursor.rowcount == 0

    def _insert_decisions(self, cursor: Any, batch: Batch) -> None:
        fields = self._fields(Decision)
        # A request without an episode is over as soon as it is answered.
        fields["ended"] = f"CASE WHEN {fields['sequence']} IS NULL THEN {fields['made']} END"
        self._insert(cursor, "steppe_decisions", fields, batch.decisions)
        self._insert(cursor, "steppe_requests", self._fields(Named), batch.named)

    def _fields(self, record: type[Decision | Named]) -> dict[str, str]:
        """For each field of a record, which is also a column, how SQL reads it from a line."""
        return {
            name: self._field(FIRST_FIELD + index, _TYPES.get(name, "TEXT"))
            for index, name in enumerate(record._fields)
        }

    def _insert(self, cursor: Any, table: str, fields: dict[str, str], lines: Lines) -> None:
        """Puts new rows into a table.

        The database reads the lines by itself, many in one step. Rows made in Python, or a step for each, would take
        the interpreter from the thread that answers, again and again.
        """
        into, values = ", ".join(["endpoint", *fields]), ", ".join(["?", *fields.values()])
        statement = f"INSERT INTO {table} ({into}) SELECT {values} FROM".replace("?", self.mark)
        for piece in lines.pieces:
            cursor.execute(f"{statement} {self.lines}", (self.endpoint, piece))

    def _apply(self, found: _Found, reward: Reward) -> Outcome | UserError:
        """Adds a reward to its decision, unless it was added before."""
        try:
            row = found.decision_of(reward)
        except UserError as error:
            return error
        identity = _identity(reward, row.key)
        applied = identity not in found.identities
        if applied:
            found.identities.add(identity)
            found.rewards.append((self.endpoint, identity, row.key, reward.reward, reward.made, reward.truth))
            row.feedback += 1
            row.total += reward.reward
            row.is_changed = True
        if reward.is_end and row.ended is None:
            row.ended, row.ending, row.is_changed = reward.made, "ended", True
        return Outcome(applied, row.key, row.sequence, row.policy, row.steps, row.total)

    def _store(self, cursor: Any, found: _Found, arms: Arms) -> None:
        rewards = "(endpoint, identity, key, reward, made, truth) VALUES (?, ?, ?, ?, ?, ?)"
        self._all(cursor, f"INSERT INTO steppe_rewards {rewards}", found.rewards)
        values = "feedback = ?, total = ?, learned = ?, ended = ?, ending = ?"
        self._all(
            cursor,
            f"UPDATE steppe_decisions SET {values} WHERE number = ?",
            [row.values() for row in found.rows.values() if row.is_changed],
        )
        names = ("chosen", "requests", "count", "mean", "squares", "lowest", "highest")
        columns, updates = ", ".join(names), ", ".join(f"{name} = excluded.{name}" for name in names)
        self._all(
            cursor,
            f"INSERT INTO steppe_arms (endpoint, node, branch, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (endpoint, node, branch) DO UPDATE SET {updates}",
            [(self.endpoint, *step, *(getattr(arm, name) for name in names)) for step, arm in arms.items()],
        )

    def _arms(self, cursor: Any) -> Arms:
        columns = "node, branch, chosen, requests, count, mean, squares, lowest, highest"
        statement = f"SELECT {columns} FROM steppe_arms WHERE endpoint = ?"
        return {(node, branch): Arm(*rest) for node, branch, *rest in self._rows(cursor, statement, (self.endpoint,))}

    def _rows(self, cursor: Any, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        cursor.execute(statement.replace("?", self.mark), values)
        return cursor.fetchall()

    def _where_in(self, cursor: Any, statement: str, values: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement that ends in `IN`, for any number of values."""
        every = list(dict.fromkeys(values))
        for start in range(0, len(every), _MANY):
            some = every[start : start + _MANY]
            yield from self._rows(cursor, f"{statement} ({', '.join('?' * len(some))})", (self.endpoint, *some))

    def _all(self, cursor: Any, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            cursor.executemany(statement.replace("?", self.mark), rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A cursor for what is written as a whole or not at all."""
        with self._answering() as cursor:
            self._begin(cursor)
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(Exception):
                    cursor.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _answering(self) -> Iterator[Any]:
        """A cursor; where an error means that the database is away, it becomes LedgerAway and the connection ends."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with contextlib.closing(self._connection.cursor()) as cursor:
                yield cursor
        except Exception as error:
            away = self._away(error)
            if away is None:
                raise
            self.close()
            raise away from error


@dataclass(slots=True)
class _Row:
    """A decision as the table has it, and as it will have it."""

    number: int
    key: str
    sequence: str | None
    policy: str
    steps: tuple[Step, ...]
    feedback: int
    total: float
    learned: float | None
    ended: float | None
    ending: str | None
    is_changed: bool = False

    def teach(self, arms: Arms) -> tuple[Step, ...]:
        """Lets the arms learn this return, once it is over; a late reward corrects what they learned."""
        if not self.is_changed or self.ended is None or not self.feedback or self.total == self.learned:
            return ()
        for step in self.steps:
            arm = arms.setdefault(step, Arm())
            if self.learned is None:
                arm.learn(self.total)
            else:
                arm.correct(self.learned, self.total)
        self.learned = self.total
        return self.steps

    def values(self) -> tuple[Any, ...]:
        return (self.feedback, self.total, self.learned, self.ended, self.ending, self.number)


class _Found:
    """The decisions that a batch's rewards and endings speak of, looked up together."""

    def __init__(self, ledger: SqlLedger, cursor: Any, batch: Batch) -> None:
        self.rewards: list[tuple[Any, ...]] = []
        """What is to be inserted."""
        rewards, endpoint = batch.rewards, ledger.endpoint
        requests = [reward.request for reward in rewards if reward.request is not None]
        statement = "SELECT request, key, number FROM steppe_requests WHERE endpoint = ? AND request IN"
        named = sorted(ledger._where_in(cursor, statement, requests), key=lambda row: row[-1])
        # The newest wins, where a sender uses a name again.
        self._keys = {request: key for request, key, _ in named}
        sequences = [r.sequence for r in rewards if r.sequence is not None and r.request is None and r.key is None]
        statement = "SELECT sequence, MAX(number) FROM steppe_decisions WHERE endpoint = ? AND sequence IN"
        self._numbers: dict[str, int] = {}
        for start in range(0, len(sequences), _MANY):
            some = list(dict.fromkeys(sequences[start : start + _MANY]))
            grouped = f"{statement} ({', '.join('?' * len(some))}) GROUP BY sequence"
            self._numbers |= dict(ledger._rows(cursor, grouped, (endpoint, *some)))  # type: ignore[arg-type]
        keys = [ended.key for ended in batch.ended] + [reward.key for reward in rewards if reward.key is not None]
        keys += [key for request in requests for key in self._candidates(request)]
        columns = "number, key, sequence, policy, steps, feedback, total, learned, ended, ending"
        select = f"SELECT {columns} FROM steppe_decisions WHERE endpoint = ? AND"
        every = [*ledger._where_in(cursor, f"{select} key IN", keys)]
        every += ledger._where_in(cursor, f"{select} number IN", self._numbers.values())  # type: ignore[arg-type]
        self.rows = {row[1]: _row(row) for row in every}
        self._by_number = {row.number: row for row in self.rows.values()}
        identities = [_identity(reward, row.key) for reward in rewards if (row := self._row_of(reward)) is not None]
        statement = "SELECT identity FROM steppe_rewards WHERE endpoint = ? AND identity IN"
        self.identities = {row[0] for row in ledger._where_in(cursor, statement, identities)}

    def decision_of(self, reward: Reward) -> _Row:
        """What a reward is for; NotFound where it is for nothing that was decided here."""
        row = self._row_of(reward)
        if row is None and reward.request is not None:
            raise NotFound(f'there was no request "{reward.request}" here; send the id that its answer carried')
        if row is None:
            raise NotFound(
                f'there was no episode "{reward.sequence}" here; send a first question with that sequence_id'
            )
        if reward.request is not None and reward.sequence not in (None, row.sequence):
            raise UserError(
                f'request "{reward.request}" is not part of episode "{reward.sequence}"; send one of the two ids only'
            )
        return row

    def _row_of(self, reward: Reward) -> _Row | None:
        if reward.request is not None:
            found = [self.rows[key] for key in self._candidates(reward.request) if key in self.rows]
            # Only the later requests of an episode are called after its first.
            return next((row for row in found if row.key != reward.request.rpartition(".")[0] or row.sequence), None)
        if reward.key is not None:
            return self.rows.get(reward.key)
        return self._by_number.get(self._numbers.get(reward.sequence or "", -1))

    def _candidates(self, request: str) -> list[str]:
        """The keys a request's decision may have: as its sender named it, or as the endpoint did."""
        known = self._keys.get(request)
        return [known] if known is not None else [request, request.rpartition(".")[0]]


def _identity(reward: Reward, key: str) -> str:
    """What two sendings of the same reward have in common."""
    if reward.feedback_id is not None:
        return f"feedback {key} {reward.feedback_id}"
    return f"episode {key}" if reward.request is None else f"request {key} {reward.request}"


def _row(row: tuple[Any, ...]) -> _Row:
    number, key, sequence, policy, steps, feedback, total, learned, ended, ending = row
    return _Row(number, key, sequence, policy, _steps(steps), feedback, total, learned, ended, ending)


def _episode(row: tuple[Any, ...]) -> OpenEpisode:
    key, sequence, policy, version, propensity, steps, is_routed = row
    return OpenEpisode(key, sequence, policy, version, propensity, _steps(steps), bool(is_routed))


def _steps(text: str) -> tuple[Step, ...]:
    return tuple((node, branch) for node, branch in json.loads(text))
