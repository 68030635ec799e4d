"""Triggers by timesteps, episodes and seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steppe.runners.periodic import PeriodicTrigger
from steppe.specs.running.frequency import Frequency


def every(written, **start):
    return PeriodicTrigger(Frequency.parse(written), **start)


def test_it_is_not_due_at_the_start():
    for written in ("100t", "10e", "5s"):
        assert not every(written).is_due(timestep=0, episode=0, seconds=0.0)


def test_each_unit_looks_at_its_own_measure():
    assert every("100t").is_due(timestep=100, episode=0, seconds=0.0)
    assert not every("100t").is_due(timestep=99, episode=1000, seconds=1000.0)
    assert every("10e").is_due(timestep=0, episode=10, seconds=0.0)
    assert not every("10e").is_due(timestep=1000, episode=9, seconds=1000.0)
    assert every("5s").is_due(timestep=0, episode=0, seconds=5.0)
    assert not every("5s").is_due(timestep=1000, episode=1000, seconds=4.9)


def test_it_is_due_once_for_each_multiple():
    schedule = every("100t")
    due = [t for t in range(0, 501, 10) if schedule.is_due(t, 0, 0.0)]
    assert due == [100, 200, 300, 400, 500]


def test_multiples_that_are_jumped_over_together_are_due_once():
    schedule = every("100t")
    assert schedule.is_due(350, 0, 0.0)
    assert not schedule.is_due(399, 0, 0.0)
    assert schedule.is_due(400, 0, 0.0)


def test_a_resumed_run_keeps_the_rhythm_of_the_first():
    schedule = every("100t", timestep=250)
    assert not schedule.is_due(299, 0, 0.0)
    assert schedule.is_due(300, 0, 0.0)
    schedule = every("100t", timestep=300)
    assert not schedule.is_due(300, 0, 0.0)
    assert every("10e", episode=15).is_due(0, 20, 0.0)
    assert not every("600s", seconds=700.0).is_due(0, 0, 1199.0)


def test_the_timesteps_left_are_known_only_for_timesteps():
    schedule = every("100t", timestep=30)
    assert schedule.timesteps_left(30) == 70
    assert schedule.timesteps_left(99) == 1
    assert schedule.timesteps_left(100) == 0
    assert schedule.timesteps_left(170) == 0
    assert every("10e").timesteps_left(5) is None
    assert every("600s").timesteps_left(5) is None


@given(amount=st.integers(1, 50), steps=st.lists(st.integers(0, 120), max_size=40), start=st.integers(0, 200))
def test_it_is_due_exactly_when_a_multiple_was_passed(amount, steps, start):
    schedule = every(f"{amount}t", timestep=start)
    timestep = start
    for step in steps:
        passed = (timestep + step) // amount > timestep // amount
        timestep += step
        assert schedule.is_due(timestep, 0, 0.0) == passed


@pytest.mark.parametrize("written", ["0.1s", "0.3s", 1])
def test_fractions_of_seconds_keep_coming(written):
    schedule = every(written)
    amount = Frequency.parse(written).amount
    due = sum(schedule.is_due(0, 0, (i + 0.5) * amount / 10) for i in range(1000))
    assert due == 99
