"""Reports become rows, and each is counted exactly once."""

from __future__ import annotations

import numpy as np
import pytest

from steppe.errors import EnvironmentFault
from steppe.runners._base import ChunkLimits
from steppe.runners.engines.distributed.messages import WorkReport
from steppe.runners.engines.distributed.report_totals import ReportTotals


def report(worker=0, returns=(), **numbers):
    given = {"pushes": 1, "timesteps": 64, "updates": 4, "learned": 1}
    fields = {"returns": list(returns), "lengths": [9] * len(returns), "episodes": len(returns)}
    return WorkReport(worker, **(given | fields | numbers))


def test_all_workers_make_one_row():
    count = ReportTotals()
    count.take_in([report(0, [10.0], metrics={"loss": 1.0}), report(1, [20.0, 30.0], metrics={"loss": 4.0}, learned=2)])
    chunk = count.chunk(ChunkLimits(), workers=2)
    assert chunk.iterations == 1
    row = {name: column[0] for name, column in chunk.columns.items()}
    assert (row["timesteps"], row["episodes"], row["updates"]) == (128, 3, 8)
    assert row["mean_return"] == 20.0
    assert row["loss"] == pytest.approx(3.0)
    assert row["workers"] == 2
    assert count.chunk(ChunkLimits(), 2).iterations == 0


def test_the_number_of_workers_is_reported_even_without_a_row():
    count = ReportTotals()
    assert count.chunk(ChunkLimits(), workers=3).figures == {"workers": 3.0}
    nobody = count.chunk(ChunkLimits(), workers=0)
    assert (nobody.iterations, nobody.figures) == (0, {"workers": 0.0, "updates_per_second": 0.0})


def test_the_window_holds_the_last_hundred_episodes_of_all_workers():
    count = ReportTotals()
    count.take_in([report(0, [0.0] * 80), report(1, [100.0] * 60)])
    assert count.chunk(ChunkLimits(), 2).columns["mean_return"][0] == pytest.approx(60.0)


def test_a_return_counts_only_when_the_window_is_full():
    count, limits = ReportTotals(), ChunkLimits(stop_at_return=50.0)
    count.take_in([report(returns=[500.0] * 99)])
    assert not count.has_reached(limits)
    count.take_in([report(returns=[500.0])])
    assert count.has_reached(limits)
    assert count.chunk(limits, 1).has_reached_return


def test_enough_episodes_end_a_row_early():
    count = ReportTotals()
    count.take_in([report(returns=[1.0] * 7)])
    assert count.has_reached(ChunkLimits(episodes=7))
    assert not count.has_reached(ChunkLimits(episodes=8))


def test_staleness_is_a_mean_and_drops_add_up():
    count = ReportTotals()
    count.take_in([report(staleness=6.0), report(staleness=2.0, dropped=4)])
    assert count.chunk(ChunkLimits(), 2).columns["policy_lag"][0] == 4.0
    count.take_in([report(dropped=3)])
    assert count.chunk(ChunkLimits(), 2).columns["dropped"][0] == 7


def test_divergence_and_faults_are_reported():
    count = ReportTotals()
    count.take_in([report(is_healthy=False)])
    assert count.has_trouble
    assert not count.chunk(ChunkLimits(), 1).is_healthy
    other = ReportTotals()
    other.note_fault(EnvironmentFault("broken"))
    assert str(other.chunk(ChunkLimits(), 1).fault) == "broken"


def test_a_checkpoint_keeps_totals_that_are_in_no_row():
    count, again = ReportTotals(), ReportTotals()
    count.take_in([report(returns=[5.0], dropped=2)])
    again.restore(count.arrays())
    one, other = count.chunk(ChunkLimits(), 1).columns, again.chunk(ChunkLimits(), 1).columns
    for name in ("timesteps", "episodes", "updates", "mean_return", "mean_length", "dropped"):
        np.testing.assert_array_equal(one[name], other[name])
