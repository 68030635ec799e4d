"""The queue before the learner is bounded and fair, and counts dropped batches."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest
from processes import wait_until

from steppe.runners.engines.asynchronous.learner import inbox as inbox_module
from steppe.runners.engines.asynchronous.learner.inbox import Inbox, Over


def later(function, *arguments):
    """Runs a function in a thread, and returns the list for its result or error, and the thread."""
    results: list = []

    def run():
        try:
            results.append(function(*arguments))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return results, thread


def test_batches_come_out_in_the_order_they_came():
    inbox = Inbox(3, 0.0)
    assert [inbox.put(each) for each in "abc"] == [True] * 3
    assert [inbox.take() for _ in range(4)] == ["a", "b", "c", None]


def test_without_patience_batches_for_a_full_inbox_are_dropped_and_counted():
    inbox = Inbox(2, 0.0)
    assert [inbox.put(each) for each in "abcd"] == [True, True, False, False]
    assert (len(inbox), inbox.dropped) == (2, 2)
    assert inbox.take() == "a"
    assert inbox.put("e")
    assert [inbox.take(), inbox.take()] == ["b", "e"]


def test_with_patience_it_waits_in_line_and_moves_up_when_one_is_taken():
    inbox = Inbox(1, 60.0)
    inbox.put("a")
    lines = []
    for number, each in enumerate("bcd"):
        lines.append(later(inbox.put, each))
        wait_until(lambda number=number: len(inbox._line) == number + 1, "it stands in line")
    # All batches are available at once, in order, before any waiting thread wakes up.
    assert [inbox.take() for _ in range(5)] == ["a", "b", "c", "d", None]
    for results, thread in lines:
        thread.join(10)
        assert results == [True]
    assert inbox.dropped == 0


def test_patience_ends():
    inbox = Inbox(1, 0.05)
    inbox.put("a")
    assert inbox.put("b") is False
    assert inbox.dropped == 1
    assert [inbox.take(), inbox.take()] == ["a", None]


def test_closing_wakes_all_waiting_threads():
    inbox = Inbox(1, 60.0)
    inbox.put("a")
    results, thread = later(inbox.put, "b")
    wait_until(lambda: len(inbox._line), "it stands in line")
    inbox.close("all is learned")
    thread.join(10)
    assert isinstance(results[0], Over)
    with pytest.raises(Over, match="all is learned"):
        inbox.put("c")
    assert (inbox.dropped, inbox.left, inbox.waiting) == (0, 2, 1)
    inbox.close("again")
    assert inbox.left == 2


def test_waiting_workers_do_not_time_out_while_the_learner_is_paused():
    inbox = Inbox(1, 0.05)
    inbox.put("a")
    with inbox.paused():
        results, thread = later(inbox.put, "b")
        thread.join(0.5)
        assert (results, inbox.dropped) == ([], 0)
        assert inbox.take() == "a"
        thread.join(10)
    assert results == [True]
    # The timeout continues after the pause: a batch that arrived during it still has its time.
    with inbox.paused():
        results, thread = later(inbox.put, "c")
        thread.join(0.2)
        assert results == []
    thread.join(10)
    assert (results, inbox.dropped) == ([False], 1)


def test_waiting_worker_keeps_its_timeout_while_the_learner_saves(monkeypatch):
    inbox = Inbox(1, 0.05)
    inbox.put("a")
    # The learner pauses, a batch arrives, and no thread runs for 100 s.
    looks = itertools.chain([0.0, 0.0], itertools.repeat(100.0))
    monkeypatch.setattr(inbox_module, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    with inbox.paused():
        results, thread = later(inbox.put, "b")
        thread.join(0.5)
        assert (results, inbox.dropped) == ([], 0)
        inbox.take()
    thread.join(10)
    assert results == [True]


def test_without_patience_a_pause_does_not_make_a_worker_wait():
    inbox = Inbox(1, 0.0)
    inbox.put("a")
    with inbox.paused():
        assert inbox.put("b") is False
    assert inbox.dropped == 1


def test_waiting_ends_with_the_first_batch_or_with_the_time():
    inbox = Inbox(1, 0.0)
    assert inbox.wait(0.0) is False
    results, thread = later(inbox.wait, 60.0)
    inbox.put("a")
    thread.join(10)
    assert results == [True]
