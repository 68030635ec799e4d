from __future__ import annotations

import pytest
from rich.console import Console

from steppe.display import live
from steppe.display.play_progress import PlayDisplay, PlayLines, PlayPanel, display, latency, route_table
from steppe.serve.play.route_scores import PlayScores, ScoredEpisode


@pytest.fixture
def played() -> PlayScores:
    scores = PlayScores(4)
    for route, score in (("router=0", 12.0), ("router=1", 500.0), ("router=1", 400.0)):
        scores.add(ScoredEpisode(0, score, int(score), route, f"p{route[-1]}", "7", 0.5, (0.0012,)))
    return scores


def text_of(renderable: object, width: int = 160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(renderable)
        return console.export_text()


def test_the_table_has_a_row_for_each_route(played: PlayScores) -> None:
    lines = text_of(route_table(played)).splitlines()
    assert lines[1].split() == ["router=0", "p0", "7", "1", "33%", "12.0", "12.0", "12.0"]
    assert lines[2].split() == ["router=1", "p1", "7", "2", "67%", "450.0", "450.0", "500.0"]


def test_a_pipe_gets_a_line_now_and_then(
    played: PlayScores, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1000, 100))
    monkeypatch.setattr(live.time, "monotonic", lambda: next(now))
    with PlayLines("CartPole-v1 through http://x") as lines:
        lines.update(PlayScores(4))
        lines.update(played)
        lines.announce("it is away")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "playing CartPole-v1 through http://x"
    assert second.startswith("3 of 4 episodes, mean return 304.0, ")
    assert second.endswith(": router=0 12.0 (1), router=1 450.0 (2)")
    assert "answers in 1.2 ms" in second
    assert third == "note: it is away"


def test_a_terminal_gets_a_panel_with_the_last_notes(played: PlayScores) -> None:
    panel = PlayPanel("CartPole-v1")
    assert "waiting for the first answer" in text_of(panel.render())
    panel.update(played)
    for number in range(5):
        panel.announce(f"note {number}")
    text = text_of(panel.render())
    assert "3 of 4 episodes" in text
    assert "router=1" in text
    assert "note 4" in text
    assert "note 1" not in text


def test_quiet_shows_only_announcements(played: PlayScores, capsys: pytest.CaptureFixture[str]) -> None:
    with display("x", quiet=True) as shows:
        assert type(shows) is PlayDisplay
        shows.update(played)
        shows.announce("it is away")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "note: it is away\n")


def test_latencies_have_a_unit() -> None:
    assert (latency(None), latency(0.00042), latency(1.5)) == ("-", "0.42 ms", "1.5 s")
