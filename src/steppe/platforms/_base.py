"""What a platform does: it starts processes and tells whether they live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A process that a platform started."""

    @property
    def pid(self) -> int:
        """Its number on its host."""

    def exit_code(self) -> int | None:
        """How it ended (minus the signal's number if a signal ended it), or None while it runs."""

    def end(self) -> None:
        """Asks it to end (SIGTERM)."""


class Platform(Protocol):
    """Where processes run."""

    name: str

    def launch(self, command: list[str], log: Path, variables: Mapping[str, str] | None = None) -> Process:
        """Starts a command that outlives its caller; its output is added to the file `log`.

        `variables` are added to its environment.
        """
