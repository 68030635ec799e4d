"""The pauses between two attempts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from steppe.net import backoff
from steppe.net.backoff import Backoff


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that were slept; the clock stands still but for them."""
    slept: list[float] = []
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    return slept


def test_pauses_grow_up_to_the_longest(pauses, monkeypatch):
    monkeypatch.setattr(backoff.random, "uniform", lambda low, high: high)
    waiting = Backoff(100.0, first=1.0, longest=5.0)
    assert all(waiting.wait() for _ in range(5))
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_waiting_ends_at_the_deadline(pauses, monkeypatch):
    monkeypatch.setattr(backoff.random, "uniform", lambda low, high: high)
    waiting = Backoff(2.5, first=1.0)
    assert [waiting.wait() for _ in range(3)] == [True, True, False]
    assert pauses == [1.0, 1.5]


def test_no_time_means_no_pause(pauses):
    assert not Backoff(0.0).wait()
    assert pauses == []


def test_pauses_of_two_clients_differ(pauses):
    for waiting in (Backoff(10.0), Backoff(10.0)):
        assert waiting.wait()
    assert pauses[0] != pauses[1]
    assert all(0.05 <= pause <= 0.1 for pause in pauses)
