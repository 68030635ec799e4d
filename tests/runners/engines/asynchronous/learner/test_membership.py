"""Exact counts of workers, duplicates, and batches that vanished with their worker."""

from __future__ import annotations

from types import SimpleNamespace

from steppe.runners.engines.asynchronous.learner.membership import REMEMBERED, Membership
from steppe.runners.engines.asynchronous.learner.worker_pool import UnmanagedPool


def test_every_worker_has_a_number_of_its_own_and_keeps_it():
    members = Membership()
    assert [members.join(name)[0] for name in "abca"] == [0, 1, 2, 0]
    assert members.next_number == 3


def test_a_vanished_worker_counts_as_one_lost_batch_until_it_returns():
    members = Membership()
    _, connection = members.join("a")
    members.join("b")
    members.leave("a", connection, vanished=True)
    assert (members.here, members.lost) == (1, 1)
    _, again = members.join("a")
    assert (members.here, members.lost) == (2, 0)
    members.leave("a", again, vanished=False)
    assert (members.here, members.lost) == (1, 0)


def test_messages_about_an_older_connection_are_ignored():
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


def test_counts_continue_from_a_checkpoint():
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


def test_a_hanging_worker_is_reported_once():
    members = Membership()
    members.join("a")
    members.give_up("a")
    assert members.take_hung() == {"a"}
    assert members.take_hung() == set()


def test_an_unmanaged_pool_forgets_hanging_workers():
    members, crew = Membership(), UnmanagedPool()
    crew.start(SimpleNamespace(membership=members), None)
    members.join("a")
    members.give_up("a")
    assert crew.supervise() is None
    assert members.take_hung() == set()
