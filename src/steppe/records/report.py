"""The report: one HTML file that tells a run's story to a person, wherever the file is sent.

It is made from the run folder alone (experiment.json, status.json, metrics.jsonl, videos/), at any moment of the run,
and copes with any of them missing or broken.
"""

from __future__ import annotations

import base64
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from steppe.errors import StorageError
from steppe.records import charts, page
from steppe.records.durable import write_atomically
from steppe.records.metrics import read_metrics

FILE = "report.html"
_MOST_VIDEO_BYTES = 5_000_000
_TABLE_ROWS = 60

# Drawn small, in this order, before the rest in the order of its first appearance.
_FIRST = ("loss", "policy_loss", "value_loss", "entropy", "steps_per_second", "mean_length", "evaluation_length")
_NOT_DRAWN = frozenset({"time", "timestep", "episode", "update", "worker", "event", "mean_return", "evaluation_return"})
_STATES = {"completed": "good", "failed": "bad", "stopped": "bad"}
_FILES = (
    ("experiment.json", "the experiment: every setting"),
    ("status.json", "the state of the run"),
    ("metrics.jsonl", "every record, one JSON object a line"),
    ("log.txt", "the log"),
    ("policy", "the policy as it was at the end"),
    ("policy/best", "the policy that scored best"),
    ("checkpoints", "what a resume continues from"),
    ("tensorboard", "the same numbers for TensorBoard"),
)


@dataclass(frozen=True)
class _Run:
    folder: Path
    experiment: dict[str, Any]
    status: dict[str, Any]
    records: list[dict[str, Any]]
    """Without events."""
    lines: list[dict[str, Any]]
    """With events."""

    @property
    def name(self) -> str:
        return str(self.experiment.get("name") or self.folder.resolve().name)

    def series(self, metric: str) -> list[charts.Point]:
        return [
            (float(record["timestep"]), float(record[metric]))
            for record in self.records
            if _is_number(record.get("timestep")) and _is_number(record.get(metric))
        ]

    def last(self, metric: str) -> float | None:
        return next((r[metric] for r in reversed(self.records) if _is_number(r.get(metric))), None)


def write_report(folder: str | Path) -> Path:
    """Write `report.html` of the run in `folder` and return its path."""
    folder = Path(folder)
    if not folder.is_dir():
        raise StorageError(f"cannot write a report: the run folder {folder} does not exist")
    lines = read_metrics(folder, events=True)
    records = [line for line in lines if "event" not in line]
    run = _Run(folder, _read(folder / "experiment.json"), _read(folder / "status.json"), records, lines)
    body = "".join(
        [
            _header(run),
            _tiles(run),
            page.section("Learning curve", _learning_curve(run)),
            page.section("While learning", _small_charts(run)),
            page.section("An episode", _video(run)),
            page.section("Settings", _settings(run)),
            page.section("Timings", _timings(run)),
            page.section("Files", _files(run)),
            page.section("Run it again", _again(run)),
            f"<footer>Written by Steppe on {escape(page.moment(time.time()))}.</footer>",
        ]
    )
    path = folder / FILE
    write_atomically(path, page.document(f"{run.name} · Steppe report", body))
    return path


def _header(run: _Run) -> str:
    state = str(run.status.get("state") or "")
    badge = f'<span class="state {_STATES.get(state, "wait")}">{escape(state)}</span>' if state else ""
    what = " on ".join(filter(None, [_named(run.experiment.get("agent")), _named(run.experiment.get("environment"))]))
    reason = run.status.get("reason")
    why = f'<p class="bad">{escape(str(reason))}</p>' if reason and state != "completed" else ""
    return f'<header><h1>{escape(run.name)}</h1><p>{badge}<span class="soft">{escape(what)}</span></p>{why}</header>'


def _tiles(run: _Run) -> str:
    returns = run.series("mean_return")
    best = max((y for _, y in returns), default=None)
    goal = _goal(run)
    score = run.last("mean_return")
    if score is None:
        about = "no episode has ended yet"
    elif goal is not None:
        about = f"goal {page.number(goal)}: {'reached' if best is not None and best >= goal else 'not reached'}"
    else:
        about = f"highest {page.number(best)}"
    timesteps, wall, speed = _timesteps(run), _wall_time(run), _speed(run)
    episodes, updates = run.last("episode"), run.last("update")
    done = ", ".join(
        f"{page.number(count)} {name}" for count, name in ((episodes, "episodes"), (updates, "updates")) if count
    )
    tiles = [
        page.tile("Mean return, last 100 episodes", page.number(score), about, "score"),
        page.tile("Timesteps", page.number(timesteps), done),
        page.tile("Wall time", page.duration(wall), _resumes(run)),
        page.tile("Steps per second", page.number(speed), "median of the records" if speed else ""),
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>\n'


def _learning_curve(run: _Run) -> str:
    marks = run.series("evaluation_return")
    chart = charts.Chart(
        name="mean return",
        line=run.series("mean_return"),
        x_label="timesteps",
        y_label="mean return",
        marks=marks,
        marks_name="evaluation",
        goal=_goal(run),
        x_end=_timesteps(run) or 0.0,
    )
    legend = ""
    if marks:
        legend = (
            '<div class="legend"><span><svg viewBox="0 0 22 12"><path class="line" d="M1 6h20"/></svg>'
            "mean return of the last 100 episodes while learning</span>"
            '<span><svg viewBox="0 0 22 12"><path class="mark" d="M11 0l6 6l-6 6l-6 -6z"/></svg>'
            "evaluation of the policy</span></div>"
        )
    return legend + charts.draw(chart, charts.LARGE) + _numbers(run)


def _numbers(run: _Run) -> str:
    names = [name for name in ("mean_return", "mean_length", "evaluation_return") if run.last(name) is not None]
    rows = [r for r in run.records if _is_number(r.get("timestep")) and any(_is_number(r.get(n)) for n in names)]
    if not rows:
        return ""
    every = -(-len(rows) // _TABLE_ROWS)
    shown = rows[::-1][::every][::-1]
    cells = [[page.number(_number(row.get(name))) for name in ("timestep", "episode", *names)] for row in shown]
    head = ["timestep", "episode", *map(page.words, names)]
    return f"<details><summary>The numbers</summary>{page.columns(head, cells, numbers=len(head))}</details>"


def _small_charts(run: _Run) -> str:
    names = [name for record in run.records for name, value in record.items() if _is_number(value)]
    ordered = [name for name in dict.fromkeys((*_FIRST, *names)) if name not in _NOT_DRAWN and run.series(name)]
    end = _timesteps(run) or 0.0
    figures = [
        f"<figure><h3>{escape(page.words(name))}</h3>"
        + charts.draw(charts.Chart(page.words(name), run.series(name), "timesteps", "", x_end=end), charts.SMALL)
        + "</figure>"
        for name in ordered
    ]
    return f'<div class="small">{"".join(figures)}</div>' if figures else ""


def _video(run: _Run) -> str:
    videos = sorted((run.folder / "videos").glob("*.gif"), key=lambda path: (path.stat().st_mtime, path.name))
    if not videos:
        return ""
    newest = videos[-1]
    link = f'<a href="{_link(run, newest)}">{escape(newest.name)}</a>'
    if newest.stat().st_size >= _MOST_VIDEO_BYTES:
        return f"<p>{link} ({page.size(newest.stat().st_size)}) is too large to be shown here.</p>"
    data = base64.b64encode(newest.read_bytes()).decode()
    return (
        f'<figure><img alt="An episode played by the policy" src="data:image/gif;base64,{data}">'
        f"<figcaption>{link}</figcaption></figure>"
    )


def _settings(run: _Run) -> str:
    if not run.experiment:
        return '<p class="nothing">experiment.json is missing or cannot be read.</p>'
    general: list[tuple[str, str]] = []
    groups: list[tuple[str, list[tuple[str, str]]]] = [("experiment", general)]
    for name, value in run.experiment.items():
        if isinstance(value, dict) and value:
            groups.append((page.words(name), list(_rows(value))))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            groups.append((page.words(name), [(f"layer\u00a0{i}", page.setting(v)) for i, v in enumerate(value, 1)]))
        elif name != "name":
            general.append((page.words(name), page.setting(value)))
    tables = [f"<div><h3>{escape(title)}</h3>{page.pairs(rows)}</div>" for title, rows in groups if rows]
    return f'<div class="groups">{"".join(tables)}</div>'


def _rows(value: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as rows, named by their path: optimizer · learning rate."""
    for name, item in value.items():
        title = prefix + page.words(name)
        if isinstance(item, dict) and item:
            yield from _rows(item, f"{title} · ")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            yield from ((f"{title} {i}", page.setting(entry)) for i, entry in enumerate(item, 1))
        else:
            yield title, page.setting(item)


def _timings(run: _Run) -> str:
    times = [line["time"] for line in run.lines if _is_number(line.get("time"))]
    wall, timesteps = _wall_time(run), _timesteps(run)
    rows: list[tuple[str, str]] = []
    if times:
        rows += [("first record", page.moment(times[0])), ("last record", page.moment(times[-1]))]
    if wall:
        rows.append(("wall time", page.duration(wall)))
        if timesteps:
            rows.append(("timesteps per second, all things counted", page.number(timesteps / wall)))
            rows.append(("wall time per million timesteps", page.duration(1e6 * wall / timesteps)))
    given = run.status.get("timings")
    if isinstance(given, dict):
        rows += [(page.words(str(name)), page.duration(value)) for name, value in given.items() if _is_number(value)]
    if rows:
        return f'<div class="brief">{page.pairs(rows)}</div>'
    return '<p class="nothing">Nothing has been recorded yet.</p>'


def _files(run: _Run) -> str:
    found = [(run.folder / name, about) for name, about in _FILES]
    found += [(path, "an episode") for path in sorted((run.folder / "videos").glob("*")) if path.is_file()]
    rows = [
        [
            f'<a href="{_link(run, path)}">{escape(path.relative_to(run.folder).as_posix())}{"/" * path.is_dir()}</a>',
            escape(about),
            page.size(_bytes(path)),
        ]
        for path, about in found
        if path.exists()
    ]
    return page.columns(["file", "what it is", "size"], rows, numbers=1) if rows else ""


def _again(run: _Run) -> str:
    line = page.command("steppe", "experiment", "new", "-f", "experiment.json", "-n", f"{run.name}-again", "--start")
    return f"<p>In a Steppe project, with this run's experiment.json beside you:</p>{line}"


def _wall_time(run: _Run) -> float | None:
    """Seconds of training: from record to record, without the pauses before a resume."""
    total, previous = 0.0, None
    for line in run.lines:
        now = line.get("time")
        if not _is_number(now):
            continue
        if previous is None:
            # The first record comes after its own timesteps, whose time only their speed tells.
            speed, timestep = _number(line.get("steps_per_second")), _number(line.get("timestep"))
            total += timestep / speed if speed and timestep and speed > 0 else 0.0
        elif "event" not in line:
            total += max(now - previous, 0.0)
        previous = now
    return total if previous is not None else None


def _speed(run: _Run) -> float | None:
    speeds = [y for _, y in run.series("steps_per_second")]
    return statistics.median(speeds) if speeds else None


def _timesteps(run: _Run) -> float | None:
    return max((r["timestep"] for r in run.records if _is_number(r.get("timestep"))), default=None)


def _resumes(run: _Run) -> str:
    count = sum(line.get("event") == "resumed" for line in run.lines)
    return "" if not count else "resumed once" if count == 1 else f"resumed {count} times"


def _goal(run: _Run) -> float | None:
    return _number(run.experiment.get("stop_at_return"))


def _named(spec: Any) -> str:
    if isinstance(spec, dict):
        spec = spec.get("id") or spec.get("type") or spec.get("gym_id")
    return str(spec) if spec else ""


def _link(run: _Run, path: Path) -> str:
    # The "./" keeps a name with a colon from being read as an address.
    return escape("./" + quote(path.relative_to(run.folder).as_posix()) + "/" * path.is_dir())


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(child.stat().st_size for child in path.rglob("*") if child.is_file())


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(value: Any) -> float | None:
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    # read_metrics gives no NaN, but a line such as 1e999 is an infinity all the same.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
