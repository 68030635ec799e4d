"""What live displays share: a panel that draws itself, and lines for whoever reads no terminal."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from steppe.cli.console import console

if TYPE_CHECKING:
    from rich.console import RenderableType


class LivePanel(ABC):
    """Draws what `render` gives, five times a second, until it is left."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(get_renderable=self.render, console=console(), refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    @abstractmethod
    def render(self) -> RenderableType:
        """The panel as of now."""


def print_line(line: str) -> None:
    """Prints it at once; the work must survive a reader that went away, and a signal while a line is being printed."""
    with contextlib.suppress(OSError, RuntimeError):
        print(line, flush=True)
