"""A rate limit for log lines that anybody can cause: the first at once, then one every few seconds with a count."""

from __future__ import annotations

import logging
import time

LOG_SECONDS = 5.0
"""The least time between two such lines."""


class RatedLog:
    """Writes to a logger at a limited rate; used from one thread."""

    def __init__(self, log: logging.Logger, seconds: float = LOG_SECONDS) -> None:
        self._log, self._seconds = log, seconds
        self._silent_until = 0.0
        self._left_out, self._newest = 0, (logging.INFO, "")

    def warning(self, message: str, *arguments: object) -> None:
        """Writes a warning, or counts it if it is too soon."""
        self._write(logging.WARNING, message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        """The same at level INFO."""
        self._write(logging.INFO, message, arguments)

    @property
    def due(self) -> float | None:
        """The `time.monotonic` at which `flush` has something to write; None if nothing was left out."""
        return self._silent_until if self._left_out else None

    def flush(self, *, at_once: bool = False) -> None:
        """Writes the newest of the lines that were left out, with their count, once it is due."""
        if self._left_out and (at_once or time.monotonic() >= self._silent_until):
            count, (level, newest) = self._left_out, self._newest
            more = f" ({count} such connections since the last line)" if count > 1 else ""
            self._left_out, self._newest = 0, (logging.INFO, "")
            self._silent_until = time.monotonic() + self._seconds
            self._log.log(level, "%s%s", newest, more)

    def _write(self, level: int, message: str, arguments: tuple[object, ...]) -> None:
        if not self._log.isEnabledFor(level):
            return
        self.flush()
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + self._seconds
            self._log.log(level, message, *arguments)
            return
        self._left_out += 1
        if level >= self._newest[0]:
            self._newest = level, message % arguments
