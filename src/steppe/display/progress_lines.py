"""Progress of a long operation: one line that changes on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from steppe.display.console import console
from steppe.display.text import duration


@contextlib.contextmanager
def telling(out: Console | None = None, *, is_quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a line; the same line is not shown twice in a row.

    Everything else that is printed meanwhile must go to `out`, or it breaks the line that changes.
    """
    out, begin, last = out or console(), time.monotonic(), ""

    def tell(line: str) -> None:
        nonlocal last
        if line != last and not is_quiet:
            out.print(f"{duration(time.monotonic() - begin)}: {line}", markup=False)
        last = line

    if is_quiet or not out.is_terminal:
        yield tell
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=out, transient=True) as progress:
        task = progress.add_task("...", total=None)
        yield lambda line: progress.update(task, description=line)
