"""Reads the rows of a ledger past its interface."""

from __future__ import annotations

from typing import Any, NamedTuple


class Contents(NamedTuple):
    """Every row that an endpoint has written."""

    rewards: list[tuple[str, str | None, str]]
    """(the decision's key, its episode, the reward's identity) of each reward."""
    decisions: list[tuple[Any, ...]]
    """(key, sequence, feedback, total, learned, ended, policy) of each decision."""
    arms: Any


def contents(ledger: Any) -> Contents:
    """The contents of a ledger that no process writes to."""
    ledger.open()
    with ledger._cursor() as cursor:
        rewards = cursor.execute("SELECT key, identity FROM steppe_rewards").fetchall()
        columns = "key, sequence, feedback, total, learned, ended, policy"
        decisions = cursor.execute(f"SELECT {columns} FROM steppe_decisions").fetchall()
    arms = ledger.arms()
    ledger.close()
    sequences = {key: sequence for key, sequence, *_ in decisions}
    return Contents([(key, sequences[key], identity.split()[-1]) for key, identity in rewards], decisions, arms)
