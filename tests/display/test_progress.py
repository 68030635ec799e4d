from __future__ import annotations

import dataclasses
import io
import re
from itertools import pairwise

import pytest
from rich.console import Console

from steppe.display import live, progress
from steppe.runners import Progress
from steppe.specs.experiment import ExperimentSpec


def _spec(**fields: object) -> ExperimentSpec:
    return ExperimentSpec.model_validate({"name": "first", "environment": "CartPole-v1", "agent": "ppo"} | fields)


TRAINING = Progress("training", 250_000, 700, 1200, 432.1, 400.0, 451.0, 125_000.0, 2.0)


def _drawn(panel: progress.TrainingPanel) -> str:
    out = Console(file=io.StringIO(), width=100)
    out.print(panel.render())
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_panel_tells_how_far_it_is() -> None:
    panel = progress.TrainingPanel(_spec(total_timesteps=500_000, stop_at_return=475))
    assert "starting" in _drawn(panel)
    panel.update(Progress("compiling"))
    assert "compiling the training program..." in _drawn(panel)
    panel.update(TRAINING)
    text = _drawn(panel)
    for words in ("50%", "250k of 500k timesteps", "432.1 of 475.0", "451.0", "125k", "1,200", "at most 2 s"):
        assert words in text
    panel.announce("pausing")
    assert "pausing" in _drawn(panel)


CREW = {"loss": 0.5, "workers": 4.0, "updates_per_second": 1234.0, "policy_lag": 1.25, "dropped": 3.0}


def test_the_panel_tells_of_the_workers_of_a_parallel_run() -> None:
    panel = progress.TrainingPanel(_spec(total_timesteps=500_000))
    panel.update(dataclasses.replace(TRAINING, metrics=CREW | {"learner_utilisation": 0.871}))
    rows = [line.strip("│ ").split() for line in _drawn(panel).splitlines()]
    assert ["workers", "4", "updates/s", "1.2k"] in rows
    assert ["lag", "1.25", "dropped", "3"] in rows
    assert ["learner", "busy", "87%"] in rows


def test_lines_tell_of_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    lines = progress.TrainingLines(_spec(total_timesteps=500_000))
    lines.update(dataclasses.replace(TRAINING, metrics=CREW))
    assert "125k steps/s, 4 workers, 1.2k updates/s, 1.25 lag, 3 dropped, " in capsys.readouterr().out


def test_a_run_without_workers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines, panel = (
        progress.TrainingLines(_spec(total_timesteps=500_000)),
        progress.TrainingPanel(_spec(total_timesteps=500_000)),
    )
    gone = dataclasses.replace(TRAINING, steps_per_second=0.0, metrics=CREW | {"workers": 0.0})
    lines.update(gone)
    assert "mean return 432.1, 0 workers, " in capsys.readouterr().out
    panel.update(gone)
    assert ["workers", "0", "updates/s", "1.2k"] in [line.strip("│ ").split() for line in _drawn(panel).splitlines()]


def test_episodes_count_where_they_are_the_limit() -> None:
    lines = progress.TrainingLines(_spec(episodes=1000))
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


def test_lines_thin_out_with_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now, printed = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.display(_spec(total_timesteps=500_000)) as shows:
        for second in range(10 * 3600):
            now[0] = float(second)
            shows.update(TRAINING)
            if capsys.readouterr().out:
                printed.append(second)
    gaps = [later - earlier for earlier, later in pairwise(printed)]
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (3, 300)
    assert len(printed) < 200


def test_starting_workers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    spec = _spec(total_timesteps=500_000, run_mode="distributed", num_workers=4)
    lines, panel = progress.TrainingLines(spec), progress.TrainingPanel(spec)
    starting = Progress("training", metrics=CREW | {"workers": 0.0})
    for display in (lines, panel, lines):
        display.update(starting)
    assert capsys.readouterr().out == "starting 4 workers...\n"
    assert "starting 4 workers..." in _drawn(panel)
    for display in (lines, panel):
        display.update(dataclasses.replace(TRAINING, metrics=CREW))
        display.update(dataclasses.replace(TRAINING, metrics=CREW | {"workers": 0.0}))
    assert "starting" not in capsys.readouterr().out + _drawn(panel)


def test_training_survives_a_reader_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = progress.TrainingLines(_spec())
    tried = []

    def gone(*words: object, **__: object) -> None:
        tried.append(words)
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    lines.update(TRAINING)
    assert len(tried) == 1


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.display(_spec(), quiet=True) as shows:
        shows.update(TRAINING)
    assert capsys.readouterr().out == ""


def test_a_speed_that_is_not_known_yet_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    first = Progress("training", 1024, 44, 16, 21.0)
    lines, panel = (
        progress.TrainingLines(_spec(total_timesteps=500_000)),
        progress.TrainingPanel(_spec(total_timesteps=500_000)),
    )
    lines.update(first)
    assert capsys.readouterr().out == "1k of 500k timesteps (0%), mean return 21.0, 0 s\n"
    panel.update(first)
    assert "steps/s - elapsed" in " ".join(_drawn(panel).split())


def test_both_limits_are_shown_where_there_are_two() -> None:
    lines = progress.TrainingLines(_spec(episodes=1000, total_timesteps=500_000))
    lines.update(TRAINING)
    assert (lines.counted(), lines.done()) == ("250k of 500k timesteps, 700 of 1k episodes", 0.7)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("saving", "saving a checkpoint..."),
        ("evaluating", "evaluating the policy..."),
        ("exporting", "exporting the policy..."),
        ("filming", "exporting the policy and filming an episode..."),
        ("training", ""),
    ],
)
def test_slow_phases_are_named(phase: str, words: str) -> None:
    panel = progress.TrainingPanel(_spec())
    panel.update(Progress(phase, 1024))
    assert panel.doing() == words
    assert words in " ".join(_drawn(panel).replace("│", " ").split())


def test_every_notice_stays_in_the_panel() -> None:
    panel = progress.TrainingPanel(_spec())
    panel.update(Progress("compiling", notices=("one",)))
    panel.update(Progress("compiling", notices=("one", "two")))
    drawn = _drawn(panel)
    assert (drawn.count("note: one"), drawn.count("note: two")) == (1, 1)
    assert panel.lasting == set()


def test_a_notice_that_was_printed_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = progress.TrainingLines(_spec())
    for _ in range(2):
        lines.update(Progress("compiling", notices=("one",)))
    assert capsys.readouterr().out.count("note: one\n") == 1
    assert lines.lasting == {"one"}


def test_training_survives_a_ctrl_c_while_a_line_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = progress.TrainingLines(_spec())
    tried = []

    def reentrant(*words: object, **__: object) -> None:
        tried.append(words)
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    monkeypatch.setattr("builtins.print", reentrant)
    lines.announce("pausing")
    assert len(tried) == 1


def _screen(written: str, width: int) -> list[str]:
    """The lines of a terminal after these characters and control codes, without empty ones at its end."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for code, character in re.findall(r"\x1b\[([?0-9;]*[A-Za-z])|([^\x1b])", written.replace("\n", "\r\n")):
        if code == "2K":
            lines[row] = []
        elif code.endswith("A"):
            row -= int(code[:-1])
        elif character == "\r":
            column = 0
        elif character:
            # A terminal goes to the next line when a character has no room, not before.
            if character == "\n" or column == width:
                row, column = row + 1, 0 if column == width else column
                lines += [[]] if row == len(lines) else []
            if character != "\n":
                lines[row] = [*lines[row][:column], *" " * (column - len(lines[row])), character]
                column += 1
    screen = ["".join(line) for line in lines]
    while screen and not screen[-1].strip():
        screen.pop()
    return screen


@pytest.mark.parametrize("keys", ["", "^C", "^C^C"])
def test_nothing_of_the_panel_stays_when_keys_were_pressed(monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    terminal = io.StringIO()
    out = Console(file=terminal, force_terminal=True, width=60, height=20, color_system=None)
    monkeypatch.setattr(live, "console", lambda: out)
    panel = progress.TrainingPanel(_spec(total_timesteps=500_000))
    with panel:
        assert _screen(terminal.getvalue(), 60)[0].startswith("╭─ first: ppo on CartPole-v1")
        terminal.write(keys)
        panel.announce("pausing: saving a checkpoint (Ctrl-C again ends at once)")
    assert _screen(terminal.getvalue(), 60) == []
