"""What a worker logs and prints, kept until the driver asks for it: a run has one log."""

from __future__ import annotations

import logging
import sys
from io import TextIOBase
from typing import Any

MOST_LINES = 200
"""How many lines are kept between two reports; what a flood of them says is said by the first."""


class Listening:
    """Hears Python's logging and all that is printed, while the context lasts."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self._unheard = 0
        self._handler = _Handler(self)

    def __enter__(self) -> None:
        root, own = logging.getLogger(), logging.getLogger("steppe")
        root.addHandler(self._handler)
        own.setLevel(logging.INFO)
        self._before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = _Printed(self)  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._before
        logging.getLogger().removeHandler(self._handler)

    def hear(self, level: int, line: str) -> None:
        """Takes in one line."""
        if len(self._lines) < MOST_LINES:
            self._lines.append((level, line))
        else:
            self._unheard += 1

    def heard(self) -> list[tuple[int, str]]:
        """All lines since the last time."""
        lines, unheard = self._lines, self._unheard
        self._lines, self._unheard = [], 0
        return [*lines, (logging.WARNING, f"{unheard:,} more lines")] if unheard else lines


class _Handler(logging.Handler):
    def __init__(self, listening: Listening) -> None:
        super().__init__()
        self._listening = listening

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or record.name.partition(".")[0] == "steppe":
            self._listening.hear(record.levelno, self.format(record))


class _Printed(TextIOBase):
    """A file whose lines are heard."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._begun = ""

    def write(self, text: Any) -> int:
        """Whole lines; the rest waits."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self._listening.hear(logging.INFO, line)
        return len(text)
