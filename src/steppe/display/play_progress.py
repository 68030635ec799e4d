"""The scores of episodes played through an endpoint: a live table by route, or lines at growing intervals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from steppe.display.console import console, table
from steppe.display.live import LinePace, LivePanel, QuietDisplay, print_line
from steppe.display.text import count, duration, score

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steppe.display.console import FittingTable
    from steppe.serve.play.route_scores import PlayScores


def display(title: str, quiet: bool = False) -> PlayDisplay:
    """A panel on a terminal, else lines; nothing if `quiet`."""
    if quiet:
        return PlayDisplay(title)
    return PlayPanel(title) if console().is_terminal else PlayLines(title)


def route_table(scores: PlayScores) -> FittingTable:
    """One row for each route."""
    columns = ("ROUTE", "POLICY", "VERSION", "EPISODES", "SHARE", "MEAN RETURN", "LAST 100", "BEST")
    rows = table(*columns, right=columns[3:], drop=("BEST", "VERSION", "SHARE", "POLICY"))
    for route in scores.routes:
        recent = sum(route.recent) / len(route.recent)
        share = f"{route.episodes / scores.episodes:.0%}"
        rows.add_row(
            *(route.name, route.policy, route.version, f"{route.episodes:,}", share),
            *(score(route.mean_return), score(recent), score(route.best)),
        )
    return rows


def latency(seconds: float | None) -> str:
    """A time for one answer: `0.4 ms`, `1.5 s`; a dash for None."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


class PlayDisplay(QuietDisplay):
    """Shows only announcements, on standard error; the base of the displays of a play."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.latest: PlayScores | None = None

    def update(self, scores: PlayScores) -> None:
        """Called after each episode, and now and then."""
        self.latest = scores

    def announce(self, sentence: str) -> None:
        """Shows a sentence at once; any thread may call it."""
        print(f"note: {sentence}", file=sys.stderr, flush=True)

    def counted(self) -> str:
        """`120 of 200 episodes`, the mean return, the speed."""
        if self.latest is None:
            return "waiting for the first answer..."
        scores = self.latest
        speed = scores.timesteps / max(scores.seconds, 1e-9)
        return (
            f"{scores.episodes:,} of {scores.wanted:,} episodes, mean return {score(scores.mean_return)}, "
            f"{count(speed)} steps/s, answers in {latency(scores.latency(0.5))} "
            f"(p99 {latency(scores.latency(0.99))}), {duration(scores.seconds)}"
        )


class PlayLines(PlayDisplay):
    """Plain lines at growing intervals, for pipes and log files."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._pace = LinePace()

    def __enter__(self) -> Self:
        print_line(f"playing {self.title}")
        return self

    def update(self, scores: PlayScores) -> None:
        """Prints a line if one is due."""
        super().update(scores)
        if scores.episodes and self._pace.is_due():
            routes = ", ".join(f"{route.name} {score(route.mean_return)} ({route.episodes})" for route in scores.routes)
            print_line(f"{self.counted()}: {routes}")

    def announce(self, sentence: str) -> None:
        """Prints the sentence on a line of its own."""
        print_line(f"note: {sentence}")


class PlayPanel(LivePanel, PlayDisplay):
    """A live table of the routes."""

    most_announced = 3

    def __init__(self, title: str) -> None:
        PlayDisplay.__init__(self, title)
        LivePanel.__init__(self)

    def render(self) -> RenderableType:
        """The panel as of now."""
        from rich import panel
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        rows: list[RenderableType] = [Text(self.counted())]
        if self.latest is not None and self.latest.episodes:
            done = self.latest.episodes / self.latest.wanted
            rows = [ProgressBar(total=1.0, completed=done), *rows, route_table(self.latest)]
        if self._announced:
            rows.append(Text("\n".join(self._announced), style="bold yellow"))
        return panel.Panel(Group(*rows), title=Text(self.title), title_align="left", padding=(0, 1))
