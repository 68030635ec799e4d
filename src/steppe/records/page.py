"""The report's page around its content: style, skeleton, tables, numbers as people say them; all text is escaped."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#171a1f;--soft:#5b6472;--rule:#e3e6eb;--grid:#eceef2;
--line:#1f6fd6;--mark:#c2410c;--goal:#5b6472;--code:#f1f3f6;--good:#17663a;--bad:#b42318;--wait:#8a5a00}
@media (prefers-color-scheme:dark){:root{--page:#111418;--card:#1a1e24;--ink:#e9ecf1;--soft:#9aa4b2;--rule:#2b313a;
--grid:#252a32;--line:#64a8ff;--mark:#ffa057;--goal:#9aa4b2;--code:#232830;--good:#6fd39a;--bad:#ff8f85;--wait:#f2c14e}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:1040px;margin:0 auto;padding:36px 20px 56px}
h1{font-size:27px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 12px}
h3{font-size:14px;margin:0 0 6px;font-weight:600}
h3::first-letter{text-transform:uppercase}
p{margin:0 0 10px}
a{color:var(--line)}
.soft,.nothing,figcaption,dt{color:var(--soft)}
.state{display:inline-block;border:1px solid currentColor;border-radius:99px;padding:0 10px;font-size:13px;
font-weight:600;margin-right:8px}
.good{color:var(--good)}.bad{color:var(--bad)}.wait{color:var(--wait)}
section,.tile{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:20px 22px;margin-top:18px}
.tiles{display:grid;grid-template-columns:1.5fr 1fr 1fr 1fr;gap:14px;margin:22px 0 0}
.tile{margin:0;padding:14px 18px}
.tile dt{font-size:13px}
.tile dd{margin:0}
.tile .value{font-size:24px;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.3}
.tile.score .value{font-size:34px;line-height:1.2;color:var(--line)}
.tile .more{font-size:13px;color:var(--soft)}
.pair{display:grid;grid-template-columns:2fr 3fr;gap:0 18px}.pair>:only-child{grid-column:1/-1}
.pair>:only-child table{max-width:620px}
.small{display:grid;grid-template-columns:repeat(auto-fill,minmax(290px,1fr));gap:22px 26px}
.groups{columns:3 270px;column-gap:34px}.groups>div{break-inside:avoid;padding-bottom:20px}
.groups+p,footer{font-size:13px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft);
font-variant-numeric:tabular-nums}
.little{max-width:340px}
.grid{stroke:var(--grid)}.axis{stroke:var(--rule)}
.line{fill:none;stroke:var(--line);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.end{fill:var(--line);stroke:var(--card);stroke-width:1.5}
.mark{fill:var(--mark);stroke:var(--card);stroke-width:1.5}
.mark-area{fill:transparent}
.goal{stroke:var(--goal);stroke-dasharray:5 4}
svg .goal-label{fill:var(--goal)}
.at rect{fill:transparent}
.at line,.at circle,.at text{opacity:0;pointer-events:none}
.at line{stroke:var(--soft)}
.at circle{fill:var(--line);stroke:var(--card);stroke-width:1.5}
svg .at text{fill:var(--ink);font-weight:600;paint-order:stroke;stroke:var(--card);stroke-width:5px;
stroke-linejoin:round}
.at:hover line,.at:hover circle,.at:hover text{opacity:1}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;font-size:13px;color:var(--soft);margin:0 0 8px}
.legend svg{display:inline-block;width:22px;height:12px;vertical-align:-1px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 0;border-bottom:1px solid var(--rule);vertical-align:top;font-weight:400;
overflow-wrap:anywhere}
th{overflow-wrap:break-word;padding-right:16px;color:var(--soft)}
tr:last-child>*{border-bottom:0}
thead th{font-size:13px}
td{font-variant-numeric:tabular-nums}
td.number,th.number{text-align:right;padding-right:0;white-space:nowrap}
.pairs td{text-align:right}
.wide{overflow-x:auto}.wide td+td,.wide th+th{padding-left:14px}
pre{background:var(--code);border-radius:8px;padding:12px 14px;margin:0;white-space:pre-wrap;overflow-wrap:anywhere;
font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
details{margin-top:12px}
summary{cursor:pointer;color:var(--soft);font-size:13.5px}
details .wide{max-height:340px;overflow:auto;margin-top:8px}
img{display:block;max-width:100%;border-radius:8px;border:1px solid var(--rule)}
figure{margin:0}
figcaption{font-size:13px;margin-top:6px}
footer{margin-top:22px;color:var(--soft)}
.tall{display:none}
@media (max-width:720px){.tiles{grid-template-columns:repeat(3,1fr);gap:10px}.tile{padding:12px 14px}
.tile.score{grid-column:1/-1}.tile .value{font-size:20px}main{padding:22px 14px 40px}section{padding:16px}
.pair{grid-template-columns:minmax(0,1fr)}svg.large{display:none}svg.tall{display:block}}
@media print{body{background:#fff}section,.tile{break-inside:avoid}}
"""

_SHORT_FORMS = {"kl": "KL", "td": "TD"}


def document(title: str, body: str) -> str:
    """A whole page that asks the network for nothing, and is told not to."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """A titled card, or nothing where there is no content."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>\n" if content else ""


def beside(*sections: str) -> str:
    """Cards side by side where there is room."""
    return f'<div class="pair">{"".join(sections)}</div>'


def tile(name: str, value: str, more: str = "", kind: str = "") -> str:
    """One of the numbers at the top."""
    below = f'<div class="more">{escape(more)}</div>' if more else ""
    shown = f'<div class="value">{escape(value)}</div>{below}'
    return f'<div class="tile {kind}"><dt>{escape(name)}</dt><dd>{shown}</dd></div>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    body = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f'<table class="pairs">{body}</table>' if body else ""


def settings(rows: Iterable[tuple[str, str, bool]]) -> str:
    """A table of names and values, in bold type if they were given."""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{_emphasised(escape(value), is_given)}</td></tr>'
        for name, value, is_given in rows
    )
    return f'<table class="pairs">{body}</table>' if body else ""


def columns(head: list[str], rows: Iterable[Iterable[str]], numbers: int = 0) -> str:
    """A table with a head; cells are HTML already; the last `numbers` columns stand to the right."""
    kinds = [""] * (len(head) - numbers) + [' class="number"'] * numbers
    top = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _emphasised(text: str, is_given: bool) -> str:
    return f"<strong>{text}</strong>" if is_given else text


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
    """A time span as people say it: 850 ms, 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
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
    """A time of day, in UTC since a report travels."""
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
