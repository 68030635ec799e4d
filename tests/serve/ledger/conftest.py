"""One PostgreSQL server for all tests of ledgers, if it is installed."""

from __future__ import annotations

import pytest
from postgres_server import PostgresServer, missing_postgres


@pytest.fixture(scope="session")
def postgres():
    if reason := missing_postgres():
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()
