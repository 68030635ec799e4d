"""Line charts as inline SVG, without scripts or requests: colours come from the page's style, readouts on hover."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """The size and margins of a chart, in its own units."""

    name: str
    width: float
    height: float
    left: float = 56
    right: float = 18
    top: float = 14
    bottom: float = 40
    across: int = 8
    """The approximate number of ticks on the x axis."""
    up: int = 5
    """The approximate number of ticks on the y axis."""
    strips: int = 90
    """The number of hover areas along x."""
    is_named: bool = True
    """Whether the axes have labels."""


LARGE = Frame("large", 920, 340)
TALL = Frame("tall", 440, 290, left=50, right=12, across=4, strips=60)
SMALL = Frame("little", 300, 150, left=44, right=10, top=8, bottom=22, across=4, up=3, strips=50, is_named=False)


@dataclass(frozen=True)
class Chart:
    """The content of a chart: one line of (x, y), and optionally marked points and a goal."""

    name: str
    line: Sequence[Point]
    x_label: str
    y_label: str
    marks: Sequence[Point] = ()
    marks_name: str = ""
    goal: float | None = None
    x_end: float = 0.0
    """The least end of the x axis, which begins at 0, so that charts of one run can be compared."""


def draw(chart: Chart, *frames: Frame) -> str:
    """The chart as an <svg> element for each frame, or a sentence if there is nothing to draw."""
    line, marks = (
        [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])] for points in (chart.line, chart.marks)
    )
    if not line and not marks:
        return f'<p class="nothing">No {escape(chart.name)} has been recorded yet.</p>'
    return "".join(_draw(chart, line, marks, frame) for frame in frames)


def ticks(low: float, high: float, about: int, widen: bool = True) -> list[float]:
    """About `about` round numbers (steps of 1, 2 or 5 times a power of ten) from `low` to `high`.

    With `widen` the first and the last enclose the range, so that they can bound an axis.
    """
    if high <= low:
        reach = abs(low) * 0.1 or 1.0
        low, high = low - reach, high + reach
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * 0.999)
    first, last = low / step, high / step
    if widen:
        start, stop = math.floor(first + 1e-9), math.ceil(last - 1e-9)
    else:
        start, stop = math.ceil(first - 1e-9), math.floor(last + 1e-9)
    # Rounding to the step's own digits turns 0.30000000000000004 into 0.3.
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(index * step, min(digits, 300)) + 0.0 for index in range(start, stop + 1)]


def short(value: float) -> str:
    """A number in the short form of an axis: 50k, 1.5M, 0.25, 1e-5."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if limit <= size < 1e12:
            return f"{value / limit:.4g}{unit}"
    if 1e-3 <= size < 1e3:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.3g}".split("e") if "e" in f"{value:.3g}" else f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` of the points, in order: the lowest and highest of each interval, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = 2 * len(points) / (most - 2)
    kept = {0, len(points) - 1}
    start = 0
    while start < len(points):
        stop = max(start + 1, min(len(points), math.ceil(start + size)))
        stretch = range(start, stop)
        kept.add(min(stretch, key=lambda i: points[i][1]))
        kept.add(max(stretch, key=lambda i: points[i][1]))
        start = stop
    return [points[i] for i in sorted(kept)]


def _draw(chart: Chart, line: list[Point], marks: list[Point], frame: Frame) -> str:
    everything = [*line, *marks]
    heights = [y for _, y in everything] + ([chart.goal] if chart.goal is not None else [])
    x_low, x_high = min(0.0, *(x for x, _ in everything)), max(chart.x_end, *(x for x, _ in everything))
    if x_low == x_high:
        x_high = x_low + 1
    x_ticks = ticks(x_low, x_high, frame.across, widen=False)
    y_ticks = ticks(min(heights), max(heights), frame.up)
    scale = _Scale(frame, x_low, x_high, min(y_ticks[0], *heights), max(y_ticks[-1], *heights))
    box = f"0 0 {frame.width:g} {frame.height:g}"
    parts = [
        f'<svg class="{frame.name}" viewBox="{box}" role="img" aria-label="{escape(_summary(chart, line))}">',
        *_axes(chart, frame, scale, x_ticks, y_ticks),
        *_goal(chart, frame, scale),
        *_line(thin(line, 700), scale),
        *_marks(marks, scale),
        *_readouts(chart, line, frame, scale),
        *_mark_readouts(chart, marks, scale),
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True)
class _Scale:
    frame: Frame
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        inner = self.frame.width - self.frame.left - self.frame.right
        return round(self.frame.left + inner * (value - self.x_low) / (self.x_high - self.x_low), 1)

    def y(self, value: float) -> float:
        inner = self.frame.height - self.frame.top - self.frame.bottom
        return round(self.frame.top + inner * (self.y_high - value) / (self.y_high - self.y_low), 1)


def _axes(chart: Chart, frame: Frame, scale: _Scale, x_ticks: list[float], y_ticks: list[float]) -> list[str]:
    right, bottom = frame.width - frame.right, frame.height - frame.bottom
    parts = []
    for value in y_ticks:
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{frame.left}" y1="{y}" x2="{right}" y2="{y}"/>')
        parts.append(f'<text x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for value in x_ticks:
        x = scale.x(value)
        parts.append(f'<line class="axis" x1="{x}" y1="{bottom}" x2="{x}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{short(value)}</text>')
    parts.append(f'<line class="axis" x1="{frame.left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    if frame.is_named:
        middle = (frame.left + right) / 2
        parts.append(f'<text x="{middle:g}" y="{frame.height - 5}" text-anchor="middle">')
        parts.append(f"{escape(chart.x_label)}</text>")
        parts.append(f'<text class="upright" transform="translate(13 {(frame.top + bottom) / 2:g}) rotate(-90)"')
        parts.append(f' text-anchor="middle">{escape(chart.y_label)}</text>')
    return parts


def _goal(chart: Chart, frame: Frame, scale: _Scale) -> list[str]:
    if chart.goal is None:
        return []
    y = scale.y(chart.goal)
    return [
        f'<line class="goal" x1="{frame.left}" y1="{y}" x2="{frame.width - frame.right}" y2="{y}"/>',
        f'<text class="goal-label" x="{frame.left + 6}" y="{y - 5:.1f}">goal {short(chart.goal)}</text>',
    ]


def _line(points: list[Point], scale: _Scale) -> list[str]:
    if not points:
        return []
    x, y = scale.x(points[-1][0]), scale.y(points[-1][1])
    path = "M" + "L".join(f"{scale.x(px)} {scale.y(py)}" for px, py in points)
    return [f'<path class="line" d="{path}"/>', f'<circle class="end" cx="{x}" cy="{y}" r="3.5"/>']


def _marks(points: list[Point], scale: _Scale) -> list[str]:
    return [
        f'<path class="mark" d="M{scale.x(x)} {scale.y(y) - 6:.1f}l6 6l-6 6l-6 -6z"/>' for x, y in thin(points, 120)
    ]


def _readouts(chart: Chart, line: list[Point], frame: Frame, scale: _Scale) -> list[str]:
    """A hover area for every few points, which shows a vertical line, the point and its numbers."""
    if not line:
        return []
    every = math.ceil(len(line) / frame.strips)
    points = line[::-1][::every][::-1]
    top, bottom = frame.top, frame.height - frame.bottom
    edges = [(scale.x(a[0]) + scale.x(b[0])) / 2 for a, b in itertools.pairwise(points)]
    edges = [frame.left, *edges, frame.width - frame.right]
    parts = []
    for (x, y), begin, end in zip(points, edges[:-1], edges[1:], strict=True):
        at, anchor = scale.x(x), "start" if scale.x(x) < frame.width * 0.6 else "end"
        beside = at + (8 if anchor == "start" else -8)
        parts.append(
            f'<g class="at"><rect x="{begin:.1f}" y="{top}" width="{max(end - begin, 0.1):.1f}"'
            f' height="{bottom - top}"/><line x1="{at}" y1="{top}" x2="{at}" y2="{bottom}"/>'
            f'<circle cx="{at}" cy="{scale.y(y)}" r="4"/><text x="{beside:.1f}" y="{top + 12}"'
            f' text-anchor="{anchor}">{escape(_reading(chart.x_label, x, y))}</text></g>'
        )
    return parts


def _mark_readouts(chart: Chart, marks: list[Point], scale: _Scale) -> list[str]:
    return [
        f'<circle class="mark-area" cx="{scale.x(x)}" cy="{scale.y(y)}" r="9">'
        f"<title>{escape(chart.marks_name)}: {escape(_reading(chart.x_label, x, y))}</title></circle>"
        for x, y in thin(marks, 120)
    ]


def _reading(x_label: str, x: float, y: float) -> str:
    return f"{short(y)} at {short(x)} {x_label}"


def _summary(chart: Chart, line: list[Point]) -> str:
    if not line:
        return f"{chart.name}: only {chart.marks_name}"
    first, last = line[0], line[-1]
    best = max(line, key=lambda point: point[1])
    return (
        f"{chart.name}: from {_reading(chart.x_label, *first)} to {_reading(chart.x_label, *last)};"
        f" highest {_reading(chart.x_label, *best)}"
    )
