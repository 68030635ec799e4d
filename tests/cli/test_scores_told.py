"""An evaluation in the summary, in list and show, and in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steppe import runners
from steppe.display.text import closing_line
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.records.evaluation import Evaluation, FinalEvaluation
from steppe.runners import Progress, RunOutcome

LAST = Evaluation((100.0, 140.0), (100, 140), 0, True, "CartPole-v1", 500_000)
BEST = Evaluation((490.0, 500.0), (490, 500), 0, True, "CartPole-v1", 120_000)


@pytest.fixture
def first(steppe: Any, project: Path) -> RunFolder:
    assert steppe("experiment", "new", "-f", "cartpole_ppo", "-n", "first").code == 0
    return RunFolder(project / "experiments" / "first")


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces training by an end with this evaluation."""

    def ends_with(found: FinalEvaluation | None, **progress: Any) -> None:
        def run(spec: Any, folder: Path, *, resume: bool, request: Any, on_progress: Any) -> RunOutcome:
            on_progress(Progress("training", 500_000, 9, 4, 12.5, 11.0, 13.0, **progress))
            return RunOutcome("completed", "done", 500_000, 9, 4, 12.5, 0.5, [], found)

        monkeypatch.setattr(runners, "run", run)
        monkeypatch.setattr(runners, "check", lambda spec, resumed=None: [])

    return ends_with


def test_both_scores_and_the_policy_handed_out_are_shown(steppe: Any, first: RunFolder, evaluated: Any) -> None:
    evaluated(FinalEvaluation(LAST, BEST, "best"))
    lines = [
        "  score        495.0 (evaluation of 2 episodes, 95% interval 490.0 to 500.0)",
        "  policies     last 120.0, best 495.0; policy/ is the best one",
        "  training     12.5 (mean return of the last 9 episodes)",
    ]
    told = steppe("experiment", "start", "-e", "first").out.splitlines()
    assert told[told.index('experiment "first" is completed: done') + 1 :][:3] == lines
    shown = steppe("experiment", "show", "-e", "first").out.splitlines()
    assert [line for line in shown if line in lines] == lines
    assert all(len(line) <= 80 for line in lines)
    heading, row = steppe("experiment", "list").out.splitlines()
    assert heading.split()[-3:] == ["RETURN", "EVALUATION", "AGE"]
    assert row.split()[6:8] == ["12.5", "495.0"]
    (data,) = json.loads(steppe("experiment", "list", "--json").out)
    assert (data["mean_return"], data["evaluation_return"]) == (12.5, 495.0)
    report = (first.path / "report.html").read_text()
    assert "Evaluation, 2 episodes" in report
    assert "95% interval 490 to 500; last policy 120, best 495" in report


def test_one_policy_has_one_score(steppe: Any, first: RunFolder, evaluated: Any) -> None:
    evaluated(FinalEvaluation(LAST, None, "last"))
    out = steppe("experiment", "start", "-e", "first").out
    assert "  score        120.0 (evaluation of 2 episodes, 95% interval 100.0 to 140.0)\n" in out
    assert "policies" not in out


def test_an_evaluation_on_the_way_stands_beside_the_score(steppe: Any, first: RunFolder, evaluated: Any) -> None:
    evaluated(None, evaluation={"mean": 195.7, "episodes": 10, "timestep": 495_000})
    out = steppe("experiment", "start", "-e", "first").out
    assert (
        "  score        195.7 (evaluation of 10 episodes at timestep 495,000)\n"
        "  training     12.5 (mean return of the last 9 episodes)\n"
    ) in out
    assert "Evaluation, 10 episodes" in (first.path / "report.html").read_text()


def test_without_an_evaluation_there_is_no_column_for_it(steppe: Any, first: RunFolder, evaluated: Any) -> None:
    evaluated(None)
    assert "  score        12.5 (mean return" in steppe("experiment", "start", "-e", "first").out
    assert "EVALUATION" not in steppe("experiment", "list").out


def test_an_odd_evaluation_in_a_status_is_passed_over(steppe: Any, first: RunFolder) -> None:
    first.write_status(Status("completed", mean_return=3.0, evaluation={"mean": "x", "interval": 7}))
    heading, row = steppe("experiment", "list").out.splitlines()
    assert ("EVALUATION" in heading, row.split()[1]) == (False, "completed")


def test_the_closing_line_of_a_call_tells_both(first: RunFolder) -> None:
    found = FinalEvaluation(LAST, BEST, "best").to_status()
    status = Status("completed", reason="done", episode=9, mean_return=12.5, evaluation=found, seconds=3.0)
    line = closing_line("first", first.path, status)
    told = "mean return of the last 9 episodes 12.5, of 2 in evaluation 495.0, in 3 s; see experiments/first"
    assert line == f'experiment "first" is completed: done; {told}'
