"""Progress of several seeds of one experiment, which train side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from steppe.display.console import console, table
from steppe.display.live import LivePanel, QuietDisplay, print_line
from steppe.display.text import count, duration, score

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steppe.experiments.seed_group import SeedGroup, SeedRun

FIRST_LINE_SECONDS, LONGEST_LINE_SECONDS = 10.0, 600.0
"""Seconds until a log's first line of progress, and the longest interval between lines."""


def display(group: SeedGroup, quiet: bool = False) -> SeedDisplay:
    """A panel on a terminal, else lines; nothing if `quiet`."""
    if quiet:
        return SeedDisplay(group)
    return SeedPanel(group) if console().is_terminal else SeedLines(group)


class SeedDisplay(QuietDisplay):
    """Shows nothing; the base of the displays of several seeds."""

    def __init__(self, group: SeedGroup) -> None:
        self.group = group

    def update(self, group: SeedGroup) -> None:
        """Called several times a second."""


class SeedLines(SeedDisplay):
    """A line for each change, and lines of progress at growing intervals."""

    def __init__(self, group: SeedGroup) -> None:
        super().__init__(group)
        self._told: dict[int, str] = {}
        self._pause = FIRST_LINE_SECONDS
        self._next = time.monotonic() + self._pause

    def __enter__(self) -> Self:
        print_line(title(self.group))
        return self

    def update(self, group: SeedGroup) -> None:
        """Prints changes, and progress if a line is due."""
        from steppe.experiments.run_folder.states import stands

        for member in group.members:
            state = _state(member)
            if state != self._told.get(member.seed, "waiting"):
                reason = f": {member.reason}" if member.is_over and member.reason else ""
                got = f", mean return {score(member.status.mean_return)}" if member.is_over else ""
                print_line(f"seed {member.seed} ({member.folder.name}) {stands(state)}{reason}{got}")
            self._told[member.seed] = state
        if time.monotonic() >= self._next:
            self._pause = min(2 * self._pause, LONGEST_LINE_SECONDS)
            self._next = time.monotonic() + self._pause
            running = [f"seed {each.seed} {_progress(each)}" for each in group.members if each.is_running]
            print_line("; ".join(running))

    def announce(self, sentence: str) -> None:
        """Prints the sentence on a line of its own."""
        print_line(sentence)


class SeedPanel(LivePanel, SeedDisplay):
    """A live table with a row for each seed."""

    def __init__(self, group: SeedGroup) -> None:
        SeedDisplay.__init__(self, group)
        LivePanel.__init__(self)

    def render(self) -> RenderableType:
        """The table as of now."""
        from rich.console import Group as Rows
        from rich.text import Text

        told = [Text(sentence, style="bold yellow") for sentence in self._announced]
        return Rows(Text(title(self.group), style="bold"), score_table(self.group, is_over=False), *told)


def score_table(group: SeedGroup, *, is_over: bool) -> Any:
    """A row for each seed."""
    last = "TIME" if is_over else "STEPS/S"
    rows = table(
        *("SEED", "EXPERIMENT", "STATE", "SCORE", "TIMESTEPS", last), right=("SEED", "SCORE", "TIMESTEPS", last)
    )
    for member in group.members:
        status = member.status
        speed = count(status.steps_per_second) if member.is_running and status.steps_per_second else "-"
        rows.add_row(
            *(str(member.seed), member.folder.name, _state(member), score(group.score_of(member))),
            *(f"{status.timestep:,}", duration(status.seconds) if is_over else speed),
        )
    return rows


def title(group: SeedGroup) -> str:
    """The experiment's name, agent, environment and number of seeds."""
    spec, seeds = group.spec, len(group.members)
    return f"{group.name}: {spec.agent.type} on {spec.environment.id}, {seeds} seed{'' if seeds == 1 else 's'}"


def _state(member: SeedRun) -> str:
    if member.error is not None:
        return "failed"
    if member.is_running and not member.status.is_live:
        return "starting" if member.status.state == "created" else "writing its report"
    return "waiting" if member.status.state == "created" else member.status.state


def _progress(member: SeedRun) -> str:
    status = member.status
    got = "" if status.mean_return is None else f" with mean return {score(status.mean_return)}"
    return f"at {count(status.timestep)} timesteps{got}"
