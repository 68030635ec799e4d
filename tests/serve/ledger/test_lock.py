"""A SQLite ledger belongs to one server at a time."""

from __future__ import annotations

import asyncio
import os
import re
import stat

import pytest
from served import ServedProcess, one_policy
from served_graphs import make_endpoint, serving

from steppe.errors import StorageError, UserError
from steppe.serve import load_endpoint
from steppe.serve.ledger import make_ledger
from steppe.serve.ledger.lock import ServerLock
from steppe.serve.server import EndpointServer, ServerConfig
from steppe.specs.serving import GraphSpec

pytest.importorskip("uvicorn", reason="the extra serve is not installed")


def test_a_second_server_is_refused_and_told_who_holds_the_ledger(tmp_path):
    graph = one_policy(tmp_path)
    first = ServedProcess(graph, tmp_path / "state")
    try:
        lock = tmp_path / "state" / "ledger.sqlite.lock"
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        endpoint = load_endpoint(GraphSpec.model_validate(graph), folder=tmp_path / "state")
        with pytest.raises(UserError) as refused:
            EndpointServer(endpoint, ServerConfig(port=0)).run()
        assert re.fullmatch(
            rf"the ledger \S*ledger.sqlite is in use by the server at {first.url} \(process {first.process.pid}\); end "
            "that server first, give this one another --name, or let both share a ledger in PostgreSQL by --database",
            str(refused.value),
        )
        # A report can still be made.
        ledger = make_ledger(tmp_path / "state" / "ledger.sqlite", "pole")
        ledger.open()
        assert list(ledger.decisions()) == []
        ledger.close()
        assert first.infer().status == 200
    finally:
        first.close()
    # The kernel has freed the lock of the killed server.
    second = ServedProcess(graph, tmp_path / "state")
    try:
        assert second.infer().status == 200
    finally:
        second.close()


def test_closing_an_endpoint_frees_the_lock(tmp_path):
    async def twice() -> None:
        for _ in range(2):
            async with serving(tmp_path, {"kind": "model", "policy": "p0"}):
                with pytest.raises(UserError, match=f"is in use by process {os.getpid()}; end that server first"):
                    await make_endpoint(tmp_path, {"kind": "model", "policy": "p0"}).start()

    asyncio.run(twice())


def test_a_link_in_place_of_the_lock_file_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "ledger.sqlite.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="cannot lock the ledger"):
        ServerLock(tmp_path / "ledger.sqlite", "")
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "address": 1}', '{"pid": 1}'])
def test_an_empty_lock_file_means_another_server(tmp_path, text):
    held = ServerLock(tmp_path / "ledger.sqlite", "http://127.0.0.1:8000")
    (tmp_path / "ledger.sqlite.lock").write_text(text)
    with pytest.raises(UserError, match="is in use by another server; end"):
        ServerLock(tmp_path / "ledger.sqlite", "")
    held.release()
