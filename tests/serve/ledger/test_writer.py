"""Databases that go away and come back while an endpoint serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import threading
import time

import pytest
from postgres_server import PostgresServer, missing_postgres
from processes import SECONDS
from served_graphs import question, run, serving

from steppe.errors import MissingExtra, SteppeError
from steppe.serve import Feedback, NotFound, Unavailable
from steppe.serve import endpoint as endpoint_module
from steppe.serve.ledger import make_ledger, writer
from steppe.serve.ledger._base import LedgerAway
from steppe.serve.ledger.sqlite import SqliteLedger

TWO = {"kind": "abtest", "name": "split", "branches": ["p0", "p1"]}


async def until(holds, seconds=SECONDS):
    for _ in range(int(seconds / 0.02)):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came true")


async def away_and_back(endpoint, go, come_back):
    """Answers go on, rewards are refused, and afterwards nothing is missing or counted twice."""
    acknowledged = []
    for _ in range(20):
        answer = endpoint.answer(question())
        await endpoint.feedback(Feedback(1.0, id=answer.id))
        acknowledged.append(answer.id)
    go()
    meanwhile = [endpoint.answer(question(sequence_id=f"m{number}")) for number in range(30)]
    for _ in range(3):
        with pytest.raises(Unavailable, match="rewards are refused until it can"):
            await endpoint.feedback(Feedback(1.0, id=meanwhile[0].id))
    assert endpoint.standing().ledger_problem
    assert endpoint.standing().queued >= 30
    come_back()
    await until(lambda: endpoint.standing().ledger_problem is None)
    for number in range(30):
        assert (await endpoint.feedback(Feedback(2.0, sequence_id=f"m{number}", sequence_end=True))).applied
    for name in acknowledged:
        assert not (await endpoint.feedback(Feedback(1.0, id=name))).applied
    policies = endpoint.standing().policies
    assert sum(policy.feedback for policy in policies) == 50
    assert sum(policy.feedback * (policy.mean_reward or 0.0) for policy in policies) == pytest.approx(80.0)
    assert endpoint.standing().dropped == 0


def test_a_file_that_goes_away_and_comes_back_loses_nothing(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            file, elsewhere = tmp_path / "serving" / "ledger.sqlite", tmp_path / "elsewhere.sqlite"
            await away_and_back(endpoint, lambda: file.rename(elsewhere), lambda: elsewhere.rename(file))

    run(check())


def test_a_database_locked_by_another_process_refuses_rewards_until_it_is_free(tmp_path, monkeypatch):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            endpoint._ledger._connection.execute("PRAGMA busy_timeout = 50")
            other = sqlite3.connect(tmp_path / "serving" / "ledger.sqlite", isolation_level=None)
            # A new connection waits for seconds: right for a report, too long for this test.
            connect = sqlite3.connect
            monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k | {"timeout": 0.05}))
            await away_and_back(endpoint, lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("ROLLBACK"))
            other.close()

    run(check())


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
def test_a_server_that_goes_away_and_comes_back_loses_nothing(tmp_path, how):
    if reason := missing_postgres():
        pytest.skip(reason)

    async def check(server):
        async with serving(tmp_path, TWO, ledger=server.url) as endpoint:
            await away_and_back(endpoint, lambda: server.stop(how), server.start)

    server = PostgresServer()
    try:
        run(check(server))
    finally:
        server.remove()


def test_a_commit_without_confirmation_is_not_counted_twice(tmp_path, monkeypatch):
    write, lost = SqliteLedger.write, []

    def write_and_lose(self, batch):
        written = write(self, batch)
        if batch.chosen and len(lost) < 3:
            lost.append(batch)
            raise LedgerAway("the answer was lost; rewards are refused until it can")
        return written

    async def check():
        monkeypatch.setattr(SqliteLedger, "write", write_and_lose)
        async with serving(tmp_path, TWO) as endpoint:
            for _ in range(60):
                answer = endpoint.answer(question())
                async with asyncio.timeout(SECONDS):
                    while True:
                        with contextlib.suppress(Unavailable):
                            await endpoint.feedback(Feedback(1.0, id=answer.id))
                            break
                        await asyncio.sleep(0.02)
            policies = endpoint.standing().policies
            assert len(lost) == 3
            assert sum(policy.requests for policy in policies) == 60
            assert sum(policy.feedback for policy in policies) == 60
            assert sum(branch.decisions for branch in endpoint.standing().routers[0].branches) == 60
            assert endpoint.standing().dropped == 0

    run(check())


def test_the_ledger_is_written_a_few_times_a_second_under_any_traffic(tmp_path, monkeypatch):
    write, sizes = SqliteLedger.write, []

    def note(self, batch):
        sizes.append(sum(batch.requests.values()))
        return write(self, batch)

    async def check():
        monkeypatch.setattr(SqliteLedger, "write", note)
        async with serving(tmp_path, TWO) as endpoint:
            began, answered = time.monotonic(), 0
            while time.monotonic() < began + 4 * writer.GATHERING_SECONDS:
                endpoint.answer(question())
                answered += 1
                # As between two requests: gives the ledger's thread its turn.
                await asyncio.sleep(1e-4)
            most = (time.monotonic() - began) / writer.GATHERING_SECONDS + 1
            assert 1 <= len(sizes) <= most
            await endpoint.flush()
            assert sum(sizes) == answered

    run(check())


def test_records_from_before_a_round_are_written_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_AT_ONCE", 7)
    monkeypatch.setattr(writer, "GATHERING_SECONDS", 3600.0)

    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            for number in range(100):
                endpoint.answer(question(sequence_id=str(number)))
            # The reward comes after all of them, so it is written after them.
            assert (await endpoint.feedback(Feedback(1.0, sequence_id="99"))).applied
            assert endpoint.standing().queued == 0
            assert len(endpoint._ledger.open_episodes(1000)) == 100

    run(check())


def test_a_silent_server_refuses_rewards_and_delays_no_answer(tmp_path, postgres, monkeypatch):
    monkeypatch.setattr(writer, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(endpoint_module, "SHARING_SECONDS", 0.1)

    async def check():
        async with serving(tmp_path, TWO, name="silent", ledger=postgres.url) as endpoint:
            backend = endpoint._ledger._connection.info.backend_pid
            first = await endpoint.ask(question(sequence_id="a", sequence_start=True))
            os.kill(backend, signal.SIGSTOP)
            try:
                waiting = asyncio.create_task(endpoint.feedback(Feedback(1.0, sequence_id="a")))
                await until(lambda: endpoint.standing().ledger_problem is not None)
                with pytest.raises(Unavailable, match="has not answered for"):
                    await endpoint.feedback(Feedback(1.0, id=first.id))
                answers = [await endpoint.ask(question(sequence_id=f"b{number}")) for number in range(5)]
                assert len(answers) == 5
            finally:
                os.kill(backend, signal.SIGCONT)
            assert (await waiting).applied
            await until(lambda: endpoint.standing().ledger_problem is None)
            assert (await endpoint.feedback(Feedback(1.0, sequence_id="b3"))).applied

    run(check())


def test_the_queue_for_a_lost_ledger_is_bounded_and_dropped_records_are_counted(tmp_path):
    async def check():
        async with serving(tmp_path, TWO, limits={"queue": 100}) as endpoint:
            (tmp_path / "serving" / "ledger.sqlite").rename(tmp_path / "elsewhere.sqlite")
            for number in range(1000):
                endpoint.answer(question(sequence_id=str(number)))
            standing = endpoint.standing()
            assert standing.queued <= 100
            assert standing.dropped >= 900
            (tmp_path / "elsewhere.sqlite").rename(tmp_path / "serving" / "ledger.sqlite")
            await until(lambda: endpoint.standing().queued == 0)

    run(check())


def test_old_decisions_are_forgotten_while_the_endpoint_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint_module, "PRUNE_SECONDS", 0.01)

    async def main():
        async with serving(tmp_path, TWO, limits={"keep_days": 0.1 / 86_400}) as endpoint:
            for _ in range(700):
                answer = endpoint.answer(question())
            assert (await endpoint.feedback(Feedback(1.0, id=answer.id))).applied
            reader = make_ledger(tmp_path / "serving" / "ledger.sqlite", endpoint.name)
            await until(lambda: not list(reader.decisions()))
            reader.close()
            with pytest.raises(NotFound, match="there was no request"):
                await endpoint.feedback(Feedback(1.0, id=answer.id))
            policies = endpoint.standing().policies
            assert sum(policy.requests for policy in policies) == 700
            assert sum(policy.feedback for policy in policies) == 1
            assert endpoint.standing().dropped == 0

    run(main())


def test_pruning_waits_for_a_ledger_that_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint_module, "PRUNE_SECONDS", 0.01)
    file, aside = tmp_path / "serving" / "ledger.sqlite", tmp_path / "aside.sqlite"

    async def main():
        async with serving(tmp_path, TWO, limits={"keep_days": 0.5 / 86_400}) as endpoint:
            answer = endpoint.answer(question())
            await endpoint.feedback(Feedback(1.0, id=answer.id))
            file.rename(aside)
            await until(lambda: endpoint.standing().ledger_problem is not None)
            aside.rename(file)
            reader = make_ledger(file, endpoint.name)
            await until(lambda: not list(reader.decisions()))
            reader.close()
            # On a busy machine all may have been forgotten before the ledger went away.
            await until(lambda: endpoint.standing().ledger_problem is None)

    run(main())


def test_a_reward_that_comes_during_a_failing_write_is_refused_at_once(tmp_path, monkeypatch):
    write, begun, may_fail = SqliteLedger.write, threading.Event(), threading.Event()

    def write_and_fail(self, batch):
        if may_fail.is_set():
            return write(self, batch)
        begun.set()
        assert may_fail.wait(SECONDS)
        raise LedgerAway("away; rewards are refused until it can")

    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            monkeypatch.setattr(SqliteLedger, "write", write_and_fail)
            answer = endpoint.answer(question())
            assert await asyncio.to_thread(begun.wait, SECONDS)
            waiting = asyncio.create_task(endpoint.feedback(Feedback(1.0, id=answer.id)))
            await until(lambda: endpoint.standing().queued == 2)
            may_fail.set()
            # The endpoint itself waits for the ledger much longer, and gives up with another sentence.
            with pytest.raises(Unavailable, match="away; rewards are refused until it can"):
                await waiting
            await until(lambda: endpoint.standing().ledger_problem is None)
            assert (await endpoint.feedback(Feedback(1.0, id=answer.id))).applied

    run(check())


def test_closing_without_a_ledger_ends(tmp_path):
    async def check():
        async with serving(tmp_path, TWO) as endpoint:
            (tmp_path / "serving" / "ledger.sqlite").rename(tmp_path / "elsewhere.sqlite")
            endpoint.answer(question())
            waiting = asyncio.create_task(endpoint.feedback(Feedback(1.0, sequence_id="e")))
            await asyncio.sleep(0)
        with contextlib.suppress(Unavailable):
            await waiting
        assert waiting.done()

    run(check())


def test_a_ledger_that_cannot_be_opened_is_named_at_the_start(tmp_path):
    async def start(place):
        async with serving(tmp_path, TWO, ledger=place):
            pass

    (tmp_path / "file").write_text("")
    with pytest.raises(SteppeError, match="file"):
        run(start(tmp_path / "file" / "ledger.sqlite"))
    (tmp_path / "text.sqlite").write_text("This is no database." * 100)
    with pytest.raises(Unavailable, match="not a database"):
        run(start(tmp_path / "text.sqlite"))
    with pytest.raises(SteppeError, match='cannot be kept in "mysql"'):
        make_ledger("mysql://x", "e")


def test_a_missing_server_is_named_without_its_password(tmp_path):
    pytest.importorskip("psycopg")

    async def start():
        async with serving(tmp_path, TWO, ledger="postgresql://me:secret@127.0.0.1:1/x"):
            pass

    with pytest.raises(Unavailable, match=r"PostgreSQL on 127\.0\.0\.1 cannot be used") as error:
        run(start())
    assert "secret" not in str(error.value)


def test_replicas_share_arms_and_episodes(tmp_path, postgres, monkeypatch):
    monkeypatch.setattr(endpoint_module, "SHARING_SECONDS", SECONDS)
    graph = {"kind": "router", "name": "best", "branches": ["p0", "p1", "p2"]}

    async def check():
        name = {"name": "shared", "ledger": postgres.url}
        async with (
            serving(tmp_path, graph, **name, seed=1) as one,
            serving(tmp_path, graph, **name, seed=2, folder=tmp_path / "two") as two,
        ):
            for number in range(30):
                first = await one.ask(question(sequence_id=f"e{number}", sequence_start=True))
                second = await two.ask(question(sequence_id=f"e{number}"))
                assert (second.route, second.propensity) == (first.route, first.propensity)
                reward = Feedback(float(first.actions[0]), sequence_id=f"e{number}", sequence_end=True)
                receipts = await asyncio.gather(one.feedback(reward), two.feedback(reward))
                assert sorted(receipt.applied for receipt in receipts) == [False, True]
            await until(lambda: one.standing().routers == two.standing().routers)
            (router,) = two.standing().routers
            assert sum(branch.feedback for branch in router.branches) == 30
            assert router.branches[2].is_best

    run(check())


def test_a_reward_may_reach_another_replica_before_the_decision_is_written(tmp_path, postgres, monkeypatch):
    monkeypatch.setattr(endpoint_module, "SHARING_SECONDS", SECONDS)
    graph = {"kind": "router", "name": "best", "branches": ["p0", "p1"]}
    name = {"name": "early", "ledger": postgres.url}

    async def check():
        async with serving(tmp_path, graph, **name) as one, serving(tmp_path, graph, **name) as two:
            for number in range(10):
                answer = await one.ask(question(id=f"mine-{number}" if number % 2 else None))
                assert (await two.feedback(Feedback(1.0, id=answer.id))).applied
            monkeypatch.setattr(endpoint_module, "SHARING_SECONDS", 0.1)
            with pytest.raises(NotFound):
                await two.feedback(Feedback(1.0, id="never-asked"))

    run(check())


def test_a_postgresql_ledger_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r'pip install "steppe\[postgres\]"'):
        make_ledger("postgresql://somewhere/x", "e")
