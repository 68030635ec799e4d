"""Who works for a learner is counted exactly: numbers, duplicates, and batches that vanished with their worker."""

from __future__ import annotations

from types import SimpleNamespace

from steppe.runners.engines.asynchronous.learner.membership import REMEMBERED, Membership
from steppe.runners.engines.asynchronous.learner.worker_pool import UnmanagedPool


def test_every_worker_has_a_number_of_its_own_and_keeps_it():
    members = Membership()
    assert [members.join(name)[0] for name in "abca"] == [0, 1, 2, 0]
    assert members.next_number == 3


def test_who_vanishes_has_lost_one_batch_until_it_returns():
    members = Membership()
    _, connection = members.join("a")
    members.join("b")
    members.leave("a", connection, vanished=True)
    assert (members.here, members.lost) == (1, 1)
    _, again = members.join("a")
    assert (members.here, members.lost) == (2, 0)
    members.leave("a", again, vanished=False)
    assert (members.here, members.lost) == (1, 0)


def test_what_an_older_connection_says_no_longer_counts():
    members = Membership()
    _, first = members.join("a")
    _, second = members.join("a")
    members.leave("a", first, vanished=True)
    assert (members.here, members.lost) == (1, 0)
    members.leave("a", second, vanished=True)
    members.leave("a", second, vanished=True)
    assert (members.here, members.lost) == (0, 1)


def test_a_batch_that_is_sent_again_counts_once():
    members = Membership()
    members.join("a")
    members.join("b")
    assert [members.claim("a", 1), members.claim("a", 2), members.claim("a", 2)] == [True, True, False]
    assert members.claim("b", 1)
    assert members.batches == 3


def test_counting_goes_on_from_an_earlier_start():
    members = Membership()
    members.resume(7, 2)
    assert (members.join("a")[0], members.lost) == (7, 2)


def test_workers_that_left_long_ago_are_forgotten_and_those_here_are_not():
    members = Membership()
    _, connection = members.join("stays")
    for number in range(REMEMBERED + 5):
        _, own = members.join(f"w{number}")
        members.leave(f"w{number}", own, vanished=False)
    assert len(members._members) <= REMEMBERED + 1
    assert members.here == 1
    assert members.join("stays") == (0, connection + 1)


def test_a_hung_worker_is_told_of_once():
    members = Membership()
    members.join("a")
    members.give_up("a")
    assert members.take_hung() == {"a"}
    assert members.take_hung() == set()


def test_who_has_no_crew_forgets_whoever_hung():
    members, crew = Membership(), UnmanagedPool()
    crew.start(SimpleNamespace(membership=members), None)
    members.join("a")
    members.give_up("a")
    assert crew.supervise() is None
    assert members.take_hung() == set()
