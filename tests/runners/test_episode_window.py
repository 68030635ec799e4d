"""The window of the last 100 episodes, for stop conditions and progress."""

from __future__ import annotations

import math

import pytest

from steppe.runners.episode_window import WINDOW, EpisodeWindow


def test_means_are_nan_before_the_first_episode():
    window = EpisodeWindow()
    window.record([], [])
    assert math.isnan(window.mean_return)
    assert math.isnan(window.mean_length)


def test_only_the_newest_episodes_count():
    window = EpisodeWindow()
    window.record(range(3 * WINDOW), [1] * WINDOW + [2] * 2 * WINDOW)
    assert window.mean_return == pytest.approx(2.5 * WINDOW - 0.5)
    assert window.mean_length == 2.0


def test_a_return_is_reached_only_by_a_full_window():
    window = EpisodeWindow()
    window.record([10.0] * (WINDOW - 1), [1] * (WINDOW - 1))
    assert not window.has_reached(10.0)
    window.record([10.0], [1])
    assert window.has_reached(10.0)
    assert not window.has_reached(10.1)
    assert not window.has_reached(None)
