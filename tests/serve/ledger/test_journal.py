"""Answers given before kill -9 are known afterwards, and count once."""

from __future__ import annotations

import asyncio
import logging
import random
import stat

import orjson
import pytest
from served import ServedProcess, question, router
from served_graphs import question as asked
from served_graphs import serving

from steppe.serve import Feedback
from steppe.serve.ledger import journal as journal_module
from steppe.serve.ledger import make_ledger
from steppe.serve.ledger._base import Decision, EpisodeEnd, NamedRequest, ShadowDifference, batch_of, line_of
from steppe.serve.ledger.journal import Journals

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

GRAPH = {"kind": "router", "name": "best", "branches": ["p0", "p1"]}


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, id="once"), pytest.param(20, id="many times", marks=pytest.mark.faults)]
)
def test_answers_given_before_a_kill_can_be_rewarded_afterwards(tmp_path, rounds):
    rng = random.Random(3)
    graph = router(tmp_path)
    unrewarded: list[dict[str, str]] = []
    answered = 0
    for life in range(rounds + 1):
        served = ServedProcess(graph, tmp_path / "state")
        try:
            for feedback in unrewarded:
                receipt = served.post("/v2/models/pole/feedback", feedback | {"reward": 1.0})
                assert (receipt.status, receipt.json["applied"]) == (200, True), receipt.body
            unrewarded = []
            policies = served.get("/standing").json["endpoint"]["policies"]
            assert sum(policy["requests"] for policy in policies) == answered
            if life == rounds:
                break
            for number in range(rng.randint(5, 40)):
                name = f"{life}-{number}"
                for words, feedback in (
                    ({}, None),
                    ({"id": f"mine-{name}"}, {"id": f"mine-{name}"}),
                    ({"parameters": {"sequence_id": f"episode-{name}"}}, {"sequence_id": f"episode-{name}"}),
                ):
                    answer = served.post("/v2/models/pole/infer", question(**words))
                    assert answer.status == 200
                    answered += 1
                    unrewarded.append(feedback or {"id": answer.json["id"]})
        finally:
            served.close()


def records():
    """One record of each kind: an episode, a named request of it, its end, a single request, a shadow's difference."""
    steps = (("best", "p0"), ("p0", ""))
    return [
        Decision("k1", "e1", 1.5e9, "p0", "7-a", 0.5, steps, True),
        NamedRequest("mine", "k1"),
        steps,
        EpisodeEnd("k1", 1.5e9, "ended"),
        Decision("k2", None, 1.5e9, "p0", "7-a", 0.25, steps, False),
        ShadowDifference(("shadow", "p1"), 0.5),
        ShadowDifference(("shadow", "p1"), None),
    ]


@pytest.fixture
def journals(tmp_path):
    return Journals(tmp_path / "journal", "best", "ledger.sqlite")


@pytest.fixture
def ledger(tmp_path):
    made = make_ledger(tmp_path / "ledger.sqlite", "best")
    made.open()
    yield made
    made.close()


def add(journal, some):
    """Writes records, numbered from 1, into a journal."""
    for number, record in enumerate(some, 1):
        journal.add(number, line_of(number, record, orjson.dumps))


def abandoned(journals, number=0):
    """Leaves a journal of all records as a killed process would; the ledger has the first `number` of them."""
    made = journals.begin("w")
    add(made, records())
    made.close(number)


def test_records_are_read_back_unchanged(journals, tmp_path):
    abandoned(journals)
    (file,) = (tmp_path / "journal").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = [record for _, record in journal_module._lines(file)]
    assert found == records()
    assert [type(record) for record in found] == [type(record) for record in records()]
    assert hash(found[0].steps) == hash(records()[0].steps)


@pytest.mark.parametrize("number", range(8))
def test_each_record_is_written_once_wherever_the_process_was_killed(journals, ledger, tmp_path, number):
    ledger.write(batch_of([*enumerate(records(), 1)][:number], "w"))
    abandoned(journals, number)
    assert journals.replay(ledger) == 7 - number
    arms = ledger.arms()
    assert (arms["p0", ""].chosen, arms["p0", ""].requests) == (2, 3)
    assert (arms["shadow", "p1"].requests, arms["shadow", "p1"].count) == (2, 1)
    assert [(each.policy, each.is_over) for each in ledger.decisions()] == [("p0", True), ("p0", True)]
    assert list((tmp_path / "journal").iterdir()) == []
    assert journals.replay(ledger) == 0


def test_a_line_that_was_cut_off_is_skipped(journals, ledger, tmp_path):
    abandoned(journals)
    (file,) = (tmp_path / "journal").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + b'[3, "nonsense"]\n\xff\xfe\n[[[[\n' + b"".join(lines[3:6]) + lines[6][:9])
    assert journals.replay(ledger) == 5
    assert len(list(ledger.decisions())) == 2


def test_a_damaged_journal_is_set_aside_and_the_endpoint_starts(journals, ledger, tmp_path, caplog):
    made = journals.begin("w")
    add(made, [records()[0]] * 2)
    made.close(0)
    assert journals.replay(ledger) == 0
    assert [file.name for file in (tmp_path / "journal").iterdir()] == ["w-0.journal.refused"]
    assert "cannot be written into the ledger" in caplog.text
    assert journals.replay(ledger) == 0


def test_journals_of_other_endpoints_are_left_alone(journals, ledger, tmp_path):
    abandoned(Journals(tmp_path / "journal", "other", "ledger.sqlite"))
    living = Journals(tmp_path / "journal", "best", "ledger.sqlite").begin("x")
    add(living, records()[:1])
    assert journals.replay(ledger) == 0
    assert len(list((tmp_path / "journal").iterdir())) == 2
    living.close(0)
    assert journals.replay(ledger) == 1


def test_files_are_deleted_once_the_ledger_has_their_records(journals, tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_FILE_BYTES", 500)
    made, folder = journals.begin("w"), tmp_path / "journal"
    add(made, records() * 5)
    assert len(list(folder.iterdir())) > 3
    made.written(30)
    left = sorted(folder.iterdir())
    numbers = [number for file in left for number, _ in journal_module._lines(file)]
    assert set(range(31, 36)) <= set(numbers)
    assert len(left) < 4
    made.close(35)
    assert list(folder.iterdir()) == []


def test_many_files_are_replayed_in_order(journals, ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_FILE_BYTES", 200)
    monkeypatch.setattr(journal_module, "MAX_AT_ONCE", 7)
    made = journals.begin("w")
    add(made, [records()[0]._replace(key=f"k{number}", sequence="again") for number in range(40)])
    made.close(0)
    assert len(list((tmp_path / "journal").iterdir())) > 16
    assert journals.replay(ledger) == 40
    found = ledger.find_episode("again")
    assert found is not None
    assert found.key == "k39"


def test_an_answer_does_not_fail_if_the_journal_cannot_be_written(tmp_path, caplog):
    async def play() -> None:
        async with serving(tmp_path, GRAPH) as endpoint:
            (tmp_path / "serving" / "journal").write_text("in the way")
            for number in range(50):
                endpoint.answer(asked(sequence_id=str(number)))
            assert (await endpoint.feedback(Feedback(1.0, sequence_id="7"))).applied

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert caplog.text.count("answers cannot be kept in") == 1


def test_a_closed_endpoint_leaves_no_journal(tmp_path):
    async def play() -> None:
        async with serving(tmp_path, GRAPH) as endpoint:
            endpoint.answer(asked(sequence_id="a"))
            assert len(list((tmp_path / "serving" / "journal").iterdir())) == 1

    asyncio.run(play())
    assert list((tmp_path / "serving" / "journal").iterdir()) == []
