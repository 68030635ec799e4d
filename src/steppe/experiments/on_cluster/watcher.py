"""A process in the background that stays with a run on a cluster when nobody else does.

At the end of some runs there is something to do from here: a cluster that was made for one experiment is deleted
once the results are home, and simulators beside the training are ended, which know no end of their own. So whoever
leaves such a run leaves a watcher in the background: `python -m steppe.experiments.on_cluster.watcher FOLDER`.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from steppe.errors import ClusterError, StateError, SteppeError, StorageError
from steppe.experiments.on_cluster import own_cluster, places, remote
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder, Status

PROGRAM = ("-P", "-m", "steppe.experiments.on_cluster.watcher")
LOG_FILE = ".watcher.log"
LOCK_FILE = ".watcher.lock"
LOOK_SECONDS = 10.0
"""How often a watcher in the background looks: it is in nobody's way, and in no hurry."""
PAUSE_SECONDS = (10.0, 300.0)
"""How long it waits before it tries again what has failed: first, and at most."""
Tell = Callable[[str], None]
T = TypeVar("T")


@contextlib.contextmanager
def watching(folder: RunFolder, tell: Tell) -> Iterator[None]:
    """Around following a run and seeing to its end: whatever interrupts that, a watcher is left where one is needed."""
    try:
        with _heard_hangups():
            yield
    except (KeyboardInterrupt, SystemExit, ClusterError):
        leave(folder, tell)
        raise


def leave(folder: RunFolder, tell: Tell) -> None:
    """Starts a watcher in the background where the end of the run is to be seen to, and tells of it."""
    from steppe.platforms import LocalPlatform

    task = _task(folder)
    if not task:
        return
    log = folder.path / LOG_FILE
    try:
        process = LocalPlatform().launch([sys.executable, *PROGRAM, str(folder.path)], log=log)
    except SteppeError as error:
        tell(f"nobody on this machine waits for its end, to {task} ({error}); look after it: {folder.ways.show}")
    else:
        tell(f"process {process.pid} on this machine waits for its end, to {task}; what it does: {log}")


def main(arguments: list[str] | None = None) -> int:
    """The entry of a watcher in the background: what it has to say goes to its log."""
    folder = RunFolder(Path((sys.argv[1:] if arguments is None else arguments)[0]))
    try:
        # One that is about to end may not see that the run was begun again: it is given the time for it.
        descriptor = locks.acquire(folder.path, patience=3 * LOOK_SECONDS, file=LOCK_FILE)
        if descriptor is not None:
            _stay(folder)
            locks.release(descriptor)
    except SteppeError as error:
        _say(f"error: {error}")
        return error.exit_code
    return 0


class _BegunAgain(Exception):
    """Raised out of following a run whose Pods are not the ones that were followed any more."""


def _stay(folder: RunFolder) -> None:
    try:
        status = _insist(folder, lambda: _followed(folder))
        _say(f"{status.state}: {status.reason}")
        if own_cluster.is_home_bound(folder):
            place = places.placed(folder)
            _insist(folder, lambda: _bring_home(folder, place))
    except StateError:
        if places.place_of(folder) is not None:
            raise
        _say("another process has brought its results home")


def _followed(folder: RunFolder) -> Status:
    """How the run has ended, also one that was paused and begun again since."""
    while True:
        start = places.placed(folder).start

        def look(status: Status, start: int = start) -> None:
            if places.placed(folder).start != start:
                raise _BegunAgain

        with contextlib.suppress(_BegunAgain):
            return remote.follow(folder, look, LOOK_SECONDS)


def _bring_home(folder: RunFolder, place: places.Place) -> None:
    if places.place_of(folder) is not None:
        own_cluster.bring_home(folder, _say)
    else:
        own_cluster.end_left(folder, place, _say)


def _insist(folder: RunFolder, act: Callable[[], T]) -> T:
    """What `act` gives as soon as it succeeds, for as long as the experiment and its cluster are known here."""
    from steppe.clusters import registry

    cluster = places.placed(folder).cluster
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


def _task(folder: RunFolder) -> str:
    """What is to be done from here when the run ends; nothing where it can be left alone."""
    place = places.place_of(folder)
    if place is None:
        return ""
    if place.owns_cluster:
        return f'fetch its results and delete cluster "{place.cluster}"'
    return "end the containers beside it" if _has_sidecars(folder, place) else ""


def _has_sidecars(folder: RunFolder, place: places.Place) -> bool:
    from steppe.clusters import registry
    from steppe.specs.running.kubernetes import joined

    its = registry.read(place.cluster).spec.kubernetes if registry.knows(place.cluster) else None
    return bool(joined(its, folder.spec().kubernetes).sidecars)


@contextlib.contextmanager
def _heard_hangups() -> Iterator[None]:
    """Lets a closed terminal and SIGTERM end the block as Ctrl-C does, where signals can be heard."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
