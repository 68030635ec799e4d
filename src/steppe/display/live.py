"""The base of all displays: a live panel for terminals, lines at growing intervals for pipes."""

from __future__ import annotations

import builtins
import contextlib
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from steppe.display.console import console

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

FIRST_SECONDS, LONGEST_SECONDS = 3.0, 300.0
SHARE = 0.1
KEYS_COLUMNS = 4
"""Columns that a live display leaves free. A terminal writes `^C` where the cursor is; at the end of a full line that
would move the cursor to the next line, and Rich would no longer find the first line of the display to erase it."""


class LinePace:
    """When the next line is due: every 3 s at first, then every tenth of the time that has passed, at most 5 min."""

    def __init__(self, *, at_once: bool = False, seconds: float = FIRST_SECONDS, share: float = SHARE) -> None:
        self._began = time.monotonic()
        self._seconds, self._share = seconds, share
        self._next = self._began + (0.0 if at_once else seconds)

    def is_due(self) -> bool:
        """Whether it is time for a line; if so, the next one is put off."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + min(LONGEST_SECONDS, max(self._seconds, self._share * (now - self._began)))
        return True


def is_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, whose outputs can be replaced."""
    get_ipython = getattr(builtins, "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


class QuietDisplay:
    """Shows nothing; the base of all displays, which are context managers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def announce(self, sentence: str) -> None:
        """Shows a sentence at once."""


class LivePanel(ABC):
    """Draws the result of `render` five times a second until the block ends."""

    most_announced = 1000
    """How many sentences stay below the figures."""

    def __init__(self) -> None:
        from rich.live import Live

        self._announced: list[str] = []
        self._live = Live(get_renderable=self._narrower, console=console(), refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    def announce(self, sentence: str) -> None:
        """Shows a sentence below the figures until the end."""
        self._announced = [*self._announced, sentence][-self.most_announced :]

    @abstractmethod
    def render(self) -> RenderableType:
        """The panel as of now."""

    def _narrower(self) -> RenderableType:
        return _Narrower(self.render())


class _Narrower:
    """Leaves KEYS_COLUMNS free at the end of every line."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        narrower = options.update(width=max(1, options.max_width - KEYS_COLUMNS))
        for line in console.render_lines(self._drawn, narrower, pad=False):
            yield from line
            yield Segment.line()


def print_line(line: str, end: str = "\n") -> None:
    """Prints a line at once; the work survives a closed pipe, and a signal while a line is printed."""
    with contextlib.suppress(OSError, RuntimeError):
        print(line, end=end, flush=True)
