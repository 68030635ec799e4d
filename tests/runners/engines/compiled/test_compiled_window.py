"""The window of the last episodes against a deque."""

from __future__ import annotations

from collections import deque

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.runners.engines.compiled import compiled_window
from steppe.runners.engines.compiled.compiled_window import empty_window
from steppe.runners.episode_window import WINDOW

record = jax.jit(compiled_window.record)
mean_return, mean_length = jax.jit(compiled_window.mean_return), jax.jit(compiled_window.mean_length)


class Deque:
    """The window in Python."""

    def __init__(self):
        self.returns, self.lengths = deque(maxlen=WINDOW), deque(maxlen=WINDOW)

    def record(self, finished, returns, lengths):
        for t, n in np.ndindex(finished.shape):
            if finished[t, n]:
                self.returns.append(float(returns[t, n]))
                self.lengths.append(int(lengths[t, n]))


def made_up(rng, shape, share):
    """(finished, returns, lengths), each [T, N], with random numbers for unfinished episodes too."""
    finished = rng.random(shape) < share
    returns = np.where(finished, rng.normal(0.0, 100.0, shape), 1e9).astype(np.float32)
    return finished, returns, np.where(finished, rng.integers(1, 500, shape), 10**6).astype(np.int32)


def check(window, expected):
    assert window.filled == len(expected.returns)
    held = np.asarray(window.returns)[: len(expected.returns)]
    # The positions in the ring do not matter, only the episodes in it.
    np.testing.assert_allclose(np.sort(held), np.sort(expected.returns), rtol=1e-6)
    if expected.returns:
        assert mean_return(window).item() == pytest.approx(np.mean(expected.returns), rel=1e-4, abs=1e-2)
        assert mean_length(window).item() == pytest.approx(np.mean(expected.lengths), rel=1e-5)
    else:
        assert np.isnan(mean_return(window))
        assert np.isnan(mean_length(window))


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    calls=st.lists(st.tuples(st.sampled_from([(7, 3), (64, 4), (1, 1)]), st.sampled_from([0.0, 0.1, 0.6, 1.0]))),
    seed=st.integers(0, 1000),
)
def test_the_compiled_window_agrees_with_a_deque(calls, seed):
    rng = np.random.default_rng(seed)
    window, expected = empty_window(), Deque()
    check(window, expected)
    for shape, share in calls:
        block = made_up(rng, shape, share)
        window = record(window, *block)
        expected.record(*block)
        check(window, expected)


@pytest.mark.parametrize("finished_before", [0, 1, 99, 100, 130])
def test_of_more_than_a_windowful_in_one_call_the_last_count(finished_before):
    rng = np.random.default_rng(0)
    window, expected = empty_window(), Deque()
    for block in (made_up(rng, (finished_before, 1), 1.0), made_up(rng, (64, 4), 1.0)):
        if len(block[0]):
            window = record(window, *block)
            expected.record(*block)
    assert window.filled == WINDOW
    check(window, expected)


def test_the_order_is_that_of_time_and_then_of_environments():
    finished = np.ones((60, 2), bool)
    order = np.arange(120, dtype=np.float32).reshape(60, 2)
    window = record(empty_window(), finished, order, order.astype(np.int32))
    np.testing.assert_array_equal(np.sort(window.returns), np.arange(20, 120))
    np.testing.assert_array_equal(window.returns, window.lengths)


def test_a_return_is_reached_only_by_a_full_window():
    finished = np.ones((99, 1), bool)
    window = record(empty_window(), finished, np.full((99, 1), 500.0, np.float32), finished.astype(np.int32))
    assert not compiled_window.has_reached(window, 1.0)
    one = np.ones((1, 1), bool)
    window = record(window, one, np.full((1, 1), 500.0, np.float32), one.astype(np.int32))
    assert compiled_window.has_reached(window, 500.0)
    assert not compiled_window.has_reached(window, 500.1)
    assert not compiled_window.has_reached(window, np.inf)


def test_a_negative_return_can_be_the_one_to_reach():
    finished = np.ones((100, 1), bool)
    window = record(empty_window(), finished, np.full((100, 1), -150.0, np.float32), finished.astype(np.int32))
    assert compiled_window.has_reached(window, -200.0)
    assert not compiled_window.has_reached(window, -100.0)
    assert not compiled_window.has_reached(empty_window(), -100.0)


def test_recording_keeps_the_form_of_the_window():
    window = empty_window()
    after = record(window, *made_up(np.random.default_rng(0), (7, 3), 0.5))
    assert [(leaf.shape, leaf.dtype) for leaf in after] == [(leaf.shape, leaf.dtype) for leaf in window]
