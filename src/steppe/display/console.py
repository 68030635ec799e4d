"""The console of all output: it never breaks a command or a name, and breaks no line in a pipe."""

from __future__ import annotations

import json
import re
import textwrap
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

COMMAND = re.compile(r"(?<![\w./-])(?:steppe|tfcli|tensorboard|pip|kubectl|curl|openssl) [^;,()\"]*")
"""A command inside a sentence."""
PROSE = {"WHAT IT DOES", "WHAT IT IS", "OPTIONS", "TYPE", "DEFAULT"}
"""Columns whose text may be wrapped; the text of others is never broken."""
GAP = 2
LONGEST_WORD = 28
"""A column of prose is at least as wide as its longest word, or this."""
BELOW = 6
"""The indent of a last column's prose if it stands below its row."""
KEPT_SPACE = "\0"
UNIT = re.compile(r"(?<=\d) (?=[A-Za-z])")
"""The space between a number and its unit."""
STAR = re.compile(r" (?=\*$)")
"""The space before the star of a setting that was given."""


class Console(RichConsole):
    """Breaks sentences between words, but neither commands nor names: both are there to be copied."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints as Rich does, with strings wrapped by `wrapped`."""
        if self.is_terminal and objects and all(isinstance(each, str) for each in objects):
            objects = tuple(wrapped(each, self.width) for each in objects)
            options = {"soft_wrap": True, **options}
        elif any(isinstance(each, FittingTable) for each in objects):
            options = {"crop": False, **options}
        super().print(*objects, **options)


class FittingTable:
    """A table of strings without lines.

    If the terminal is too narrow it leaves out columns, and if that is not enough the prose of its last column stands
    below each row.
    """

    def __init__(self, columns: tuple[str, ...], right: tuple[str, ...], drop: tuple[str, ...]) -> None:
        self._columns, self._right, self._drop = columns, right, drop
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Adds one cell for each column; the cells may have Rich's markup."""
        self._rows.append(cells)

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """Renders the columns that fit, and a line that names the others."""
        shown, drop = list(range(len(self._columns))), [self._columns.index(column) for column in self._drop]
        while drop and self._narrowest(shown) > options.max_width:
            shown.remove(drop.pop(0))
        below = shown.pop() if self._is_prose_below(shown, options.max_width) else None
        # If even this is too wide the terminal breaks the lines; the table cuts no name.
        room = options.update(width=max(options.max_width, self._narrowest(shown)))
        widths = self._widths(shown, options.max_width)
        if below is None:
            yield from console.render(self._made(widths, self._rows), room)
        else:
            yield from console.render(self._made(widths, []), room)
            for row in self._rows:
                yield from console.render(self._made(widths, [row], show_header=False), room)
                prose = Text.from_markup(row[below])
                yield from console.render(Padding(prose, (0, 0, 0, BELOW), expand=False), options)
        if left_out := [name for number, name in enumerate(self._columns) if number not in (*shown, below)]:
            yield Text(f"not shown, as the terminal is too narrow: {', '.join(left_out)}", style="dim")

    def _is_prose_below(self, shown: list[int], room: int) -> bool:
        """Whether the last column has no room beside the others, and may stand below them."""
        return len(shown) > 1 and self._columns[shown[-1]] in PROSE and self._narrowest(shown) > room

    def _made(self, widths: dict[int, int], rows: list[tuple[str, ...]], *, show_header: bool = True) -> Table:
        """These rows as a Rich table."""
        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0), show_header=show_header)
        for number, width in widths.items():
            name = self._columns[number]
            made.add_column(name, justify="right" if name in self._right else "left", width=width, overflow="fold")
        for row in rows:
            made.add_row(*(row[number] for number in widths))
        return made

    def _narrowest(self, shown: list[int]) -> int:
        """The least total width of these columns."""
        return sum(self._width(number) + GAP for number in shown) - GAP

    def _widths(self, shown: list[int], room: int) -> dict[int, int]:
        """The width of each column: spare room goes to columns of prose, by how much they can use."""
        widths = {number: self._width(number) for number in shown}
        wanted = {number: self._width(number, whole=True) - width for number, width in widths.items()}
        left = max(0, room - self._narrowest(shown))
        share = min(1.0, left / max(1, sum(wanted.values())))
        return {number: width + int(share * wanted[number]) for number, width in widths.items()}

    def _width(self, number: int, whole: bool = False) -> int:
        """The width of a column's widest text; unless `whole`, prose may be wrapped between its words."""
        texts = [self._columns[number], *(Text.from_markup(row[number]).plain for row in self._rows)]
        if whole or self._columns[number] not in PROSE:
            return max(cell_len(text) for text in texts)
        return min(LONGEST_WORD, max(cell_len(word) for text in texts for word in text.split() or [""]))


def console() -> Console:
    """Standard output; a pipe has no width, so nothing is cut or wrapped there."""
    out = Console(highlight=False, emoji=False)
    return out if out.is_terminal else Console(highlight=False, emoji=False, width=1000, soft_wrap=True)


def wrapped(text: str, width: int) -> str:
    """The text in lines of `width`, broken between words only and never within a command."""
    return "\n".join(_wrapped_line(line, width) for line in text.split("\n"))


def _wrapped_line(line: str, width: int) -> str:
    if len(line) <= width or COMMAND.match(line.lstrip()) or len(line.split()) <= 2:
        # It fits, or is a command, or a label with a path.
        return line
    whole = COMMAND.sub(lambda found: found[0].rstrip().replace(" ", KEPT_SPACE) + _ending(found[0]), line)
    whole = STAR.sub(KEPT_SPACE, UNIT.sub(KEPT_SPACE, whole))
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = textwrap.wrap(
        whole,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return "\n".join(lines).replace(KEPT_SPACE, " ")


def _ending(text: str) -> str:
    return text[len(text.rstrip()) :]


def table(*columns: str, right: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> FittingTable:
    """A table; columns in `right` are right-aligned, those in `drop` are left out in this order if room is short."""
    return FittingTable(columns, right, drop)


def print_json(data: Any) -> None:
    """Prints JSON for other programs."""
    print(json.dumps(data, indent=2))
