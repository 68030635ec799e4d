"""Experiments on clusters: started, looked at, asked to end; their run folders here remember what was last seen."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import ClusterError, StateError, SteppeError
from steppe.experiments.on_cluster.places import (
    PLACE_FILE,
    Place,
    Tell,
    place_of,
    placed,
    plan,
    reach,
    unknown,
    write_place,
)
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.states import ENDED, State
from steppe.experiments.run_folder.store import RunFolder, Status, is_own

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.client.remote_run import RemoteRun
    from steppe.platforms.kubernetes.diagnosis.pod_health import PodHealth
    from steppe.runners import Progress

LOOK_SECONDS = 1.0
"""How often a run that is followed is looked at."""
UNREACHABLE_SECONDS = 120.0
"""For how long a cluster may be out of reach before nobody follows a run any more."""
FORBIDDEN_SECONDS = 5.0
"""The same where the cluster answers, and says that these credentials may not look."""
PENDING_SECONDS = 900.0
"""For how long a run that is followed may wait for its Pod."""
LISTEN_SECONDS = 25.0
"""For how long a driver that runs and does not answer is asked again, before it is ended unheard."""
PODS_GONE = "its Pods are gone; somebody has deleted them"


def start(folder: RunFolder, place: Place, *, renew: bool = False) -> Place:
    """Begins the prepared experiment on its cluster, or goes on with it there."""
    with _starting(folder, place):
        return _start(folder, place, renew)


def status(folder: RunFolder, place: Place) -> Status:
    """What can be seen of it now, noted here too; one that has ended stays as it was."""
    from steppe.clusters import registry

    if (known := folder.read_status()).state in ENDED and place.has_begun and not known.is_unreadable:
        return known
    if not registry.knows(place.cluster):
        # Not written down: it may be registered again.
        return dataclasses.replace(known, state="failed", reason=unknown(place), phase="")
    with reach(place) as (_, run):
        try:
            sight = run.look()
        except StateError as error:
            # Nothing of it is there. Not written down either: whoever starts it anew, or deletes it, does that.
            return dataclasses.replace(known, state="failed", reason=str(error), phase="") if known.is_live else known
        if not place.has_begun:
            if not sight.is_alive:
                # Its start goes on in another process, or was cut short before it had made any Pods.
                return known
            write_place(folder, dataclasses.replace(place, has_begun=True))
        seen = _noted(folder, _status(folder, sight))
        if known.is_live and not seen.is_live:
            # Nobody has followed it: what is left of its Pods, such as a simulator beside it, has nothing to do.
            _settle(folder, run, seen, place.start)
        return seen


def follow(folder: RunFolder, on_status: Callable[[Status], None], pause: float | None = None) -> Status:
    """Looks at a run until it ends or cannot go on; its Pods are ended then, and what it left stays."""
    from steppe.platforms.kubernetes.client.kubeapi import FORBIDDEN, KubeError
    from steppe.platforms.kubernetes.diagnosis.pod_watch import TroubleTimer

    place, pause = placed(folder), pause or LOOK_SECONDS
    with reach(place) as (_, run):
        reached = progressed = time.monotonic()
        patience, timestep, heard, has_trained = TroubleTimer(), 0, None, False
        while True:
            try:
                sight = run.look()
                reached = time.monotonic()
            except ClusterError as error:
                is_forbidden = isinstance(error, KubeError) and error.code in FORBIDDEN
                if time.monotonic() - reached > (FORBIDDEN_SECONDS if is_forbidden else UNREACHABLE_SECONDS):
                    raise
                on_status(dataclasses.replace(folder.read_status(), phase=str(error)))
                time.sleep(pause)
                continue
            seen = _noted(folder, _status(folder, sight))
            on_status(seen)
            if not seen.is_live:
                _settle(folder, run, seen, place.start)
                return seen
            now = time.monotonic()
            heard = seen.timestep if heard is None and sight.is_heard else heard
            has_trained |= heard is not None and seen.timestep > heard
            # A registry that is away for an hour is not to end what has trained for days.
            is_waited_for = has_trained and sight.may_pass
            if patience.has_lasted("" if is_waited_for else sight.trouble, sight.seconds):
                # Nobody is to pay for its waiting.
                return _ended(folder, run, seen, "failed", sight.trouble)
            if not sight.phase or sight.is_queued or seen.timestep != timestep:
                # Some of its workers may be missing while it trains.
                progressed, timestep = now, seen.timestep
            if now - progressed > PENDING_SECONDS:
                raise ClusterError(
                    f'experiment "{folder.name}" still waits on cluster "{place.cluster}": {sight.phase}; it goes on '
                    f"waiting there: look again with {folder.ways.show}, or end it with {folder.ways.stop}"
                )
            time.sleep(pause)


def progress_of(status: Status) -> Progress:
    """What is seen of a run, for displays."""
    from steppe.runners import Progress

    return Progress(
        phase=status.phase,
        timestep=status.timestep,
        episode=status.episode,
        update=status.update,
        mean_return=status.mean_return,
        mean_length=status.mean_length,
        best_return=status.best_return,
        evaluation=status.evaluation,
        steps_per_second=status.steps_per_second or 0.0,
        seconds=status.seconds,
        notices=status.notices,
    )


def pause(folder: RunFolder, timeout: float) -> Status:
    """Asks the driver to save a checkpoint and pause; one that is being replaced is paused at its last checkpoint."""
    return _asked_to_end(folder, "pause", "paused", timeout)


def stop(folder: RunFolder, timeout: float) -> Status:
    """Asks the driver to save a checkpoint and stop; one that waits for its Pods is stopped at once."""
    return _asked_to_end(folder, "stop", "stopped", timeout)


@contextlib.contextmanager
def log_of(folder: RunFolder) -> Iterator[tuple[Callable[[int, bool], bytes], Callable[[], bool]]]:
    """(what was logged from a byte on, for the patient or not, whether the run still goes on), to be asked again."""
    with reach(placed(folder)) as (_, run):
        yield run.log, lambda: _noted(folder, _status(folder, run.look())).is_live


def files(folder: RunFolder) -> list[dict[str, Any]]:
    """Path, size and checksum of every file of the run."""
    with reach(placed(folder)) as (_, run):
        return run.files()


def download(folder: RunFolder, to: Path, *, force: bool, tell: Tell | None = None) -> list[Path]:
    """Fetches what the run left, each file checked; a download that was cut short goes on where it was."""

    def is_result(path: str) -> bool:
        return not any(is_own(part) for part in Path(path).parts)

    with reach(placed(folder)) as (_, run):
        return run.download(to, is_result, force=force, tell=tell)


def settle_stored(folder: RunFolder, *, erase: bool) -> str | None:
    """Before an experiment is deleted: where in object storage its results stay, which `erase` removes."""
    from steppe.clusters import registry

    place = place_of(folder)
    if place is None or not registry.knows(place.cluster):
        return None
    with reach(place) as (_, run):
        if erase:
            run.erase_stored()
            return None
        with contextlib.suppress(ClusterError):
            return run.stored_at()
    return None


@contextlib.contextmanager
def deleting(folder: RunFolder) -> Iterator[None]:
    """Around all that is asked of its cluster to delete it: where that cannot be reached, the way out is named."""
    try:
        yield
    except ClusterError as error:
        from steppe.platforms.kubernetes.client.kubeapi import KubeError

        place = place_of(folder)
        if place is None or not isinstance(error, KubeError) or error.code:
            raise
        way_out = f"if that is gone for good: steppe cluster delete -c {place.cluster} --forget, and then this again"
        raise ClusterError(f"{error}; {way_out}") from error


def delete(folder: RunFolder) -> None:
    """Removes the experiment and its results from the cluster."""
    from steppe.clusters import registry

    place = placed(folder)
    # Of a cluster that is gone or forgotten nothing can be reached any more.
    if registry.knows(place.cluster):
        with deleting(folder):
            delete_at(place)


def delete_at(place: Place) -> None:
    """Removes all that is there, results included."""
    with reach(place) as (_, run):
        run.delete()


@contextlib.contextmanager
def _starting(folder: RunFolder, place: Place) -> Iterator[None]:
    """Keeps others from starting it meanwhile; refuses where one has since `place` was read."""
    # Readers hold the lock for a moment while they look.
    descriptor = locks.acquire(folder.path, patience=0.5)
    try:
        if descriptor is None or (place_of(folder) or place).start != place.start:
            raise StateError(
                f'experiment "{folder.name}" is being started by another process; see how it goes: {folder.ways.show}'
            )
        yield
    finally:
        if descriptor is not None:
            locks.release(descriptor)


def _start(folder: RunFolder, place: Place, renew: bool) -> Place:
    is_known, status = place_of(folder) is not None, folder.read_status()
    place = dataclasses.replace(place, start=place.start + 1, generation=place.generation + renew, has_begun=True)
    with reach(place) as (reachable, run):
        made = plan(folder, folder.spec(), reachable, place)
        run.check(made, is_known=is_known)
        # Before anything is made: Pods that nobody knows of would run for ever.
        write_place(folder, dataclasses.replace(place, has_begun=False))
        try:
            run.start(made, is_known=is_known)
        except BaseException:
            with contextlib.suppress(ClusterError):
                run.end_pods(place.start)
                folder.write_status(status)
                if is_known or run.origin == made.origin:
                    write_place(folder, place)
                else:
                    (folder.path / PLACE_FILE).unlink()
            raise
        write_place(folder, place)
        folder.write_status(
            dataclasses.replace(status, state="starting", reason="", phase="its Pod is starting", finished=None)
        )
    return place


def _asked_to_end(folder: RunFolder, action: str, wanted: State, timeout: float) -> Status:
    place = placed(folder)
    start = place.start
    with reach(place) as (_, run):
        sight = _heard(run)
        seen = _noted(folder, _status(folder, sight))
        folder.advance(seen.state, "stop" if action == "stop" else "ask_pause")
        if not seen.is_live:
            return _ended(folder, run, seen, "stopped", "stopped while paused")
        if seen.state == "starting":
            # Nothing is trained now that was not saved; how much that is only a driver knows for certain.
            if not seen.timestep and action == "pause" and sight.is_heard:
                raise StateError(
                    f'experiment "{folder.name}" has not begun to train ({seen.phase or "starting"}), so there is '
                    f"nothing to pause; end it with: {folder.ways.stop}"
                )
            return _ended(folder, run, seen, wanted, f"{wanted} while its Pod was starting")
        run.ask(action)
        deadline = time.monotonic() + timeout
        while seen.is_live:
            if time.monotonic() > deadline:
                raise SteppeError(
                    f'experiment "{folder.name}" is not {wanted} after {timeout:g} s; it is still {seen.state}'
                    f"{f' ({seen.phase})' if seen.phase else ''}; look again with: {folder.ways.show}"
                )
            time.sleep(LOOK_SECONDS / 2)
            seen = _noted(folder, _status(folder, run.look()))
        _settle(folder, run, seen, start)
        return seen


def _heard(run: RemoteRun) -> PodHealth:
    """What is seen once its driver answers; one that is busy, or whose answer was lost, is given a while for it."""
    deadline = time.monotonic() + LISTEN_SECONDS
    while (sight := run.look()).is_silent and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return sight


def _ended(folder: RunFolder, run: RemoteRun, seen: Status, state: State, reason: str) -> Status:
    seen = dataclasses.replace(seen, state=state, reason=reason, finished=time.time(), phase="")
    _settle(folder, run, seen, placed(folder).start)
    return _noted(folder, seen)


def _settle(folder: RunFolder, run: RemoteRun, status: Status, start: int) -> None:
    """Keeps the last status with the experiment, and ends the Pods of that start."""
    run.end_pods(start)
    if placed(folder).start == start:
        run.note(dataclasses.asdict(status))


def _status(folder: RunFolder, sight: PodHealth) -> Status:
    """What is seen of a run, in the words of the state machine."""
    known = folder.read_status()
    seen = Status.from_data(sight.status) if sight.status else None
    if sight.is_alive:
        if seen is None or not seen.is_live or not sight.is_heard:
            # Also while another Pod takes over: nobody can be asked for anything, and nothing is lost by ending it.
            base = seen if seen is not None and sight.is_heard else _last_heard(seen, known)
            return dataclasses.replace(
                base, state="starting", reason="", finished=None, phase=sight.phase or "starting", created=known.created
            )
        return dataclasses.replace(seen, phase=sight.phase or seen.phase, created=known.created)
    if seen is None:
        # It never said a word.
        seen = known
    seen = dataclasses.replace(seen, created=known.created)
    if seen.is_live or (sight.trouble and seen.state != "failed"):
        reason = sight.trouble or PODS_GONE
        return dataclasses.replace(seen, state="failed", reason=reason, finished=time.time(), phase="")
    return seen


def _last_heard(seen: Status | None, known: Status) -> Status:
    """The newer of what the cluster has kept, which may be how an earlier start ended, and of what was noted here."""
    if seen is None or (seen.finished is not None and seen.finished < (known.created or 0.0)):
        # It ended before it was begun anew.
        return known
    return max(seen, known, key=lambda each: (each.heartbeat or 0.0, each.timestep))


def _noted(folder: RunFolder, status: Status) -> Status:
    """The same, written down here for when the cluster cannot be asked."""
    if status != folder.read_status():
        folder.write_status(status)
    return status
