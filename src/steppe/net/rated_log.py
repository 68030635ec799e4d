"""Log lines about what anybody can cause: the first at once, then one in a few seconds that counts the others."""

from __future__ import annotations

import logging
import time

LOG_SECONDS = 5.0
"""How often such a line is written at most."""


class RatedLog:
    """Writes to a logger at a limited rate; used from one thread."""

    def __init__(self, log: logging.Logger, seconds: float = LOG_SECONDS) -> None:
        self._log, self._seconds = log, seconds
        self._silent_until = 0.0
        self._left_out, self._newest = 0, (logging.INFO, "")

    def warning(self, message: str, *arguments: object) -> None:
        """A line, or one more that is left out."""
        self._write(logging.WARNING, message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        """A line of less weight."""
        self._write(logging.INFO, message, arguments)

    @property
    def due(self) -> float | None:
        """When `flush` has something to write, as `time.monotonic` counts; None if nothing was left out."""
        return self._silent_until if self._left_out else None

    def flush(self, *, at_once: bool = False) -> None:
        """Tells of the lines that were left out, once it is time to."""
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
