"""The evaluation in status.json, which may have any content."""

from __future__ import annotations

import pytest

from steppe.records.evaluation import Evaluation, FinalEvaluation
from steppe.records.evaluation_score import Score


def test_a_score_is_read_as_a_run_wrote_it() -> None:
    last, best = (
        Evaluation(returns, (3, 3), 0, True, "Test-v0", t) for returns, t in (((1.0, 2.0), 9), ((4.0, 4.0), 5))
    )
    assert Score.read(FinalEvaluation(last, best, "best").to_status()) == Score(4.0, 2, 5, (4.0, 4.0), "best", 1.5, 4.0)
    assert Score.read(FinalEvaluation(last, None, "last").to_status()) == Score(
        1.5, 2, 9, (1.0, 2.0), "last", 1.5, None
    )
    assert Score.read({"mean": 3, "episodes": 10, "timestep": 40}) == Score(3, 10, 40)


@pytest.mark.parametrize(
    "data",
    [None, [], {}, {"mean": "3", "episodes": 1, "timestep": 1}, {"mean": float("nan"), "episodes": 1, "timestep": 1}],
)
def test_invalid_entries_are_no_score(data: object) -> None:
    assert Score.read(data) is None


def test_invalid_details_are_ignored() -> None:
    data = {"mean": 3.0, "episodes": 1, "timestep": 1, "interval": [1], "policy": ["x"], "last": True, "best": 1e999}
    assert Score.read(data) == Score(3.0, 1, 1)
