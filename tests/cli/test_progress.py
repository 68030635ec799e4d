from __future__ import annotations

import io

import pytest
from rich.console import Console

from steppe.cli import progress
from steppe.runners import Progress
from steppe.specs.experiment import ExperimentSpec


def _spec(**fields: object) -> ExperimentSpec:
    return ExperimentSpec.model_validate({"name": "first", "environment": "CartPole-v1", "agent": "ppo"} | fields)


TRAINING = Progress("training", 250_000, 700, 1200, 432.1, 400.0, 451.0, 125_000.0, 2.0)


def _drawn(panel: progress.Panel) -> str:
    out = Console(file=io.StringIO(), width=100)
    out.print(panel.render())
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_panel_tells_how_far_it_is() -> None:
    panel = progress.Panel(_spec(total_timesteps=500_000, stop_at_return=475))
    assert "starting" in _drawn(panel)
    panel.update(Progress("compiling"))
    assert "compiling the training program..." in _drawn(panel)
    panel.update(TRAINING)
    text = _drawn(panel)
    for words in ("50%", "250k of 500k timesteps", "432.1 of 475.0", "451.0", "125k", "1,200", "at most 2 s"):
        assert words in text
    panel.announce("pausing")
    assert "pausing" in _drawn(panel)


def test_episodes_count_where_they_are_the_limit() -> None:
    lines = progress.Lines(_spec(episodes=1000))
    lines.update(TRAINING)
    assert lines.counted() == "700 of 1k episodes"
    assert lines.done() == 0.7


def test_lines_are_few_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.display(_spec(total_timesteps=500_000)) as shows:
        shows.update(Progress("compiling"))
        shows.update(Progress("compiling"))
        for second in range(5):
            now[0] = float(second)
            shows.update(TRAINING)
    assert capsys.readouterr().out.splitlines() == [
        "first: ppo on CartPole-v1",
        "compiling the training program...",
        "250k of 500k timesteps (50%), mean return 432.1, 125k steps/s, 0 s",
        "250k of 500k timesteps (50%), mean return 432.1, 125k steps/s, 3 s",
    ]


def test_training_survives_a_reader_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = progress.Lines(_spec())

    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    lines.update(TRAINING)


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.display(_spec(), quiet=True) as shows:
        shows.update(TRAINING)
    assert capsys.readouterr().out == ""
