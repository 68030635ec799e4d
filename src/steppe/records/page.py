"""Parts of the report's page: tables, tiles, and numbers in readable form; all text is escaped."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

_SHORT_FORMS = {"kl": "KL", "td": "TD"}


def document(title: str, body: str) -> str:
    """The whole page from page.html, whose content security policy forbids all requests."""
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    before, after = page.split("{body}")
    return before.replace("{title}", escape(title)) + body + after


def section(title: str, content: str) -> str:
    """A titled card, or nothing without content."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>\n" if content else ""


def beside(*sections: str) -> str:
    """Cards side by side if there is room."""
    return f'<div class="pair">{"".join(sections)}</div>'


def tile(name: str, value: str, more: str = "", kind: str = "") -> str:
    """One of the figures at the top."""
    below = f'<div class="more">{escape(more)}</div>' if more else ""
    shown = f'<div class="value">{escape(value)}</div>{below}'
    return f'<div class="tile {kind}"><dt>{escape(name)}</dt><dd>{shown}</dd></div>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    return settings((name, value, False) for name, value in rows)


def settings(rows: Iterable[tuple[str, str, bool]]) -> str:
    """A table of names and values; those that were given are bold."""
    cells = ((escape(name), f"<strong>{escape(v)}</strong>" if is_given else escape(v)) for name, v, is_given in rows)
    body = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in cells)
    return f'<table class="pairs">{body}</table>' if body else ""


def columns(head: list[str], rows: Iterable[Iterable[str]], numbers: int = 0) -> str:
    """A table with a head; cells are HTML; the last `numbers` columns are right-aligned."""
    kinds = [""] * (len(head) - numbers) + [' class="number"'] * numbers
    top = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def words(name: str) -> str:
    """A name from a file as words: policy_loss becomes policy loss."""
    return " ".join(_SHORT_FORMS.get(word, word) for word in name.split("_"))


def setting(value: Any) -> str:
    """A value of a spec in one line: yes, 0.99, "dense, size 64, activation tanh"."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.10g}"
    if isinstance(value, Mapping):
        kind = value.get("type", value.get("name"))
        first = [setting(kind)] if isinstance(kind, str) else []
        rest = [
            f"{words(str(k))} {setting(v)}" for k, v in value.items() if not (first and v == kind) and v is not None
        ]
        return ", ".join(first + rest) or "none"
    if isinstance(value, list | tuple):
        items = (f"({setting(item)})" if isinstance(item, list | tuple) else setting(item) for item in value)
        return ", ".join(items) or "none"
    return str(value)


def number(value: float | None) -> str:
    """A measured number with sensible digits: 487.2, 12,345, 0.0123."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 0.01:
        return f"{value:,.{max(0, 3 - math.floor(math.log10(size)) - 1)}f}" if size < 100 else f"{value:,.1f}"
    return f"{value:.3g}"


def counted(count: float, what: str) -> str:
    """A number of things: 1 episode, 350 episodes."""
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """A readable time span: 850 ms, 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None or seconds < 0:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, below, below_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {below_name}" if rest else "")
    return f"{whole} s"


def moment(epoch: float) -> str:
    """A date and time, in UTC since reports are sent around."""
    try:
        return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "–"


def size(count: int) -> str:
    """A file size: 512 B, 1.4 kB, 3.2 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return ""


def command(*arguments: str) -> str:
    """A command line to copy."""
    return f"<pre><code>{escape(shlex.join(arguments))}</code></pre>"
