"""Writes a batch into the tables of a ledger: decisions, then rewards, then what the arms learn from both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from steppe.errors import UserError
from steppe.serve.ledger._base import (
    FIRST_FIELD,
    Arms,
    BatchResult,
    Decision,
    JsonLines,
    LedgerBatch,
    NamedRequest,
    Reward,
    RewardOutcome,
    Step,
)
from steppe.serve.ledger.sql_cursor import SqlCursor
from steppe.serve.messages.exchange import NotFound
from steppe.serve.routing.bandits import Arm

_TYPES = {"made": "DOUBLE PRECISION", "propensity": "DOUBLE PRECISION", "is_routed": "BOOLEAN::INTEGER"}
"""The types of columns that do not hold text."""
_STATISTICS = ("chosen", "requests", "count", "mean", "squares", "lowest", "highest")
"""The columns of an arm, which are the fields of `Arm`."""


def write_batch(cursor: SqlCursor, batch: LedgerBatch) -> BatchResult:
    """Writes a batch inside a transaction; of a batch that was written before only the rewards are looked at."""
    if batch.writer and not _is_new(cursor, batch):
        batch = LedgerBatch(rewards=batch.rewards)
    _insert_decisions(cursor, batch)
    arms = read_arms(cursor)
    changed = _count(batch, arms)
    found = _RewardedDecisions(cursor, batch)
    for end in batch.ended:
        if (row := found.rows.get(end.key)) is not None:
            row.end(end.made, end.how)
    outcomes = [_apply(found, reward, cursor.endpoint) for reward in batch.rewards]
    for row in found.rows.values():
        changed.update(row.teach(arms))
    _store(cursor, found, {step: arms[step] for step in changed})
    return BatchResult(outcomes, arms)


def read_arms(cursor: SqlCursor) -> Arms:
    """The current statistics of all arms."""
    rows = cursor.rows(f"SELECT node, branch, {', '.join(_STATISTICS)} FROM steppe_arms WHERE endpoint = ?")
    return {(node, branch): Arm(*rest) for node, branch, *rest in rows}


def _is_new(cursor: SqlCursor, batch: LedgerBatch) -> bool:
    """Marks the batch as written; False if it was written before."""
    statement = (
        "INSERT INTO steppe_writers (endpoint, writer, number) VALUES (?, ?, ?) ON CONFLICT (endpoint, writer) "
        "DO UPDATE SET number = excluded.number WHERE steppe_writers.number < excluded.number"
    )
    return bool(cursor.execute(statement, (cursor.endpoint, batch.writer, batch.number)).rowcount)


def _insert_decisions(cursor: SqlCursor, batch: LedgerBatch) -> None:
    fields = _fields(cursor, Decision)
    # A request without an episode is over as soon as it is answered.
    fields["ended"] = f"CASE WHEN {fields['sequence']} IS NULL THEN {fields['made']} END"
    _insert(cursor, "steppe_decisions", fields, batch.decisions)
    _insert(cursor, "steppe_requests", _fields(cursor, NamedRequest), batch.named)


def _fields(cursor: SqlCursor, record: type[Decision | NamedRequest]) -> dict[str, str]:
    """For each field of a record, which is also a column, how SQL reads it from a line."""
    read = cursor.dialect.field
    return {
        name: read.format(index=FIRST_FIELD + index, type=_TYPES.get(name, "TEXT"))
        for index, name in enumerate(record._fields)
    }


def _insert(cursor: SqlCursor, table: str, fields: dict[str, str], lines: JsonLines) -> None:
    """Inserts rows, which the database itself reads from JSON, many in one statement.

    Rows made in Python, or a statement for each, would take the interpreter from the thread that answers.
    """
    into, values = ", ".join(["endpoint", *fields]), ", ".join(["?", *fields.values()])
    statement = f"INSERT INTO {table} ({into}) SELECT {values} FROM {cursor.dialect.lines}"
    for piece in lines.pieces:
        cursor.execute(statement, (cursor.endpoint, piece))


def _count(batch: LedgerBatch, arms: Arms) -> set[Step]:
    """Counts decisions, requests and shadow answers; returns the steps whose arms changed."""
    changed: set[Step] = set()
    for counts, counter in ((batch.chosen, "chosen"), (batch.requests, "requests")):
        for steps, number in counts.items():
            for step in steps:
                arm = arms.setdefault(step, Arm())
                setattr(arm, counter, getattr(arm, counter) + number)
            changed.update(steps)
    for difference in batch.differences:
        arm = arms.setdefault(difference.step, Arm())
        arm.requests += 1
        if difference.value is not None:
            arm.learn(difference.value)
        changed.add(difference.step)
    return changed


def _apply(found: _RewardedDecisions, reward: Reward, endpoint: str) -> RewardOutcome | UserError:
    """Adds a reward to its decision, unless it was added before."""
    try:
        row = found.decision_of(reward)
    except UserError as error:
        return error
    identity = _identity(reward, row.key)
    applied = identity not in found.identities
    if applied:
        found.identities.add(identity)
        found.new_rewards.append((endpoint, identity, row.key, reward.reward, reward.made, reward.truth))
        row.feedback += 1
        row.total += reward.reward
        row.is_changed = True
    if reward.is_end:
        row.end(reward.made, "ended")
    return RewardOutcome(applied, row.key, row.sequence, row.policy, row.steps, row.total)


def _store(cursor: SqlCursor, found: _RewardedDecisions, arms: Arms) -> None:
    rewards = "(endpoint, identity, key, reward, made, truth) VALUES (?, ?, ?, ?, ?, ?)"
    cursor.execute_many(f"INSERT INTO steppe_rewards {rewards}", found.new_rewards)
    cursor.execute_many(
        "UPDATE steppe_decisions SET feedback = ?, total = ?, learned = ?, ended = ?, ending = ? WHERE number = ?",
        [
            (row.feedback, row.total, row.learned, row.ended, row.ending, row.number)
            for row in found.rows.values()
            if row.is_changed
        ],
    )
    updates = ", ".join(f"{name} = excluded.{name}" for name in _STATISTICS)
    cursor.execute_many(
        f"INSERT INTO steppe_arms (endpoint, node, branch, {', '.join(_STATISTICS)}) "
        f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (endpoint, node, branch) DO UPDATE SET {updates}",
        [(cursor.endpoint, *step, *(getattr(arm, name) for name in _STATISTICS)) for step, arm in arms.items()],
    )


@dataclass(slots=True)
class _DecisionRow:
    """A row of the table of decisions, with its changes."""

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

    def end(self, made: float, how: str) -> None:
        """Ends the episode, if it has not ended before."""
        if self.ended is None:
            self.ended, self.ending, self.is_changed = made, how, True

    def teach(self, arms: Arms) -> tuple[Step, ...]:
        """Lets the arms learn this return once it is over; a late reward corrects what they learned."""
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


class _RewardedDecisions:
    """The decisions that a batch rewards or ends, looked up together."""

    def __init__(self, cursor: SqlCursor, batch: LedgerBatch) -> None:
        self.new_rewards: list[tuple[Any, ...]] = []
        """Rows to insert."""
        rewards = batch.rewards
        requests = [reward.request for reward in rewards if reward.request is not None]
        statement = "SELECT request, key, number FROM steppe_requests WHERE endpoint = ? AND request IN"
        named = sorted(cursor.rows_in(statement, requests), key=lambda row: row[-1])
        # If a sender uses a name again, the newest request wins.
        self._keys = {request: key for request, key, _ in named}
        sequences = [r.sequence for r in rewards if r.sequence is not None and r.request is None and r.key is None]
        statement = "SELECT sequence, MAX(number) FROM steppe_decisions WHERE endpoint = ? AND sequence IN"
        self._numbers: dict[str, int] = dict(cursor.rows_in(statement, sequences, " GROUP BY sequence"))  # type: ignore[arg-type]
        keys = [end.key for end in batch.ended] + [reward.key for reward in rewards if reward.key is not None]
        keys += [key for request in requests for key in self._candidates(request)]
        columns = "number, key, sequence, policy, steps, feedback, total, learned, ended, ending"
        select = f"SELECT {columns} FROM steppe_decisions WHERE endpoint = ? AND"
        every = [*cursor.rows_in(f"{select} key IN", keys)]
        every += cursor.rows_in(f"{select} number IN", self._numbers.values())
        self.rows = {row[1]: _decision_row(row) for row in every}
        self._by_number = {row.number: row for row in self.rows.values()}
        identities = [_identity(reward, row.key) for reward in rewards if (row := self._row_of(reward)) is not None]
        statement = "SELECT identity FROM steppe_rewards WHERE endpoint = ? AND identity IN"
        self.identities = {row[0] for row in cursor.rows_in(statement, identities)}

    def decision_of(self, reward: Reward) -> _DecisionRow:
        """The decision that a reward is for; NotFound if there was none."""
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

    def _row_of(self, reward: Reward) -> _DecisionRow | None:
        if reward.request is not None:
            found = [self.rows[key] for key in self._candidates(reward.request) if key in self.rows]
            # Only later requests of an episode are named KEY.NUMBER after its first.
            return next((row for row in found if row.key != reward.request.rpartition(".")[0] or row.sequence), None)
        if reward.key is not None:
            return self.rows.get(reward.key)
        return self._by_number.get(self._numbers.get(reward.sequence or "", -1))

    def _candidates(self, request: str) -> list[str]:
        """The keys that a request's decision may have: as its sender named it, or as the endpoint did."""
        known = self._keys.get(request)
        return [known] if known is not None else [request, request.rpartition(".")[0]]


def _decision_row(row: tuple[Any, ...]) -> _DecisionRow:
    number, key, sequence, policy, steps, *rest = row
    return _DecisionRow(number, key, sequence, policy, tuple((n, b) for n, b in json.loads(steps)), *rest)


def _identity(reward: Reward, key: str) -> str:
    """The same text for every sending of one reward."""
    if reward.feedback_id is not None:
        return f"feedback {key} {reward.feedback_id}"
    return f"episode {key}" if reward.request is None else f"request {key} {reward.request}"
