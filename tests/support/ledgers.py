"""The rows of a ledger, read past its interface."""

from __future__ import annotations

from typing import Any, NamedTuple


class Contents(NamedTuple):
    """Every row that an endpoint has written."""

    rewards: list[tuple[str, str | None, str]]
    """(decision's key, its episode, end of the reward's identity) of each."""
    decisions: list[tuple[Any, ...]]
    """(key, sequence, feedback, total, learned, ended, policy) of each."""
    arms: Any


def contents(ledger: Any) -> Contents:
    """All rows of a ledger into which nobody writes."""
    ledger.open()
    with ledger._cursor() as cursor:
        rewards = cursor.execute("SELECT key, identity FROM steppe_rewards").fetchall()
        columns = "key, sequence, feedback, total, learned, ended, policy"
        decisions = cursor.execute(f"SELECT {columns} FROM steppe_decisions").fetchall()
    arms = ledger.arms()
    ledger.close()
    sequences = {key: sequence for key, sequence, *_ in decisions}
    return Contents([(key, sequences[key], identity.split()[-1]) for key, identity in rewards], decisions, arms)
