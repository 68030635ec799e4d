"""The ledger: durable decisions, rewards and arms, with a back end for each database."""

from __future__ import annotations

from pathlib import Path

from steppe.errors import UserError
from steppe.serve.ledger._base import Ledger, LedgerAway

__all__ = ["Ledger", "LedgerAway", "make_ledger"]


def make_ledger(place: str | Path, endpoint: str) -> Ledger:
    """The ledger of an endpoint: in PostgreSQL for a postgresql:// URL, else in the SQLite file of that path."""
    text = str(place)
    if text.startswith(("postgresql://", "postgres://")):
        from steppe.serve.ledger.postgres import PostgresLedger

        return PostgresLedger(text, endpoint)
    if "://" in text and not text.startswith("sqlite://"):
        scheme = text.partition("://")[0]
        raise UserError(f'a ledger cannot be kept in "{scheme}"; give a path, or a URL that begins with postgresql://')
    from steppe.serve.ledger.sqlite import SqliteLedger

    return SqliteLedger(text.removeprefix("sqlite://"), endpoint)
