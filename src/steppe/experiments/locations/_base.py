"""The interface of a location: everything that depends on where a run lives."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from steppe.experiments.run_folder.states import Event
from steppe.experiments.run_folder.store import RunFolder, Status

Tell = Callable[[str], None]
ReadLog = Callable[[int, bool], bytes]
IsRunning = Callable[[], bool]

WAIT_SECONDS = 120.0
"""How long `pause` and `stop` wait by default."""


@dataclass(frozen=True)
class Started:
    """An experiment that trains outside of this process."""

    sentence: str
    """Where it trains: `is training in process 12`."""
    pid: int | None = None
    """Its process, if that is on this machine."""


class Location(ABC):
    """Where the run of one experiment lives, and how to look at it and control it there."""

    is_here: ClassVar[bool]
    """Whether it trains, and leaves its results, on this machine."""
    poll_seconds: ClassVar[float]
    """How often the status is read while a run is followed."""
    trainer: ClassVar[str | None]
    """The noun for the trainer there, if it cannot use Python objects of this process."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    @abstractmethod
    def status(self) -> Status:
        """The current status; a run that has died is recorded as failed."""

    @abstractmethod
    def start(self, *, resume: bool = False, force: bool = False, tell: Tell = lambda line: None) -> Started:
        """Starts the prepared experiment outside of this process and returns once it has begun."""

    @abstractmethod
    def pause(self, timeout: float = WAIT_SECONDS) -> Status:
        """Asks the run to save a checkpoint and pause, and waits until it has."""

    @abstractmethod
    def stop(self, timeout: float = WAIT_SECONDS) -> Status:
        """Asks the run to save a checkpoint and stop, and waits until it has; a paused one is marked stopped."""

    @abstractmethod
    def follow(self, on_status: Callable[[Status], None], pause: float | None = None) -> Status:
        """Calls `on_status` with each status read until the run has ended; returns the last one."""

    @abstractmethod
    def log(self) -> AbstractContextManager[tuple[ReadLog, IsRunning]]:
        """Yields `(read_log, is_running)`; `read_log(offset, wait)` returns log bytes from `offset`.

        Both may be called repeatedly. With `wait` a log that is not there yet is empty instead of an error.
        """

    @abstractmethod
    def files(self, status: Status) -> tuple[list[tuple[str, int]], str]:
        """(path, size) of all files that can be seen from here, and a sentence on where the others are, if any."""

    @abstractmethod
    def download(self, to: Path, *, force: bool = False, tell: Tell = lambda line: None) -> list[Path]:
        """Copies the results to the folder `to`; existing files are refused, or replaced with `force`."""

    @abstractmethod
    def delete(self, *, stored: bool = False) -> str | None:
        """Deletes everything outside the run folder; returns where results stay in object storage, if they do.

        With `stored` they are deleted there too.
        """

    @abstractmethod
    def check_idle(self, status: Status, event: Event) -> None:
        """Raises a StateError if the experiment is running."""

    @abstractmethod
    def has_checkpoint(self) -> bool:
        """Whether there is anything to resume from, as far as that can be seen from here."""

    @abstractmethod
    def manifest(self) -> Mapping[str, Any]:
        """The manifest of the newest checkpoint; empty if it cannot be read from here."""

    @abstractmethod
    def newest_checkpoint(self) -> int | None:
        """The timestep of the newest checkpoint; None if it cannot be seen from here."""

    def set_aside(self, status: Status) -> None:  # noqa: B027
        """Moves the results of an earlier run to a dated folder; only for the holder of the folder's lock."""

    def watched(self, tell: Tell) -> AbstractContextManager[None]:
        """Surrounds following a run: if that is interrupted, the work at the run's end is still done."""
        return contextlib.nullcontext()

    def finish(self, tell: Tell) -> None:  # noqa: B027
        """Does the work that remains for this machine after the run has ended."""

    def leave(self, tell: Tell) -> None:  # noqa: B027
        """Makes sure that `finish` is called though nobody follows the run."""

    def check_deletable(self) -> None:
        """Raises a StateError if the experiment's state forbids to delete it."""
        self.folder.advance(self.status().state, "delete")

    def describe(self) -> list[tuple[str, str]]:
        """(label, text) of each fact about the location that is shown to users."""
        return []

    def deleted_too(self) -> str:
        """A clause that names the things deleted with the run folder."""
        return ""
