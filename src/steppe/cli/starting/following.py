"""Following a run that trains outside of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steppe.display.console import console

if TYPE_CHECKING:
    from steppe.display.progress import TrainingDisplay
    from steppe.experiments.locations import Location
    from steppe.experiments.run_folder.store import Status


def follow_and_show(location: Location, quiet: bool) -> int:
    """Shows the progress of a run until it ends; Ctrl-C only ends the watching. Returns the exit code."""
    from steppe.cli.starting.running import print_commands, print_end, say
    from steppe.display.progress import display
    from steppe.experiments.on_cluster import ephemeral_cluster

    folder = location.folder

    def tell(line: str) -> None:
        say([line], quiet)

    shows = display(folder.spec(), quiet)
    try:
        with location.watched(tell):
            with shows:
                status = location.follow(StatusFeed(shows))
            location.finish(tell)
    except KeyboardInterrupt:
        if not quiet:
            console().print(f'\nexperiment "{folder.name}" goes on without you; come back to it with:', markup=False)
            print_commands([folder.ways.show, f"{folder.ways.logs} --follow", folder.ways.stop])
        return 130
    if not quiet:
        print_end(folder, status, told=shows.lasting)
        say([note] if (note := ephemeral_cluster.note_of(folder, status)) else [])
    return 1 if status.state == "failed" else 0


class StatusFeed:
    """Feeds the statuses of a run to a display, and announces the reasons why it waits."""

    def __init__(self, shows: TrainingDisplay) -> None:
        self._shows = shows
        self._announced: set[str] = set()

    def __call__(self, status: Status) -> None:
        """Called with every look at the run."""
        from steppe.experiments.run_folder.status import progress_of

        if " " not in status.phase:
            # A phase of one word means that all is well: any later sentence is news.
            self._announced.clear()
        elif status.phase not in self._announced:
            # Kubernetes alternates between sentences, such as a failed pull and the wait before the next one.
            self._announced.add(status.phase)
            self._shows.announce(status.phase)
        if status.state in ("running", "pausing"):
            self._shows.update(progress_of(status))
