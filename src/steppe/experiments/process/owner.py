"""The owner of a running experiment: holds the lock, writes status and heartbeat, receives requests."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from steppe.errors import StorageError
from steppe.experiments.run_folder.states import Event
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.files.held_folder import FolderGone, HeldFolder
from steppe.files.run_files import LOG_FILE
from steppe.signals import EndRequest

if TYPE_CHECKING:
    from steppe.runners import Progress

HEARTBEAT_SECONDS = 1.0

log = logging.getLogger("steppe.experiments")


@contextmanager
def owning(folder: RunFolder, event: Event) -> Iterator[Owner]:
    """Takes the folder's lock and starts the heartbeat; both end with the block, or with the process."""
    with folder.lock(event) as before, contextlib.closing(HeldFolder(folder.path)) as held:
        folder.forget_requests()
        if event == "start" and folder.is_trained:
            # Results are never overwritten.
            folder.set_aside(before, LOG_FILE)
        owner = Owner(folder, before, held)
        owner.advance(
            event,
            reason="",
            pid=os.getpid(),
            host=socket.gethostname(),
            started=time.time(),
            finished=None,
            phase="",
            notices=(),
            before=dataclasses.asdict(before) if before.state == "completed" else None,
        )
        folder.reserve_disk()
        owner.start_heartbeat()
        try:
            yield owner
        finally:
            owner.end_heartbeat()
            if not owner.is_lost:
                folder.free_reserve()
                with contextlib.suppress(StorageError):
                    folder.forget_requests()
            elif held.is_at(folder.path):
                folder.remove_traces()


class Owner:
    """Writes status.json for as long as it holds the lock; no one else does."""

    def __init__(self, folder: RunFolder, status: Status, held: HeldFolder) -> None:
        self.folder = folder
        self.status = status
        self.held = held
        self.has_moved = False
        """Whether the folder is no longer where the run began."""
        self.is_lost = False
        """Whether the folder was deleted: then nothing is written, since another experiment may be at its path."""
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="steppe-heartbeat", daemon=True)

    def advance(self, event: Event, **fields: Any) -> None:
        """Makes one transition of the state machine and writes it to status.json."""
        with self._writing:
            status = self._following(event, **fields)
            self._follow_folder()
            self.folder.write_status(status)
            # Only now: a transition that could not be written has not happened.
            self.status = status

    def end(self, event: Event, reason: str, **fields: Any) -> None:
        """Makes the last transition; a resume that fails before it trains leaves a completed experiment completed."""
        with self._writing:
            if event == "fail" and self.status.before is not None:
                status = self.folder.withdrawn(self.status, reason)
            else:
                status = self._following(event, reason=reason, finished=time.time(), phase="", **fields)
            with contextlib.suppress(FolderGone):
                self._follow_folder()
                self.folder.write_last_status(status)
            self.status = status

    def note(self, progress: Progress) -> None:
        """Remembers how far the training is; the heartbeat writes it."""
        with self._writing:
            self.status = dataclasses.replace(self.status, phase=progress.phase, notices=progress.notices)
            if progress.phase == "compiling":
                # A resumed run keeps the figures with which it was paused.
                return
            self.status = dataclasses.replace(
                self.status,
                timestep=progress.timestep,
                episode=progress.episode,
                update=progress.update,
                mean_return=progress.mean_return,
                mean_length=progress.mean_length,
                best_return=progress.best_return,
                evaluation=None if progress.evaluation is None else dict(progress.evaluation),
                steps_per_second=progress.steps_per_second or None,
                seconds=progress.seconds,
            )

    def write_effective(self, settings: Mapping[str, Any]) -> None:
        """Notes in experiment.json which settings this run really has."""
        with self._writing:
            self._follow_folder()
            self.folder.write_effective(settings)

    def check_folder(self) -> None:
        """Raises FolderGone if the heartbeat has found the folder deleted."""
        if self.is_lost:
            with self._writing:
                self._follow_folder()

    def start_heartbeat(self) -> None:
        """Starts the thread that keeps the status fresh while the main thread is busy, as with a long compilation."""
        self._heart.start()

    def end_heartbeat(self) -> None:
        """Ends the heartbeat's thread."""
        self._over.set()
        self._heart.join()

    def _follow_folder(self) -> None:
        """Follows the folder if it was moved; FolderGone if it was deleted."""
        try:
            if self.is_lost:
                raise FolderGone(f"the experiment in {self.folder.path} was deleted while it trained")
            path = self.held.path
            if path != self.folder.path:
                log.warning("the run folder was moved to %s", path)
                self.folder.move_to(path)
                self.has_moved = True
            self.folder.keep_lock()
        except FolderGone:
            self.is_lost = True
            raise

    def _following(self, event: Event, **fields: Any) -> Status:
        state = self.folder.advance(self.status.state, event)
        if state != "starting":
            # Once it trains, the status before the resume is never restored.
            fields["before"] = None
        return dataclasses.replace(self.status, state=state, heartbeat=time.time(), **fields)

    def _beat(self) -> None:
        complained = False
        while not self._over.wait(HEARTBEAT_SECONDS):
            try:
                with self._writing:
                    if not self.status.is_live:
                        return  # the last status is written
                    self._follow_folder()
                    self.status = dataclasses.replace(self.status, heartbeat=time.time())
                    self.folder.write_status(self.status)
            except FolderGone:
                return  # the training ends at its next check for requests
            except StorageError as error:
                # The training itself ends with this error at its next checkpoint; a heartbeat must not end it.
                if not complained:
                    log.warning("the status cannot be written: %s", error)
                complained = True


class EndedEarly(BaseException):
    """A signal came before there was anything to save; a BaseException, so that it is not handled as an error."""


class Requests(EndRequest):
    """Requests to the running training: signals to this process, and request.json from another one."""

    def __init__(
        self, folder: RunFolder, announce: Callable[[str], None], on_termination: Literal["stop", "pause"] = "stop"
    ) -> None:
        super().__init__(on_termination)
        self.may_end_at_once = False
        """Whether a SIGTERM that asks for a pause ends the run where it is, since it has not begun to train."""
        self._folder = folder
        self._announce = announce
        self._is_logged = False

    def latest(self) -> str | None:
        """ "stop" or "pause" once asked for, else None; a stop outweighs a pause."""
        if self.action != "stop":
            self.action = self._folder.asked() or self.action
        if self.action and not self._is_logged:
            self._is_logged = True
            log.info("asked to %s", self.action)
        return self.action

    def received(self, number: signal.Signals) -> None:
        """Ends a run that has not begun to train; announces the effect of Ctrl-C."""
        if number == signal.SIGTERM and self._on_termination == "pause" and self.may_end_at_once:
            self.may_end_at_once = False
            raise EndedEarly
        if number == signal.SIGINT:
            self._announce("pausing: saving a checkpoint (Ctrl-C again ends at once)")
