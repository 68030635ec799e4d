"""The conformance suite of ledgers: every back end passes it."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading

import orjson
import pytest

from steppe.errors import UserError
from steppe.serve.ledger import _base as base
from steppe.serve.ledger import make_ledger
from steppe.serve.ledger._base import (
    Decision,
    EpisodeEnd,
    LedgerAway,
    LedgerBatch,
    NamedRequest,
    Reward,
    ShadowDifference,
    line_of,
)
from steppe.serve.messages.exchange import NotFound

STEPS = (("top", "a"), ("a", ""))
OTHER = (("top", "b"), ("b", ""))
NUMBERS = itertools.count()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return tmp_path / "ledger.sqlite"
    return request.getfixturevalue("postgres").url


@pytest.fixture
def reopen(place):
    """Opens the same ledger again, as after a restart."""
    name, opened = f"endpoint-{next(NUMBERS)}", []

    def open_one():
        ledger = make_ledger(place, name)
        ledger.open()
        opened.append(ledger)
        return ledger

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(reopen):
    return reopen()


def decision(key, sequence=None, steps=STEPS, propensity=0.5):
    return Decision(key, sequence, 1.0, steps[-1][0], "1-abc", propensity, steps, True)


def reward(value, **fields):
    return Reward(value, 2.0, **fields)


def batch_with(writer="", number=0, decisions=(), named=(), **parts):
    batch = LedgerBatch(writer, number, **parts)
    for index, each in enumerate(decisions):
        batch.decide(each, line_of(index, each, orjson.dumps))
    for index, each in enumerate(named):
        batch.named.add(line_of(index, each, orjson.dumps))
    return batch


def write(ledger, **parts):
    return ledger.write(batch_with(**parts))


def test_the_reward_of_a_request_teaches_every_arm_on_its_path_at_once(ledger, reopen):
    written = write(ledger, decisions=[decision("k1")], rewards=[reward(0.9, request="k1")])
    (outcome,) = written.outcomes
    assert outcome == (True, "k1", None, "a", STEPS, 0.9)
    for arms in (written.arms, ledger.arms(), reopen().arms()):
        for step in STEPS:
            assert (arms[step].chosen, arms[step].count, arms[step].mean) == (1, 1, 0.9)


def test_any_finite_reward_is_kept_exactly(ledger):
    values = [0.9, -3.25, 1e-300, 1e100, 0.1 + 0.2]
    keys = [f"k{index}" for index in range(len(values))]
    rewards = [reward(value, request=key) for value, key in zip(values, keys, strict=True)]
    outcomes = write(ledger, decisions=[decision(key) for key in keys], rewards=rewards).outcomes
    assert [outcome.total for outcome in outcomes] == values
    assert [logged.total for logged in ledger.decisions()] == values


def test_a_repeated_reward_counts_once_within_and_across_batches(ledger, reopen):
    again = reward(2.0, request="k1")
    first = write(ledger, decisions=[decision("k1")], rewards=[again, again])
    assert [outcome.applied for outcome in first.outcomes] == [True, False]
    second = write(reopen(), rewards=[again])
    assert [outcome.applied for outcome in second.outcomes] == [False]
    assert second.outcomes[0].total == 2.0
    assert (second.arms["a", ""].count, second.arms["a", ""].mean) == (1, 2.0)


def test_feedback_ids_distinguish_rewards_of_one_request(ledger):
    rewards = [reward(1.0, request="k1", feedback_id=name) for name in ("x", "y", "x")]
    written = write(ledger, decisions=[decision("k1")], rewards=rewards)
    assert [outcome.applied for outcome in written.outcomes] == [True, True, False]
    assert (written.arms["a", ""].count, written.arms["a", ""].mean) == (1, 2.0)


def test_a_feedback_id_may_be_used_again_for_another_episode(ledger):
    episodes = [decision("k1", "e1"), decision("k2", "e2")]
    rewards = [reward(1.0, sequence=name, feedback_id="step 1") for name in ("e1", "e2")]
    assert [outcome.applied for outcome in write(ledger, decisions=episodes, rewards=rewards).outcomes] == [True, True]


def test_an_episode_teaches_its_return_when_it_ends(ledger):
    steps = [reward(1.5, sequence="e", feedback_id=str(index)) for index in range(3)]
    written = write(ledger, decisions=[decision("k", "e")], rewards=steps)
    assert [outcome.total for outcome in written.outcomes] == [1.5, 3.0, 4.5]
    assert written.arms["top", "a"].count == 0
    written = write(ledger, rewards=[reward(0.5, sequence="e", feedback_id="last", is_end=True)])
    assert (written.arms["top", "a"].count, written.arms["top", "a"].mean) == (1, 5.0)


@pytest.mark.parametrize("how", ["ended", "expired"])
def test_an_episode_that_ends_without_a_last_reward_teaches_what_it_had(ledger, how):
    write(ledger, decisions=[decision("k", "e")], rewards=[reward(4.0, sequence="e")])
    arms = write(ledger, ended=[EpisodeEnd("k", 3.0, how)]).arms
    assert (arms["a", ""].count, arms["a", ""].mean) == (1, 4.0)


def test_an_episode_without_rewards_teaches_nothing(ledger):
    arms = write(ledger, decisions=[decision("k", "e")], ended=[EpisodeEnd("k", 3.0, "ended")]).arms
    assert (arms["a", ""].chosen, arms["a", ""].count) == (1, 0)


def test_a_late_reward_corrects_what_was_learned(ledger):
    write(ledger, decisions=[decision("k", "e")], rewards=[reward(4.0, sequence="e", is_end=True)])
    write(ledger, decisions=[decision("k2")], rewards=[reward(10.0, request="k2")])
    arms = write(ledger, rewards=[reward(2.0, sequence="e", feedback_id="late")]).arms
    arm = arms["a", ""]
    assert (arm.count, arm.mean, arm.squares) == (2, 8.0, pytest.approx(8.0))


def test_a_request_is_found_by_its_name_the_newest_first(ledger):
    named = [NamedRequest("mine", "k1"), NamedRequest("mine", "k2")]
    written = write(
        ledger,
        decisions=[decision("k1"), decision("k2", steps=OTHER)],
        named=named,
        rewards=[reward(1.0, request="mine")],
    )
    assert written.outcomes[0].key == "k2"


def test_a_named_request_inside_an_episode_is_found(ledger):
    rewards = [reward(1.0, request="k.5"), reward(1.0, request="k.6", sequence="e"), reward(1.0, request="k.5")]
    written = write(ledger, decisions=[decision("k", "e")], rewards=rewards)
    assert [outcome.applied for outcome in written.outcomes] == [True, True, False]
    assert written.outcomes[1].total == 2.0


def test_an_unknown_decision_is_not_found_and_stops_nothing_else(ledger):
    rewards = [reward(1.0, request="none"), reward(1.0, sequence="none"), reward(1.0, key="none", sequence="none")]
    written = write(ledger, decisions=[decision("k")], rewards=[*rewards, reward(1.0, request="k")])
    assert [type(outcome) for outcome in written.outcomes[:3]] == [NotFound] * 3
    assert '"none"' in str(written.outcomes[0])
    assert written.outcomes[3].applied


def test_a_request_of_another_episode_is_refused(ledger):
    written = write(ledger, decisions=[decision("k", "e")], rewards=[reward(1.0, request="k", sequence="f")])
    assert isinstance(written.outcomes[0], UserError)
    assert "not part of episode" in str(written.outcomes[0])


def test_an_episodes_name_belongs_to_the_newest(ledger):
    write(ledger, decisions=[decision("k1", "e")], ended=[EpisodeEnd("k1", 2.0, "ended")])
    written = write(ledger, decisions=[decision("k2", "e")], rewards=[reward(1.0, sequence="e")])
    assert written.outcomes[0].key == "k2"
    assert ledger.find_episode("e").key == "k2"


def test_open_episodes_are_found_after_a_restart(ledger, reopen):
    write(ledger, decisions=[decision(f"k{index}", f"e{index}", propensity=0.25) for index in range(5)])
    write(ledger, decisions=[decision("single")], ended=[EpisodeEnd("k4", 2.0, "ended")])
    again = reopen()
    assert [episode.sequence for episode in again.open_episodes(3)] == ["e1", "e2", "e3"]
    assert again.find_episode("e0") == ("k0", "e0", "a", "1-abc", 0.25, STEPS, True)
    assert again.find_episode("e4") is None
    assert again.find_episode("none") is None


def test_requests_and_differences_are_counted(ledger):
    differences = [ShadowDifference(("shadow", "c"), 0.5), ShadowDifference(("shadow", "c"), None)]
    arms = write(ledger, requests={STEPS: 3, OTHER: 2}, differences=differences).arms
    assert [arms[step].requests for step in (("top", "a"), ("a", ""), ("b", ""))] == [3, 3, 2]
    assert (arms["shadow", "c"].requests, arms["shadow", "c"].count, arms["shadow", "c"].mean) == (2, 1, 0.5)


def test_all_decisions_can_be_read_in_order(ledger):
    write(ledger, decisions=[decision(f"k{index}", propensity=1 / (index + 1)) for index in range(20)])
    write(ledger, decisions=[decision("e", "e")], rewards=[reward(1.0, request="k3"), reward(1.0, sequence="e")])
    logged = list(ledger.decisions())
    assert [each.propensity for each in logged[:20]] == [1 / (index + 1) for index in range(20)]
    assert [each.feedback for each in logged] == [0, 0, 0, 1] + [0] * 16 + [1]
    assert [each.is_over for each in logged[19:]] == [True, False]


def test_a_batch_may_be_large(ledger):
    number = 1700
    rewards = [reward(1.0, request=f"k{index}") for index in range(number)]
    written = write(ledger, decisions=[decision(f"k{index}") for index in range(number)], rewards=rewards)
    assert sum(outcome.applied for outcome in written.outcomes) == number
    written = write(ledger, rewards=[*rewards, reward(1.0, sequence="none")])
    assert not any(outcome.applied for outcome in written.outcomes[:-1])
    assert written.arms["a", ""].count == number


def test_names_may_contain_any_text(ledger):
    for name in ("", "'; DROP TABLE steppe_arms; --", "naïve — 猫", "a" * 200, "%s ? %(x)s {y}"):
        key = f"key {name}"
        truth = json.dumps({"x": name})
        written = write(ledger, decisions=[decision(key, name)], rewards=[reward(1.0, sequence=name, truth=truth)])
        assert written.outcomes[0].key == key


def test_a_batch_that_fails_leaves_nothing_behind(ledger):
    write(ledger, decisions=[decision("k")])
    with pytest.raises(Exception, match=r"(?i)unique"):
        write(ledger, decisions=[decision("new"), decision("k")], rewards=[reward(1.0, request="k")])
    assert [logged.feedback for logged in ledger.decisions()] == [0]
    assert write(ledger, rewards=[reward(1.0, request="k")]).outcomes[0].applied


def test_endpoints_do_not_see_each_other(ledger, place):
    write(ledger, decisions=[decision("k", "e")], rewards=[reward(1.0, sequence="e", is_end=True)])
    other = make_ledger(place, f"other-{next(NUMBERS)}")
    other.open()
    assert other.arms() == {}
    assert other.find_episode("e") is None
    assert list(other.decisions()) == []
    other.close()


def test_decisions_read_by_several_statements_are_written_unchanged_and_in_order(ledger, monkeypatch):
    monkeypatch.setattr(base, "PIECE_BYTES", 300)
    names = ["plain", 'quo"te', "back\\slash", "comma],[", "Größe", "🎮", "it's", "%s", "?", None] * 3
    made = [
        Decision(f"k{index}", name, 1e9 / (index + 1), "a", "1-abc", 1 / (index + 1), STEPS, bool(index % 2))
        for index, name in enumerate(names)
    ]
    batch = batch_with("me", 1, decisions=made, named=[NamedRequest(f"r{each.key}", each.key) for each in made])
    assert len(batch.decisions.pieces) > 5
    ledger.write(batch)
    columns = "key, sequence, made, policy, version, propensity, steps, is_routed, ended"
    with ledger._cursor() as cursor:
        statement = f"SELECT {columns} FROM steppe_decisions WHERE endpoint = ? ORDER BY number"
        rows = cursor.rows(statement)
        statement = "SELECT request, key FROM steppe_requests WHERE endpoint = ? ORDER BY number"
        requests = cursor.rows(statement)
    assert [row[:6] for row in rows] == [each[:6] for each in made]
    assert [json.loads(row[6]) for row in rows] == [[list(step) for step in STEPS]] * len(made)
    assert [row[7] for row in rows] == [int(each.is_routed) for each in made]
    assert [row[8] for row in rows] == [None if each.sequence else each.made for each in made]
    assert [tuple(row) for row in requests] == [(f"r{each.key}", each.key) for each in made]


def test_two_concurrent_writers_lose_and_repeat_nothing(ledger, reopen):
    """Both write the same rewards, as when a client sends again to another replica."""
    write(ledger, decisions=[decision(f"k{index}") for index in range(60)])
    applied = []

    def send(own):
        for index in range(60):
            while True:
                # A writer that waited too long for the other one tries again, as an endpoint does.
                with contextlib.suppress(LedgerAway):
                    (outcome,) = write(own, requests={STEPS: 1}, rewards=[reward(1.0, request=f"k{index}")]).outcomes
                    break
            applied.append(outcome.applied)

    threads = [threading.Thread(target=send, args=(reopen(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arm = ledger.arms()["a", ""]
    assert (sum(applied), len(applied)) == (60, 120)
    assert (arm.count, arm.mean, arm.requests) == (60, 1.0, 120)


def test_a_batch_that_was_written_without_confirmation_is_not_written_again(ledger):
    batch = batch_with(
        "me", 7, decisions=[decision("k")], requests={STEPS: 3}, differences=[ShadowDifference(("s", "c"), 1.0)]
    )
    ledger.write(batch)
    written = ledger.write(batch)
    assert [arm.chosen for step, arm in written.arms.items() if step in STEPS] == [1, 1]
    assert (written.arms["a", ""].requests, written.arms["s", "c"].count) == (3, 1)
    assert len(list(ledger.decisions())) == 1
    again = ledger.write(LedgerBatch("me", 7, rewards=[reward(1.0, request="k")]))
    assert again.outcomes[0].applied
    assert ledger.write(LedgerBatch("me", 8, requests={STEPS: 1})).arms["a", ""].requests == 4
    assert ledger.write(LedgerBatch("you", 7, requests={STEPS: 1})).arms["a", ""].requests == 5


def rows_of(ledger):
    """The number of rows in each table for this endpoint."""
    with ledger._cursor() as cursor:
        statement = "SELECT COUNT(*) FROM steppe_{} WHERE endpoint = ?"
        tables = ("decisions", "requests", "rewards")
        return tuple(cursor.rows(statement.format(table))[0][0] for table in tables)


def test_prune_forgets_old_decisions_but_not_what_they_taught(ledger, reopen):
    old = [decision("k1"), decision("k2", "e2")]
    new = [decision("k3")._replace(made=50.0), decision("k4", "e4")._replace(made=2.0)]
    named = [NamedRequest("mine", "k1"), NamedRequest("other", "k2"), NamedRequest("newer", "k3")]
    rewards = [
        reward(1.0, request="mine"),
        reward(3.0, sequence="e2", feedback_id="a"),
        reward(4.0, sequence="e2", feedback_id="b", is_end=True),
        reward(6.0, request="k3"),
    ]
    write(ledger, decisions=[*old, *new], named=named, rewards=rewards, ended=[EpisodeEnd("k4", 40.0, "ended")])
    before = ledger.arms()
    assert ledger.prune(30.0, 100.0) == 2
    assert ledger.prune(30.0, 100.0) == 0
    assert rows_of(ledger) == (2, 1, 1)
    assert ledger.arms() == reopen().arms() == before
    late = [reward(9.0, request="mine"), reward(9.0, sequence="e2"), reward(9.0, request="k2"), rewards[-1]]
    written = write(ledger, rewards=late)
    assert [type(outcome) for outcome in written.outcomes[:3]] == [NotFound] * 3
    assert not written.outcomes[3].applied
    assert written.arms == before


def test_prune_ends_an_open_episode_before_it_forgets_it(ledger):
    young = decision("k2", "e2")._replace(made=50.0)
    write(ledger, decisions=[decision("k1", "e1"), young], rewards=[reward(4.0, sequence="e1")])
    assert ledger.prune(30.0, 100.0) == 1
    assert [episode.key for episode in ledger.open_episodes(10)] == ["k2"]
    assert (ledger.arms()["a", ""].count, ledger.arms()["a", ""].mean) == (1, 4.0)
    late = write(ledger, rewards=[reward(2.0, sequence="e1", feedback_id="late")])
    assert (late.outcomes[0].total, late.arms["a", ""].mean) == (6.0, 6.0)
    assert ledger.prune(30.0, 101.0) == 0
    assert rows_of(ledger) == (2, 0, 2)
    assert [ledger.prune(101.0, 200.0), ledger.prune(101.0, 200.0)] == [2, 0]
    assert rows_of(ledger) == (1, 0, 0)


def test_prune_forgets_in_portions_between_which_others_write(ledger, reopen):
    number, goes, other = 1700, 0, reopen()
    rewards = [reward(1.0, request=f"k{index}") for index in range(number)]
    write(ledger, decisions=[decision(f"k{index}") for index in range(number)], rewards=rewards)
    while ledger.prune(30.0, 100.0):
        goes += 1
        write(other, decisions=[decision(f"new{goes}")._replace(made=60.0)])
    assert goes > 2
    assert rows_of(ledger) == (goes, 0, 0)
    assert (other.arms()["a", ""].count, other.arms()["a", ""].chosen) == (number, number + goes)


def test_prune_forgets_nothing_of_another_endpoint(ledger, place):
    other = make_ledger(place, f"other-{next(NUMBERS)}")
    other.open()
    try:
        for each in (ledger, other):
            write(each, decisions=[decision("k")], named=[NamedRequest("r", "k")], rewards=[reward(1.0, request="r")])
        assert ledger.prune(30.0, 100.0) == 1
        assert (rows_of(ledger), rows_of(other)) == ((0, 0, 0), (1, 1, 1))
    finally:
        other.close()


def test_an_invented_request_of_a_known_decision_is_not_found(ledger):
    written = write(ledger, decisions=[decision("k")], rewards=[reward(1.0, request="k.1")])
    assert isinstance(written.outcomes[0], NotFound)


def test_a_ledger_of_a_newer_steppe_is_refused(ledger, reopen):
    with ledger._cursor() as cursor:
        cursor.execute("UPDATE steppe_about SET value = 2")
    try:
        with pytest.raises(UserError, match=r"version 2 of its tables .* upgrade Steppe"):
            reopen()
    finally:
        with ledger._cursor() as cursor:
            cursor.execute("UPDATE steppe_about SET value = 1")
