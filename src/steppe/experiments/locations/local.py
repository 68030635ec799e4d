"""Runs on this machine: a process owns the run folder, and requests to it are files in that folder."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from steppe.errors import StateError, SteppeError, UserError
from steppe.experiments.locations._base import WAIT_SECONDS, IsRunning, Location, ReadLog, Started, Tell
from steppe.experiments.run_folder.states import Event, State
from steppe.experiments.run_folder.store import RunFolder, Status, is_own
from steppe.files.durable import storing
from steppe.files.run_files import REQUEST_FILE

LOOK_SECONDS = 0.05
"""How often the status of a run that was asked to end is read."""


class LocalLocation(Location):
    """A run on this machine."""

    is_here = True
    poll_seconds = 0.3
    trainer = None

    def status(self) -> Status:
        """The status of the run folder, checked against its owner's lock."""
        return self.folder.local_status()

    def start(self, *, resume: bool = False, force: bool = False, tell: Tell = lambda line: None) -> Started:
        """Starts a process that trains the experiment, and waits until it owns the run folder."""
        from steppe import runners
        from steppe.platforms import LocalPlatform

        runners.release()  # the other process makes environments of its own
        logged = log_size(self.folder)
        process = LocalPlatform().launch(training_command(self.folder, resume=resume), log=self.folder.log)
        while True:
            exit_code = process.exit_code()
            if self.folder.read_status().pid == process.pid:
                return Started(f"is training in process {process.pid}", process.pid)
            if exit_code is not None:
                break
            time.sleep(0.02)
        raise SteppeError(f'experiment "{self.folder.name}" could not be started: {last_words(self.folder, logged)}')

    def pause(self, timeout: float = WAIT_SECONDS) -> Status:
        """Leaves a request for the owner and waits until the run has paused."""
        self.folder.advance(self.status().state, "ask_pause")
        self.folder.ask("pause")
        return self._wait_until_ended("paused", timeout)

    def stop(self, timeout: float = WAIT_SECONDS) -> Status:
        """Leaves a request for the owner and waits until the run has stopped."""
        status = self.status()
        self.folder.advance(status.state, "stop")
        if status.is_live:
            self.folder.ask("stop")
            return self._wait_until_ended("stopped", timeout)
        with self.folder.lock("stop") as status:
            state = self.folder.advance(status.state, "stop")
            status = dataclasses.replace(status, state=state, reason="stopped while paused", finished=time.time())
            self.folder.write_status(status)
        return status

    def follow(self, on_status: Callable[[Status], None], pause: float | None = None) -> Status:
        """Looks at status.json until no process owns the run."""
        while True:
            status = self.status()
            on_status(status)
            if not status.is_live:
                return status
            time.sleep(self.poll_seconds if pause is None else pause)

    @contextlib.contextmanager
    def log(self) -> Iterator[tuple[ReadLog, IsRunning]]:
        """Reads log.txt."""

        def read(offset: int, wait: bool) -> bytes:
            if self.folder.log.exists():
                with self.folder.log.open("rb") as file:
                    file.seek(offset)
                    return file.read()
            if not wait and not offset:
                raise StateError(f'experiment "{self.folder.name}" has no log yet; it is {self.status().state}')
            return b""

        yield read, lambda: self.status().is_live

    def files(self, status: Status) -> tuple[list[tuple[str, int]], str]:
        """The files of the run folder."""
        return sizes_here(self.folder), ""

    def download(self, to: Path, *, force: bool = False, tell: Tell = lambda line: None) -> list[Path]:
        """Copies the results out of the run folder."""
        path = self.folder.path
        copies = {source: to / source.relative_to(path) for source in self.folder.files() if _is_result(source, path)}
        existing = [copy for copy in copies.values() if copy.exists()]
        if existing and not force:
            raise UserError(f"{existing[0]} exists already; choose another --to, or use --force to replace it")
        copied = {source: copy for source, copy in copies.items() if _copy(source, copy)}
        # A running experiment removes its oldest checkpoint: an incomplete copy of it is deleted.
        for source in [source for source in copied if not source.parent.exists()]:
            copy = copied.pop(source)
            with contextlib.suppress(OSError):
                copy.unlink()
                copy.parent.rmdir()
        return list(copied.values())

    def delete(self, *, stored: bool = False) -> str | None:
        """Only deletes a cluster made for an interrupted start: all else is in the run folder."""
        from steppe.experiments.on_cluster import ephemeral_cluster

        ephemeral_cluster.delete(self.folder)
        return None

    def check_idle(self, status: Status, event: Event) -> None:
        """Raises an error that names the owner's process."""
        if status.is_live:
            with self.folder.lock(event):
                pass  # not refused if the owner has ended just now

    def has_checkpoint(self) -> bool:
        """Whether the run folder has a checkpoint."""
        return has_checkpoint(self.folder)

    def manifest(self) -> Mapping[str, Any]:
        """The manifest of the newest checkpoint in the run folder."""
        from steppe.records.checkpoints import latest_manifest

        return latest_manifest(self.folder.path)

    def newest_checkpoint(self) -> int | None:
        """The timestep of the newest checkpoint in the run folder."""
        from steppe.records.checkpoints import list_checkpoints

        return max(list_checkpoints(self.folder.path), default=None)

    def set_aside(self, status: Status) -> None:
        """Moves earlier results to a dated folder."""
        self.folder.set_aside(status)

    def deleted_too(self) -> str:
        """Names the cluster made for an interrupted start."""
        from steppe.experiments.on_cluster import ephemeral_cluster

        return ephemeral_cluster.deleted_too(self.folder)

    def _wait_until_ended(self, wanted: State, timeout: float) -> Status:
        deadline = time.monotonic() + timeout
        while (status := self.status()).is_live:
            if time.monotonic() > deadline:
                raise SteppeError(
                    f'experiment "{self.folder.name}" is not {wanted} after {timeout:g} s; it is still {status.state}'
                    f"{f' ({status.phase})' if status.phase else ''} and ends after its current chunk of training; "
                    f"look again with: {self.folder.ways.show}"
                )
            time.sleep(LOOK_SECONDS)
        return status


def training_command(folder: RunFolder, *, resume: bool = False) -> list[str]:
    """The command of a process that trains the prepared experiment."""
    more = ["--resume"] if resume else []
    return [sys.executable, "-P", "-m", "steppe.experiments.process.run", str(folder.path), *more]


def has_checkpoint(folder: RunFolder) -> bool:
    """Whether the run folder has anything to resume from."""
    from steppe.records.checkpoints import list_checkpoints

    return bool(list_checkpoints(folder.path))


def sizes_here(folder: RunFolder) -> list[tuple[str, int]]:
    """(path, size) of every file in a run folder of this machine."""
    found = []
    for path in folder.files():
        # A running experiment may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.append((path.relative_to(folder.path).as_posix(), path.stat().st_size))
    return found


def log_size(folder: RunFolder) -> int:
    """The current size of log.txt in bytes."""
    return folder.log.stat().st_size if folder.log.exists() else 0


def last_words(folder: RunFolder, logged: int) -> str:
    """The last line that a process added to a log of `logged` bytes."""
    data = folder.log.read_bytes()[logged:] if folder.log.exists() else b""
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "its process ended at once"


def _is_result(path: Path, folder: Path) -> bool:
    below = path.relative_to(folder)
    return not any(is_own(part) for part in below.parts) and below.name != REQUEST_FILE


def _copy(source: Path, copy: Path) -> bool:
    """Copies a file; returns whether the source still existed."""
    with storing(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(source, copy)
        except FileNotFoundError:
            if source.exists():
                raise
            return False
    return True
