"""Handing a run on a cluster over to a watcher, a process in the background, when nobody else follows it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from steppe.errors import ClusterError, SteppeError
from steppe.experiments.on_cluster.address import ClusterAddress, address_of
from steppe.experiments.run_folder.store import RunFolder
from steppe.signals import handling

WATCHER = ("-P", "-m", "steppe.experiments.on_cluster.watcher")
LOG_FILE = ".watcher.log"
Tell = Callable[[str], None]


@contextlib.contextmanager
def handing_over(folder: RunFolder, tell: Tell) -> Iterator[None]:
    """Surrounds following a run to its end: if that is interrupted, a watcher is started if one is needed."""
    try:
        # A closed terminal and SIGTERM end the block as Ctrl-C does.
        with handling(_exit, signal.SIGHUP, signal.SIGTERM):
            yield
    except (KeyboardInterrupt, SystemExit, ClusterError):
        hand_over(folder, tell)
        raise


def hand_over(folder: RunFolder, tell: Tell) -> None:
    """Starts a watcher if something must be done at the end of the run, and says so."""
    from steppe.platforms import LocalPlatform

    task = _task(folder)
    if not task:
        return
    log = folder.path / LOG_FILE
    try:
        process = LocalPlatform().launch([sys.executable, *WATCHER, str(folder.path)], log=log)
    except SteppeError as error:
        tell(f"nobody on this machine waits for its end, to {task} ({error}); look after it: {folder.ways.show}")
    else:
        tell(f"process {process.pid} on this machine waits for its end, to {task}; what it does: {log}")


def _exit(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def _task(folder: RunFolder) -> str:
    """The work to do from this machine when the run ends; "" if there is none."""
    address = address_of(folder)
    if address is None:
        return ""
    if address.owns_cluster:
        return f'fetch its results and delete cluster "{address.cluster}"'
    return "end the containers beside it" if _has_sidecars(folder, address) else ""


def _has_sidecars(folder: RunFolder, address: ClusterAddress) -> bool:
    from steppe.clusters import registry
    from steppe.specs.running.kubernetes import joined

    its = registry.read(address.cluster).spec.kubernetes if registry.knows(address.cluster) else None
    return bool(joined(its, folder.spec().kubernetes).sidecars)
