"""Where text goes: one console, wide enough for pipes and logs."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Standard output; a pipe has no width, so nothing is cut or wrapped there."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=1000, soft_wrap=True)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines, its numbers to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def print_json(data: Any) -> None:
    """JSON for other programs."""
    print(json.dumps(data, indent=2))
