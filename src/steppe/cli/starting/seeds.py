"""`--seeds`: several seeds of one experiment side by side, with one table at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steppe.display.console import console
from steppe.display.seed_progress import display, score_table, title
from steppe.display.text import score

if TYPE_CHECKING:
    from steppe.experiments.seed_group import SeedGroup


def train_and_show(group: SeedGroup, quiet: bool) -> int:
    """Trains all members and prints the table; returns the exit code."""
    with display(group, quiet) as shows:
        group.train(shows.update, shows.announce)
    if not quiet:
        print_group(group)
    return group.exit_code


def print_group(group: SeedGroup) -> None:
    """Prints a table of all seeds, the spread of their scores, the failures, and the next commands."""
    from steppe.cli.starting.running import print_commands, say

    out = console()
    out.print(title(group), markup=False, style="bold")
    out.print(score_table(group, is_over=True))
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
