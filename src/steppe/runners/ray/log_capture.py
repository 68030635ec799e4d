"""Captures the log and output of a worker for the run's log, which the driver writes."""

from __future__ import annotations

import logging
import sys
from io import TextIOBase
from typing import Any, TextIO

MOST_LINES = 200
"""The most lines kept between two reports; of more only the first are kept."""


class LogCapture:
    """Captures Python's logging and everything printed, while the context lasts."""

    def __init__(self, most_lines: int = MOST_LINES, *, passes_on: bool = False) -> None:
        """With `passes_on`, printed lines and warnings also go to their original stream."""
        self._most, self._passes_on = most_lines, passes_on
        self._lines: list[tuple[int, str]] = []
        self._unheard = 0
        self._handler = _CaptureHandler(self)

    def __enter__(self) -> None:
        root, own = logging.getLogger(), logging.getLogger("steppe")
        self._before = sys.stdout, sys.stderr
        # Without any handler Python prints warnings; with this handler it would no longer.
        self._handler.printed = self._before[1] if self._passes_on and not root.handlers else None
        root.addHandler(self._handler)
        own.setLevel(logging.INFO)
        passed_on = self._before if self._passes_on else (None, None)
        sys.stdout, sys.stderr = (_CapturedStream(self, to) for to in passed_on)  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._before
        logging.getLogger().removeHandler(self._handler)

    def add(self, level: int, line: str) -> None:
        """Adds one line."""
        if len(self._lines) < self._most:
            self._lines.append((level, line))
        else:
            self._unheard += 1

    def take_lines(self) -> list[tuple[int, str]]:
        """Returns all lines since the last call."""
        lines, unheard = self._lines, self._unheard
        self._lines, self._unheard = [], 0
        return [*lines, (logging.WARNING, f"{unheard:,} more lines")] if unheard else lines


class _CaptureHandler(logging.Handler):
    def __init__(self, capture: LogCapture) -> None:
        super().__init__()
        self._capture = capture
        self.printed: TextIO | None = None
        """The stream to which warnings are printed too, or None."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or record.name.partition(".")[0] == "steppe":
            self._capture.add(record.levelno, self.format(record))
        if record.levelno >= logging.WARNING and self.printed is not None:
            print(self.format(record), file=self.printed, flush=True)


class _CapturedStream(TextIOBase):
    """A text stream whose lines are captured."""

    def __init__(self, capture: LogCapture, passed_on: TextIO | None) -> None:
        self._capture, self._passed_on = capture, passed_on
        self._begun = ""

    def write(self, text: Any) -> int:
        """Captures complete lines; the rest waits."""
        if self._passed_on is not None:
            self._passed_on.write(text)
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self._capture.add(logging.INFO, line)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream that lines are passed on to."""
        if self._passed_on is not None:
            self._passed_on.flush()

    def fileno(self) -> int:
        """For child processes, whose output goes to the original stream."""
        return super().fileno() if self._passed_on is None else self._passed_on.fileno()
