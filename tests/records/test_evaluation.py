"""The statistics of an evaluation against independent computations."""

from __future__ import annotations

import json

import numpy as np
import pytest

from steppe.records.evaluation import Evaluation, bootstrap_interval


def evaluation_of(*returns: float, seed: int = 0) -> Evaluation:
    return Evaluation(returns, (3,) * len(returns), seed, True, "Test-v0", 7)


def test_statistics_are_those_of_the_returns() -> None:
    found = evaluation_of(5.0, 1.0, 9.0, 100.0)
    assert (found.episodes, found.mean, found.min, found.max, found.mean_length) == (4, 28.75, 1.0, 100.0, 3.0)
    # Of the middle half, 5 and 9.
    assert found.iqm == 7.0
    assert found.deviation == pytest.approx(np.sqrt(np.mean([(x - 28.75) ** 2 for x in (5, 1, 9, 100)])))


def test_one_episode_has_all_statistics() -> None:
    found = evaluation_of(2.5)
    assert (found.mean, found.iqm, found.deviation, found.interval) == (2.5, 2.5, 0.0, (2.5, 2.5))


def test_the_interval_is_that_of_the_central_limit_theorem_for_many_returns() -> None:
    returns = np.random.default_rng(1).normal(10.0, 2.0, 4000)
    low, high = bootstrap_interval(returns, seed=0)
    error = 1.96 * returns.std() / np.sqrt(len(returns))
    assert low == pytest.approx(returns.mean() - error, abs=error / 10)
    assert high == pytest.approx(returns.mean() + error, abs=error / 10)


def test_the_interval_follows_from_the_seed() -> None:
    returns = (1.0, 4.0, 4.5, 9.0, 30.0)
    assert evaluation_of(*returns, seed=1).interval == evaluation_of(*returns, seed=1).interval
    assert evaluation_of(*returns, seed=1).interval != evaluation_of(*returns, seed=2).interval


def test_json_has_all_statistics() -> None:
    data = json.loads(json.dumps(evaluation_of(1.0, 2.0).to_json()))
    assert data.pop("interval") == [1.0, 2.0]
    assert data == {
        "environment": "Test-v0",
        "timestep": 7,
        "episodes": 2,
        "seed": 0,
        "greedy": True,
        "mean": 1.5,
        "deviation": 0.5,
        "iqm": 1.5,
        "min": 1.0,
        "max": 2.0,
        "mean_length": 3.0,
        "returns": [1.0, 2.0],
        "lengths": [3, 3],
    }
