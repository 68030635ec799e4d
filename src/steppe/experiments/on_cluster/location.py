"""Runs on a cluster: started, watched and ended through Kubernetes; status.json here keeps the last known status."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import ClusterError, StateError, SteppeError
from steppe.experiments.locations._base import WAIT_SECONDS, IsRunning, Location, ReadLog, Started, Tell
from steppe.experiments.locations.local import LocalLocation, sizes_here
from steppe.experiments.on_cluster import ephemeral_cluster, handover, idle_nodes, placement
from steppe.experiments.on_cluster.address import (
    ClusterAddress,
    address_of,
    reach,
    required_address,
    unknown_cluster,
    write_address,
)
from steppe.experiments.on_cluster.seen_status import status_seen
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.states import ENDED, Event, State
from steppe.experiments.run_folder.store import RunFolder, Status, is_own
from steppe.files.run_files import CLUSTER_FILE

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.client.remote_run import RemoteRun
    from steppe.platforms.kubernetes.diagnosis.pod_health import PodHealth

LOOK_SECONDS = 1.0
"""How often the status of a followed run is read."""
UNREACHABLE_SECONDS = 120.0
"""Following a run ends with an error after its cluster was unreachable for this time."""
FORBIDDEN_SECONDS = 5.0
"""The same if the cluster denies these credentials access."""
PENDING_SECONDS = 900.0
"""Following a run ends with an error after it waited for its Pod for this time."""
LISTEN_SECONDS = 25.0
"""How long a running driver that does not answer is asked again before it is ended without an answer."""


class ClusterLocation(Location):
    """A run on a cluster."""

    is_here = False
    poll_seconds = LOOK_SECONDS
    trainer = "a cluster"

    def __init__(self, folder: RunFolder, cluster: str | None = None) -> None:
        """`cluster` is the name or the file that a user chose for an experiment that is on no cluster yet."""
        super().__init__(folder)
        self._cluster = cluster

    @property
    def address(self) -> ClusterAddress:
        """Read again with each access, since other processes start and fetch runs too."""
        return required_address(self.folder)

    def status(self) -> Status:
        """Asks the cluster, and writes the answer to status.json; a run that has ended is not asked about again."""
        from steppe.clusters import registry

        address = self.address
        if (known := self.folder.read_status()).state in ENDED and address.has_begun and not known.is_unreadable:
            return known
        if not registry.knows(address.cluster):
            # Not written down: it may be registered again.
            return dataclasses.replace(known, state="failed", reason=unknown_cluster(address), phase="")
        with reach(address) as (_, run):
            try:
                sight = run.look()
            except StateError as error:
                # It is not on the cluster. Not written down: a new start, or a deletion, does that.
                return (
                    dataclasses.replace(known, state="failed", reason=str(error), phase="") if known.is_live else known
                )
            if not address.has_begun:
                if not sight.is_alive:
                    # Another process still starts it, or its start was interrupted before it had made any Pods.
                    return known
                write_address(self.folder, dataclasses.replace(address, has_begun=True))
            seen = self._note(sight)
            if known.is_live and not seen.is_live:
                # Nobody has followed it, so its other Pods, such as a simulator beside it, still run.
                self._settle(run, seen, address.start)
            return seen

    def start(self, *, resume: bool = False, force: bool = False, tell: Tell = lambda line: None) -> Started:
        """Starts the experiment's Pods; a cluster that the experiment describes is made first."""
        from steppe import runners

        runners.release()
        with ephemeral_cluster.kept(self.folder):
            is_new = address_of(self.folder) is None
            ways = self.folder.ways
            if is_new and resume:
                raise StateError(
                    f'the results of experiment "{self.folder.name}" are on this machine, so it is resumed here: '
                    f"{ways.resume_with('platform', 'local')}; to start it anew on a cluster, stop it, and: "
                    f"{ways.start_on(self._cluster or 'CLUSTER')}"
                )
            spec = self.folder.spec()
            address = placement.settle_address(self.folder, spec, self._cluster, tell)
            if notice := idle_nodes.notice_of(spec, address.cluster):
                tell(notice)
            address = self.start_at(address, renew=force and not is_new)
        return Started(f'starts on cluster "{address.cluster}" (namespace {address.namespace})')

    def start_at(self, address: ClusterAddress, *, renew: bool = False) -> ClusterAddress:
        """Starts the experiment's Pods at an address, from its last checkpoint there unless `renew`."""
        with self._starting(address):
            return self._start(address, renew)

    def pause(self, timeout: float = WAIT_SECONDS) -> Status:
        """Asks the driver to save a checkpoint and pause; one that is being replaced pauses at its last checkpoint."""
        return self._ask_to_end("pause", "paused", timeout)

    def stop(self, timeout: float = WAIT_SECONDS) -> Status:
        """Asks the driver to save a checkpoint and stop; one that still waits for its Pods is stopped at once."""
        return self._ask_to_end("stop", "stopped", timeout)

    def follow(self, on_status: Callable[[Status], None], pause: float | None = None) -> Status:
        """Reads the status until the run has ended or cannot continue; then its Pods are ended, its results stay."""
        from steppe.platforms.kubernetes.client.kubeapi import FORBIDDEN, KubeError
        from steppe.platforms.kubernetes.diagnosis.pod_watch import TroubleTimer

        folder, address, pause = self.folder, self.address, pause or LOOK_SECONDS
        with reach(address) as (_, run):
            reached = progressed = time.monotonic()
            timer, timestep, first_timestep, has_trained = TroubleTimer(), 0, None, False
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
                seen = self._note(sight)
                on_status(seen)
                if not seen.is_live:
                    self._settle(run, seen, address.start)
                    return seen
                now = time.monotonic()
                first_timestep = seen.timestep if first_timestep is None and sight.is_heard else first_timestep
                has_trained |= first_timestep is not None and seen.timestep > first_timestep
                # An image registry that is away for an hour must not end a run that has trained for days.
                is_waited_for = has_trained and sight.may_pass
                if timer.has_lasted("" if is_waited_for else sight.trouble, sight.seconds):
                    # Pods that only wait cost money too.
                    return self._end(run, seen, "failed", sight.trouble)
                if not sight.phase or sight.is_queued or seen.timestep != timestep:
                    # A run may train while some of its workers are missing.
                    progressed, timestep = now, seen.timestep
                if now - progressed > PENDING_SECONDS:
                    raise ClusterError(
                        f'experiment "{folder.name}" still waits on cluster "{address.cluster}": {sight.phase}; it '
                        f"goes on waiting there: look again with {folder.ways.show}, or end it with {folder.ways.stop}"
                    )
                time.sleep(pause)

    @contextlib.contextmanager
    def log(self) -> Iterator[tuple[ReadLog, IsRunning]]:
        """Reads the driver's log."""
        with reach(self.address) as (_, run):
            yield run.log, lambda: self._note(run.look()).is_live

    def files(self, status: Status) -> tuple[list[tuple[str, int]], str]:
        """Asks the driver while it trains; no Pod is started just to list files."""
        from steppe.clusters import registry

        address = self.address
        if registry.knows(address.cluster):
            if status.state in ("running", "pausing"):
                with contextlib.suppress(SteppeError):
                    return [(each["path"], each["size"]) for each in self.files_there()], ""
            way = f'what it has left is on cluster "{address.cluster}"; fetch it with: {self.folder.ways.download}'
            return sizes_here(self.folder), way
        return sizes_here(self.folder), ""

    def files_there(self) -> list[dict[str, Any]]:
        """Path, size and checksum of every file of the run, as the cluster knows them."""
        with reach(self.address) as (_, run):
            return run.files()

    def download(self, to: Path, *, force: bool = False, tell: Tell = lambda line: None) -> list[Path]:
        """Fetches the results; from a cluster of its own they come into the run folder first, and the cluster ends."""
        if self.ends_with_run():
            self.bring_home(tell)
            return LocalLocation(self.folder).download(to, force=force)
        return self.fetch(to, force=force)

    def fetch(self, to: Path, *, force: bool) -> list[Path]:
        """Fetches the results, each file checked; an interrupted download continues where it was."""

        def is_result(path: str) -> bool:
            return not any(is_own(part) for part in Path(path).parts)

        with reach(self.address) as (_, run):
            return run.download(to, is_result, force=force)

    def delete(self, *, stored: bool = False) -> str | None:
        """Deletes the experiment on its cluster, and the cluster that was made for it."""
        from steppe.clusters import registry

        with self._naming_way_out():
            address = self.address
            left = self._settle_stored(address, erase=stored) if registry.knows(address.cluster) else None
            # Nothing can be deleted at a cluster that is gone or forgotten.
            if not ephemeral_cluster.delete(self.folder) and registry.knows(address.cluster):
                self.delete_there(address)
        return left

    def delete_there(self, address: ClusterAddress) -> None:
        """Deletes the experiment at an address, results included."""
        with reach(address) as (_, run):
            run.delete()

    def ends_with_run(self) -> bool:
        """Whether the run has completed on a cluster that was made for it alone."""
        return self.address.owns_cluster and self.status().state == "completed"

    def bring_home(self, tell: Tell) -> None:
        """Fetches the results into the run folder, then deletes the cluster that was made for the run."""
        ephemeral_cluster.fetch_and_delete(self.folder, lambda: self.fetch(self.folder.path, force=True), tell)

    def check_idle(self, status: Status, event: Event) -> None:
        """Raises an error that names the cluster."""
        if status.is_live:
            raise StateError(
                f'experiment "{self.folder.name}" is {status.state} already on cluster "{self.address.cluster}"; stop '
                f"it first: {self.folder.ways.stop}"
            )

    def has_checkpoint(self) -> bool:
        """True: only its Pods see its checkpoints, and they start anew if there is none."""
        return True

    def manifest(self) -> Mapping[str, Any]:
        """Checkpoints on a cluster are not read from here."""
        return {}

    def newest_checkpoint(self) -> int | None:
        """Checkpoints on a cluster are not read from here."""
        return None

    def watched(self, tell: Tell) -> AbstractContextManager[None]:
        """If following is interrupted, a process in the background takes over."""
        return handover.handing_over(self.folder, tell)

    def finish(self, tell: Tell) -> None:
        """Fetches the results of a completed run from a cluster that was made for it, and deletes that cluster."""
        if address_of(self.folder) is not None and self.ends_with_run():
            self.bring_home(tell)

    def leave(self, tell: Tell) -> None:
        """Starts a process in the background if something must be done at the end of the run."""
        handover.hand_over(self.folder, tell)

    def check_deletable(self) -> None:
        """Also asks the cluster, where the experiment may still run."""
        with self._naming_way_out():
            super().check_deletable()

    def describe(self) -> list[tuple[str, str]]:
        """The cluster and the namespace."""
        return [("cluster", f"{self.address.cluster}, namespace {self.address.namespace}")]

    def deleted_too(self) -> str:
        """Names the cluster if it was made for the experiment, else the results on it."""
        return ephemeral_cluster.deleted_too(self.folder) or f', and its results on cluster "{self.address.cluster}"'

    @contextlib.contextmanager
    def _starting(self, address: ClusterAddress) -> Iterator[None]:
        """Keeps other processes from starting it; a StateError if one has done so since `address` was read."""
        # Readers hold the lock for a moment while they look.
        descriptor = locks.acquire(self.folder.path, patience=0.5)
        try:
            if descriptor is None or (address_of(self.folder) or address).start != address.start:
                raise StateError(
                    f'experiment "{self.folder.name}" is being started by another process; see how it goes: '
                    f"{self.folder.ways.show}"
                )
            yield
        finally:
            if descriptor is not None:
                locks.release(descriptor)

    def _start(self, address: ClusterAddress, renew: bool) -> ClusterAddress:
        folder = self.folder
        is_known, status = address_of(folder) is not None, folder.read_status()
        address = dataclasses.replace(
            address, start=address.start + 1, generation=address.generation + renew, has_begun=True
        )
        with reach(address) as (reachable, run):
            made = placement.plan(folder, folder.spec(), reachable, address)
            run.check(made, is_known=is_known)
            # Before anything is made: Pods that no run folder names would run for ever.
            write_address(folder, dataclasses.replace(address, has_begun=False))
            try:
                run.start(made, is_known=is_known)
            except BaseException:
                with contextlib.suppress(ClusterError):
                    run.end_pods(address.start)
                    folder.write_status(status)
                    if is_known or run.origin == made.origin:
                        write_address(folder, address)
                    else:
                        (folder.path / CLUSTER_FILE).unlink()
                raise
            write_address(folder, address)
            folder.write_status(
                dataclasses.replace(status, state="starting", reason="", phase="its Pod is starting", finished=None)
            )
        return address

    def _ask_to_end(self, action: str, wanted: State, timeout: float) -> Status:
        folder, address = self.folder, self.address
        with reach(address) as (_, run):
            sight = _look_until_heard(run)
            seen = self._note(sight)
            folder.advance(seen.state, "stop" if action == "stop" else "ask_pause")
            if not seen.is_live:
                return self._end(run, seen, "stopped", "stopped while paused")
            if seen.state == "starting":
                # All training so far is saved. Only a driver knows whether there was any.
                if not seen.timestep and action == "pause" and sight.is_heard:
                    raise StateError(
                        f'experiment "{folder.name}" has not begun to train ({seen.phase or "starting"}), so there is '
                        f"nothing to pause; end it with: {folder.ways.stop}"
                    )
                return self._end(run, seen, wanted, f"{wanted} while its Pod was starting")
            run.ask(action)
            deadline = time.monotonic() + timeout
            while seen.is_live:
                if time.monotonic() > deadline:
                    raise SteppeError(
                        f'experiment "{folder.name}" is not {wanted} after {timeout:g} s; it is still {seen.state}'
                        f"{f' ({seen.phase})' if seen.phase else ''}; look again with: {folder.ways.show}"
                    )
                time.sleep(LOOK_SECONDS / 2)
                seen = self._note(run.look())
            self._settle(run, seen, address.start)
            return seen

    def _end(self, run: RemoteRun, seen: Status, state: State, reason: str) -> Status:
        seen = dataclasses.replace(seen, state=state, reason=reason, finished=time.time(), phase="")
        self._settle(run, seen, self.address.start)
        self._write(seen)
        return seen

    def _settle(self, run: RemoteRun, status: Status, start: int) -> None:
        """Ends the Pods of that start, and stores the last status on the cluster."""
        run.end_pods(start)
        if self.address.start == start:
            run.note(dataclasses.asdict(status))

    def _note(self, sight: PodHealth) -> Status:
        """The status according to the Pods, also written to status.json in case the cluster cannot be asked later."""
        status = status_seen(sight, self.folder.read_status())
        self._write(status)
        return status

    def _write(self, status: Status) -> None:
        if status != self.folder.read_status():
            self.folder.write_status(status)

    def _settle_stored(self, address: ClusterAddress, *, erase: bool) -> str | None:
        """Where in object storage the results stay; with `erase` they are deleted there."""
        with reach(address) as (_, run):
            if erase:
                run.erase_stored()
                return None
            with contextlib.suppress(ClusterError):
                return run.stored_at()
        return None

    @contextlib.contextmanager
    def _naming_way_out(self) -> Iterator[None]:
        """Adds to the error of an unreachable cluster how to delete an experiment there anyway."""
        try:
            yield
        except ClusterError as error:
            from steppe.platforms.kubernetes.client.kubeapi import KubeError

            address = address_of(self.folder)
            if address is None or not isinstance(error, KubeError) or error.code:
                raise
            way_out = (
                f"if that is gone for good: steppe cluster delete -c {address.cluster} --forget, and then this again"
            )
            raise ClusterError(f"{error}; {way_out}") from error


def _look_until_heard(run: RemoteRun) -> PodHealth:
    """Asks again for LISTEN_SECONDS if the driver does not answer: it may be busy, or an answer was lost."""
    deadline = time.monotonic() + LISTEN_SECONDS
    while (sight := run.look()).is_silent and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return sight
