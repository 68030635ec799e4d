"""A process in the background that follows a run on a cluster when nobody else does.

Some runs need this machine at their end: a cluster that was made for one experiment is deleted after its results were
fetched, and simulators beside the training, which do not end by themselves, are ended. Such a run is handed over to
`python -m steppe.experiments.on_cluster.watcher FOLDER` (`handover`).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from steppe.errors import ClusterError, StateError, SteppeError, StorageError
from steppe.experiments.on_cluster import ephemeral_cluster
from steppe.experiments.on_cluster.address import ClusterAddress, address_of, required_address
from steppe.experiments.on_cluster.location import ClusterLocation
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder, Status

LOCK_FILE = ".watcher.lock"
LOOK_SECONDS = 10.0
"""How often a watcher reads the status of the run."""
PAUSE_SECONDS = (10.0, 300.0)
"""The first and the longest pause before it repeats a failed call."""
T = TypeVar("T")


def main(arguments: list[str] | None = None) -> int:
    """Follows the run to its end and does the work that remains; writes to the watcher's log."""
    folder = RunFolder(Path((sys.argv[1:] if arguments is None else arguments)[0]))
    try:
        # An earlier watcher that is about to end may not notice that the run was started again: wait for its end.
        descriptor = locks.acquire(folder.path, patience=3 * LOOK_SECONDS, file=LOCK_FILE)
        if descriptor is not None:
            _watch(ClusterLocation(folder))
            locks.release(descriptor)
    except SteppeError as error:
        _say(f"error: {error}")
        return error.exit_code
    return 0


class _StartedAgain(Exception):
    """The run has other Pods than the ones that were followed."""


def _watch(location: ClusterLocation) -> None:
    folder = location.folder
    try:
        status = _retry(folder, lambda: _follow(location))
        _say(f"{status.state}: {status.reason}")
        if location.ends_with_run():
            address = location.address
            _retry(folder, lambda: _finish(location, address))
    except StateError:
        if address_of(folder) is not None:
            raise
        _say("another process has brought its results home")


def _follow(location: ClusterLocation) -> Status:
    """The last status of the run, even if it was paused and started again meanwhile."""
    while True:
        start = location.address.start

        def look(status: Status, start: int = start) -> None:
            if location.address.start != start:
                raise _StartedAgain

        with contextlib.suppress(_StartedAgain):
            return location.follow(look, LOOK_SECONDS)


def _finish(location: ClusterLocation, address: ClusterAddress) -> None:
    if address_of(location.folder) is not None:
        location.bring_home(_say)
    else:
        ephemeral_cluster.delete_leftover(location.folder, address, _say)


def _retry(folder: RunFolder, act: Callable[[], T]) -> T:
    """Calls `act` until it succeeds, with growing pauses, while the experiment and its cluster are known here."""
    from steppe.clusters import registry

    cluster = required_address(folder).cluster
    pause, longest = PAUSE_SECONDS
    while True:
        try:
            return act()
        except (ClusterError, StorageError) as error:
            if not folder.path.exists() or not registry.knows(cluster):
                raise
            _say(f"{error}; tried again in {pause:g} s")
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
