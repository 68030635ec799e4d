"""Starting an experiment on a cluster from the terminal, and watching it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steppe.cli.display.console import console

if TYPE_CHECKING:
    from steppe.cli.display.progress import Display
    from steppe.experiments.run_folder.store import RunFolder, Status


def start_on_cluster_and_show(
    folder: RunFolder, cluster: str | None, *, resume: bool, force: bool, detach: bool, quiet: bool
) -> int:
    """Starts the prepared experiment there, and follows it until it ends; Ctrl-C only ends the watching."""
    from steppe.cli.starting.running import print_commands, say
    from steppe.experiments import lifecycle
    from steppe.experiments.on_cluster import watcher

    def tell(line: str) -> None:
        say([line], quiet)

    place = lifecycle.start_on_cluster(folder, cluster, resume=resume, force=force, tell=tell)
    if detach:
        if not quiet:
            console().print(
                f'experiment "{folder.name}" starts on cluster "{place.cluster}" (namespace {place.namespace}); watch '
                "it with:",
                markup=False,
            )
            print_commands([f"{folder.ways.logs} --follow", folder.ways.show, folder.ways.stop])
        watcher.leave(folder, tell)
        return 0
    return follow_and_show(folder, quiet)


def follow_and_show(folder: RunFolder, quiet: bool) -> int:
    """Shows how a run on a cluster goes; 0 where it ended well."""
    from steppe.cli.display.progress import display
    from steppe.cli.starting.running import print_commands, print_end, say
    from steppe.experiments.on_cluster import own_cluster, remote, watcher

    def tell(line: str) -> None:
        say([line], quiet)

    shows = display(folder.spec(), quiet)
    try:
        with watcher.watching(folder, tell):
            with shows:
                status = remote.follow(folder, _Watching(shows))
            if own_cluster.is_home_bound(folder):
                own_cluster.bring_home(folder, tell)
    except KeyboardInterrupt:
        if not quiet:
            console().print(f'\nexperiment "{folder.name}" goes on without you; come back to it with:', markup=False)
            print_commands([folder.ways.show, f"{folder.ways.logs} --follow", folder.ways.stop])
        return 130
    if not quiet:
        print_end(folder, status, told=shows.lasting)
        say([note] if (note := own_cluster.note_of(folder, status)) else [])
    return 1 if status.state == "failed" else 0


class _Watching:
    """Hands what is seen of a run to a display."""

    def __init__(self, shows: Display) -> None:
        self._shows = shows
        self._said: set[str] = set()

    def __call__(self, status: Status) -> None:
        """Called with every look."""
        from steppe.experiments.on_cluster import remote

        if " " not in status.phase:
            # All is well: whatever comes next is news.
            self._said.clear()
        elif status.phase not in self._said:
            # Kubernetes says the same in turns, such as that a pull has failed and that it waits before the next.
            self._said.add(status.phase)
            self._shows.announce(status.phase)
        if status.state in ("running", "pausing"):
            self._shows.update(remote.progress_of(status))
