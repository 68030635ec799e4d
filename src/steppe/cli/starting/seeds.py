"""`--seeds`: several seeds of one experiment side by side, with a line for each and one table at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from steppe.cli.display.console import console, table
from steppe.cli.display.live import LivePanel, print_line
from steppe.cli.display.text import count, duration, score

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steppe.experiments.group import Group, Member

FIRST_LINE_SECONDS, LONGEST_LINE_SECONDS = 10.0, 600.0
"""A log gets a line of progress after so long, and then ever more rarely."""


def train_and_show(group: Group, quiet: bool) -> int:
    """Trains all members and prints the table; the exit code."""
    with display(group, quiet) as shows:
        group.train(shows.update, shows.announce)
    if not quiet:
        print_group(group)
    return group.exit_code


def display(group: Group, quiet: bool = False) -> Silent:
    """The right display for where the output goes."""
    if quiet:
        return Silent(group)
    return GroupPanel(group) if console().is_terminal else GroupLines(group)


def print_group(group: Group) -> None:
    """One table of all seeds, the spread of their scores, what failed, and what to do next."""
    from steppe.cli.starting.running import print_commands, say

    out = console()
    out.print(_title(group), markup=False, style="bold")
    out.print(_table(group, is_over=True))
    spread = group.scores()
    if spread is not None:
        what = "the evaluations" if group.is_evaluated else "the mean return of the last 100 episodes"
        out.print(
            f"  mean {score(spread.mean)}, deviation {score(spread.deviation)}, median {score(spread.median)}, "
            f"min {score(spread.least)}, max {score(spread.largest)}\n"
            f"  (scores: {what} of {spread.count} of {len(group.members)} seeds)",
            markup=False,
        )
    say([f"seed {each.seed}: {each.reason}" for each in group.members if each.has_failed])
    out.print("try next:")
    unfinished = [each for each in group.members if each.status.state in ("paused", "stopped", "failed", "created")]
    print_commands(
        [each.folder.ways.start if each.status.state == "created" else each.folder.ways.resume for each in unfinished]
        or [group.members[0].folder.ways.show]
    )


class Silent:
    """Shows nothing; what the others share."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, group: Group) -> None:
        """Called several times a second."""

    def announce(self, sentence: str) -> None:
        """Something that must be seen now."""


class GroupLines(Silent):
    """A line for each change, and one with the progress now and then."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._told: dict[int, str] = {}
        self._pause = FIRST_LINE_SECONDS
        self._next = time.monotonic() + self._pause

    def __enter__(self) -> GroupLines:
        print_line(_title(self.group))
        return self

    def update(self, group: Group) -> None:
        """Tells what has changed."""
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
        """A line of its own."""
        print_line(sentence)


class GroupPanel(LivePanel, Silent):
    """A live table with a row for each seed."""

    def __init__(self, group: Group) -> None:
        Silent.__init__(self, group)
        self._announced: list[str] = []
        LivePanel.__init__(self)

    def announce(self, sentence: str) -> None:
        """Below the table until the end."""
        self._announced.append(sentence)

    def render(self) -> RenderableType:
        """The table as of now."""
        from rich.console import Group as Rows
        from rich.text import Text

        told = [Text(sentence, style="bold yellow") for sentence in self._announced]
        return Rows(Text(_title(self.group), style="bold"), _table(self.group, is_over=False), *told)


def _table(group: Group, *, is_over: bool) -> Any:
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


def _title(group: Group) -> str:
    spec, seeds = group.spec, len(group.members)
    return f"{group.name}: {spec.agent.type} on {spec.environment.id}, {seeds} seed{'' if seeds == 1 else 's'}"


def _state(member: Member) -> str:
    if member.error is not None:
        return "failed"
    if member.is_running and not member.status.is_live:
        return "starting" if member.status.state == "created" else "writing its report"
    return "waiting" if member.status.state == "created" else member.status.state


def _progress(member: Member) -> str:
    status = member.status
    got = "" if status.mean_return is None else f" with mean return {score(status.mean_return)}"
    return f"at {count(status.timestep)} timesteps{got}"
