from __future__ import annotations

import contextlib

import pytest

from steppe.serve.admission import MAX_CLIENTS, SHORT, Gate, RequestMemory, RequestRefused
from steppe.serve.limits import TrafficLimits


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def gate(**limits):
    clock = Clock()
    return Gate(TrafficLimits(**limits), clock=clock), clock


def test_a_rate_holds_in_the_long_run_with_bursts_of_one_second():
    door, clock = gate(rate=10.0)
    taken = 0
    for _ in range(1000):
        clock.now += 0.01
        with contextlib.suppress(RequestRefused):
            door.enter("x")
            door.leave()
            taken += 1
    assert 100 <= taken <= 111


def test_clients_have_separate_rates():
    door, _ = gate(rate=1.0)
    door.enter("x")
    with pytest.raises(RequestRefused, match="try again in 1 s"):
        door.enter("x")
    door.enter("y")


def test_a_slow_rate_says_how_long_to_wait():
    door, _ = gate(rate=0.1)
    door.enter("x")
    with pytest.raises(RequestRefused, match="10 s") as caught:
        door.enter("x")
    assert caught.value.pause == 10


def test_a_limited_number_of_clients_is_remembered():
    door, _ = gate(rate=1.0)
    for number in range(MAX_CLIENTS + 100):
        door.enter(str(number))
        door.leave()
    assert len(door._rates) == MAX_CLIENTS


def test_finished_requests_make_room():
    door, _ = gate(concurrent=2)
    door.enter("x")
    door.enter("x")
    with pytest.raises(RequestRefused) as caught:
        door.enter("x")
    assert (caught.value.status, caught.value.pause) == (503, 1)
    door.leave()
    door.enter("x")
    assert door.refused == 1


def test_the_bytes_of_all_requests_are_limited():
    door, _ = gate(total_bytes=1000)
    with RequestMemory(door, "x") as first, RequestMemory(door, "y") as second, RequestMemory(door, "z") as third:
        first.grow(SHORT + 300)
        first.grow(SHORT + 500)
        with pytest.raises(RequestRefused) as caught:
            first.grow(SHORT + 501)
        assert (caught.value.status, caught.value.pause) == (503, 1)
        second.grow(SHORT + 450)
        third.grow(SHORT)
        with pytest.raises(RequestRefused):
            third.grow(SHORT + 51)
        third.grow(SHORT + 50)
    assert door._bytes == {}
    with RequestMemory(door, "z") as fourth:
        fourth.grow(SHORT + 500)


@pytest.mark.parametrize("shown", [b"Bearer open-sesame", b"bearer open-sesame ", "Bearer open-sesame", b"open-sesame"])
def test_the_right_token_is_accepted(shown):
    Gate(TrafficLimits(), "open-sesame").check_token(shown)


@pytest.mark.parametrize("shown", [None, b"", b"Bearer ", b"Bearer open-sesam", b"Basic open-sesame", b"\xff"])
def test_wrong_tokens_are_refused(shown):
    with pytest.raises(RequestRefused) as caught:
        Gate(TrafficLimits(), "open-sesame").check_token(shown)
    assert caught.value.status == 401
    assert "open-sesame" not in str(caught.value)
