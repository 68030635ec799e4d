"""Tickets and counts are exact, whatever the threads do."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from steppe.errors import EnvironmentFault
from steppe.runners._base import ChunkLimits
from steppe.runners.engines.threads.thread_worker import LearnedBatch
from steppe.runners.engines.threads.work_queue import WorkQueue
from steppe.runners.episode_window import EpisodeWindow


def batch(returns=(), timesteps=10, updates=1, lag=0, metrics=((1.0, 2.0),), counts=(1,), healthy=True):
    return LearnedBatch(
        timesteps,
        list(returns),
        [int(each) for each in returns],
        updates,
        lag,
        [np.array(part) for part in metrics],
        list(counts),
        healthy,
    )


def test_exactly_so_many_tickets_are_handed_out_to_many_threads():
    queue, taken = WorkQueue(1000, 0, ChunkLimits(), EpisodeWindow()), []

    def work():
        while (timestep := queue.take()) is not None:
            taken.append(timestep)
            queue.commit(batch())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chunk = queue.chunk([["loss", "entropy"]], {}, True)
    assert len(taken) == chunk.iterations == 1000
    assert chunk.columns["timesteps"].sum() == 10_000
    assert max(taken) < 10_000


def test_a_ticket_holds_the_number_of_timesteps_before():
    queue = WorkQueue(3, 500, ChunkLimits(), EpisodeWindow())
    assert queue.take() == 500
    queue.commit(batch(timesteps=16))
    assert queue.take() == 516


def test_no_batch_begins_once_enough_episodes_have_ended_but_those_under_way_count():
    queue = WorkQueue(100, 0, ChunkLimits(episodes=3), EpisodeWindow())
    assert [queue.take() for _ in range(3)] == [0, 0, 0]
    queue.commit(batch(returns=[1.0, 2.0]))
    assert queue.take() == 10
    queue.commit(batch(returns=[3.0]))
    assert queue.take() is None
    queue.commit(batch(returns=[5.0]))
    queue.commit(batch())
    assert not queue.has_more
    chunk = queue.chunk([["loss", "entropy"]], {}, True)
    assert chunk.iterations == 4
    assert chunk.columns["episodes"].tolist() == [2, 1, 1, 0]
    assert chunk.columns["mean_return"].tolist() == [1.5, 2.0, 2.75, 2.75]


def test_a_return_counts_as_reached_only_if_it_still_is_when_all_are_quiet():
    window = EpisodeWindow()
    window.record([10.0] * 99, [10] * 99)
    queue = WorkQueue(5, 0, ChunkLimits(stop_at_return=10.0), window)
    queue.take()
    queue.take()
    queue.commit(batch(returns=[10.0]))
    assert queue.take() is None
    queue.commit(batch(returns=[0.0]))
    assert not queue.chunk([["loss", "entropy"]], {}, True).has_reached_return
    assert queue.has_more
    queue.take()
    queue.commit(batch(returns=[30.0]))
    assert queue.chunk([["loss", "entropy"]], {}, True).has_reached_return
    assert queue.take() is None


def test_a_loss_that_is_no_number_ends_the_round():
    queue = WorkQueue(5, 0, ChunkLimits(), EpisodeWindow())
    queue.commit(batch(healthy=False))
    assert queue.take() is None
    assert not queue.chunk([["loss", "entropy"]], {}, True).is_healthy


def test_the_first_error_ends_the_round_and_is_kept():
    queue = WorkQueue(5, 0, ChunkLimits(), EpisodeWindow())
    queue.commit(batch())
    first = EnvironmentFault("the wheel came off")
    queue.fail(first)
    queue.fail(EnvironmentFault("and another"))
    assert queue.take() is None
    chunk = queue.chunk([["loss", "entropy"]], {}, True)
    assert (chunk.fault, chunk.iterations) == (first, 1)


def test_metrics_are_means_over_the_steps_of_each_phase_and_losses_add_up():
    queue = WorkQueue(2, 0, ChunkLimits(), EpisodeWindow())
    queue.commit(batch(updates=3, lag=6, metrics=([2.0, 8.0], [5.0, 7.0]), counts=(2, 1)))
    queue.commit(batch(updates=0, metrics=([0.0, 0.0], 0.0), counts=(0, 0)))
    columns = queue.chunk([["entropy", "loss"], ["loss", "value_loss"]], {"workers": 4.0}, True).columns
    assert columns["entropy"].tolist() == [1.0, 0.0]
    assert columns["value_loss"].tolist() == [7.0, 0.0]
    assert columns["loss"].tolist() == [4.0 + 5.0, 0.0]
    assert columns["policy_lag"].tolist() == [2.0, 0.0]
    assert columns["workers"].tolist() == [4.0, 4.0]


def test_a_round_without_a_batch_has_no_row():
    chunk = WorkQueue(0, 0, ChunkLimits(), EpisodeWindow()).chunk([["loss"]], {"workers": 1.0}, True)
    assert (chunk.iterations, chunk.columns) == (0, {})


def test_the_window_holds_the_last_hundred_episodes():
    window = EpisodeWindow()
    assert math.isnan(window.mean_return)
    window.record([1.0] * 60, [1] * 60)
    assert not window.has_reached(1.0)
    window.record([4.0] * 60, [2] * 60)
    assert window.mean_return == pytest.approx((40 + 240) / 100)
    assert window.has_reached(2.8)
    assert not window.has_reached(2.9)
    assert not window.has_reached(None)
