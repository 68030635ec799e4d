"""The report of a run: one self-contained HTML file.

It is made from the run folder alone (experiment.json, status.json, metrics.jsonl, videos/), at any time of the run, and
copes with missing or damaged files.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from steppe.errors import StorageError
from steppe.files.durable import write_atomically
from steppe.records import charts, page
from steppe.records.evaluation_score import Score, finite_number, is_finite
from steppe.records.settings import RunSetting, SettingGroup, groups_of, knows_defaults
from steppe.tracking.metrics import read_metrics

FILE = "report.html"
_MOST_VIDEO_BYTES = 5_000_000
_TABLE_ROWS = 60
_WINDOW = 100
"""The number of episodes in a mean return, once there are as many."""

# The first of the small charts; the others follow in the order of their first appearance.
_FIRST = ("loss", "policy_loss", "value_loss", "entropy", "steps_per_second", "mean_length", "evaluation_length")
_NOT_DRAWN = frozenset({"time", "timestep", "episode", "update", "worker", "event", "mean_return", "evaluation_return"})
_STATES = {"completed": "good", "failed": "bad"}
_FILES = (
    ("experiment.json", "the experiment: every setting, and each default since it began"),
    ("status.json", "the state of the run"),
    ("metrics.jsonl", "every record, one JSON object a line"),
    ("log.txt", "the log"),
    ("policy", "the policy that is handed out"),
    ("policy/best", "the policy that scored best on the way"),
    ("policy/last", "the policy as it was at the end, where the best one is handed out"),
    ("evaluation.json", "every episode of the evaluation at the end"),
    ("checkpoints", "what a resume continues from"),
    ("tensorboard", "the same numbers for TensorBoard"),
)


@dataclass(frozen=True)
class _ReportedRun:
    folder: Path
    experiment: dict[str, Any]
    status: dict[str, Any]
    policy: dict[str, Any]
    records: list[dict[str, Any]]
    resumes: int

    @property
    def name(self) -> str:
        return str(self.experiment.get("name") or self.folder.resolve().name)

    def series(self, metric: str) -> list[charts.Point]:
        return [
            (float(record["timestep"]), float(record[metric]))
            for record in self.records
            if is_finite(record.get("timestep")) and is_finite(record.get(metric))
        ]

    def last(self, metric: str) -> float | None:
        return next((r[metric] for r in reversed(self.records) if is_finite(r.get(metric))), None)


def write_report(folder: str | Path) -> Path:
    """Write `report.html` of the run in `folder` and return its path."""
    folder = Path(folder)
    if not folder.is_dir():
        raise StorageError(f"cannot write a report: the run folder {folder} does not exist")
    lines = read_metrics(folder, events=True)
    records = [line for line in lines if "event" not in line]
    resumes = sum(line.get("event") == "resumed" for line in lines)
    experiment, status, policy = (
        _read(folder / name) for name in ("experiment.json", "status.json", "policy/policy.json")
    )
    run = _ReportedRun(folder, experiment, status, policy, records, resumes)
    body = "".join(
        [
            _header(run),
            _tiles(run),
            page.section("Settings", _settings(run)),
            page.section("Learning curve", _learning_curve(run)),
            page.section("While learning", _small_charts(run)),
            page.beside(page.section("An episode", _video(run)), page.section("Timings", _timings(run))),
            page.section("Files", _files(run)),
            page.section("Run it again", _again(run)),
            f"<footer>Written by Steppe on {escape(page.moment(time.time()))}.</footer>",
        ]
    )
    path = folder / FILE
    write_atomically(path, page.document(f"{run.name} · Steppe report", body))
    return path


def _header(run: _ReportedRun) -> str:
    state = str(run.status.get("state") or "")
    badge = f'<span class="state {_STATES.get(state, "wait")}">{escape(state)}</span>' if state else ""
    what = " on ".join(filter(None, [_named(run.experiment.get("agent")), _named(run.experiment.get("environment"))]))
    reason, notices = run.status.get("reason"), run.status.get("notices")
    said = f'<p class="{"bad" if state == "failed" else "soft"}">{escape(_sentence(reason))}</p>' if reason else ""
    said += "".join(
        f'<p class="wait">{escape(_sentence(notice))}</p>' for notice in (notices if isinstance(notices, list) else ())
    )
    return f'<header><h1>{escape(run.name)}</h1><p>{badge}<span class="soft">{escape(what)}</span></p>{said}</header>'


def _tiles(run: _ReportedRun) -> str:
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
    timesteps, speeds = _timesteps(run), [y for _, y in run.series("steps_per_second")]
    speed = statistics.median(speeds) if speeds else None
    episodes, updates = run.last("episode"), run.last("update")
    done = ", ".join(page.counted(count, name) for count, name in ((episodes, "episode"), (updates, "update")) if count)
    tiles = [
        *_evaluation(run),
        page.tile(f"Mean return{_window(episodes)}", page.number(score), about, "score"),
        page.tile("Timesteps", page.number(timesteps), done),
        page.tile(
            "Training time",
            page.duration(_seconds(run)),
            {0: "", 1: "resumed once"}.get(run.resumes, f"resumed {run.resumes} times"),
        ),
        page.tile("Steps per second", page.number(speed), "median of all records" if speed else ""),
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>\n'


def _evaluation(run: _ReportedRun) -> list[str]:
    """The tile of the newest evaluation."""
    found = Score.read(run.status.get("evaluation"))
    if found is None:
        return []
    about = f"at timestep {page.number(found.timestep)}"
    if found.interval is not None:
        about = f"95% interval {page.number(found.interval[0])} to {page.number(found.interval[1])}"
    if found.best is not None:
        about += f"; last policy {page.number(found.last)}, best {page.number(found.best)}"
    plural = "" if found.episodes == 1 else "s"
    return [page.tile(f"Evaluation, {found.episodes} episode{plural}", page.number(found.mean), about, "score")]


def _window(episodes: float | None) -> str:
    """The episodes that a mean return is over."""
    if not episodes:
        return ""
    return ", last episode" if episodes == 1 else f", last {min(int(episodes), _WINDOW)} episodes"


def _learning_curve(run: _ReportedRun) -> str:
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
    # The page's style shows one of the two, depending on the screen's width.
    return legend + charts.draw(chart, charts.LARGE, charts.TALL) + _numbers(run)


def _numbers(run: _ReportedRun) -> str:
    names = [name for name in ("mean_return", "mean_length", "evaluation_return") if run.last(name) is not None]
    rows = [r for r in run.records if is_finite(r.get("timestep")) and any(is_finite(r.get(n)) for n in names)]
    if not rows:
        return ""
    evaluated = [i for i, row in enumerate(rows) if is_finite(row.get("evaluation_return"))]
    shown = sorted({*_spaced(range(len(rows))), *_spaced(evaluated)})
    cells = [[page.number(finite_number(rows[i].get(name))) for name in ("timestep", "episode", *names)] for i in shown]
    head = ["timestep", "episode", *map(page.words, names)]
    return f"<details><summary>The numbers</summary>{page.columns(head, cells, numbers=len(head))}</details>"


def _spaced(indices: Sequence[int]) -> Sequence[int]:
    """At most _TABLE_ROWS of them, evenly spaced, the last included."""
    return indices[::-1][:: -(-len(indices) // _TABLE_ROWS) or 1]


def _small_charts(run: _ReportedRun) -> str:
    names = [name for record in run.records for name, value in record.items() if is_finite(value)]
    ordered = [name for name in dict.fromkeys((*_FIRST, *names)) if name not in _NOT_DRAWN and run.series(name)]
    end = _timesteps(run) or 0.0
    figures = [
        f"<figure><h3>{escape(page.words(name))}</h3>"
        + charts.draw(charts.Chart(page.words(name), run.series(name), "timesteps", "", x_end=end), charts.SMALL)
        + "</figure>"
        for name in ordered
    ]
    if not figures:
        return ""
    return f'<p class="soft">Over the timesteps of the run.</p><div class="small">{"".join(figures)}</div>'


def _video(run: _ReportedRun) -> str:
    films = [path for path in (run.folder / "videos").glob("*.gif") if path.is_file()]
    videos = sorted(films, key=lambda path: (path.stat().st_mtime, path.name))
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


def _settings(run: _ReportedRun) -> str:
    if not run.experiment:
        return '<p class="nothing">experiment.json is missing or cannot be read.</p>'
    said = "" if knows_defaults(run.experiment) else '<p class="soft">As written in experiment.json.</p>'
    if any(each.is_given for group in groups_of(run.experiment) for each in group.settings):
        said = '<p class="soft">What was given stands in bold type; the others are defaults.</p>'
    everything = _setting_groups(groups_of(run.experiment, run.policy, everything=True))
    fold = f"<details><summary>All, also what is not set or does not apply</summary>{everything}</details>"
    return said + _setting_groups(groups_of(run.experiment, run.policy)) + fold


def _setting_groups(groups: list[SettingGroup]) -> str:
    tables = []
    for group in groups:
        rows = [(_title(each.name), _value(each), each.is_given) for each in group.settings]
        tables.append(f"<div><h3>{escape(page.words(group.name))}</h3>{page.settings(rows)}</div>")
    return f'<div class="groups">{"".join(tables)}</div>'


def _title(path: str) -> str:
    """`optimizer.learning_rate` as words, with no line break before a number."""
    return " · ".join(page.words(part.replace(" ", "\u00a0")) for part in path.split("."))


def _value(each: RunSetting) -> str:
    return str(each.value) if each.name == "seed" else page.setting(each.value)


def _timings(run: _ReportedRun) -> str:
    spent, timesteps = _seconds(run), _timesteps(run)
    finished = finite_number(run.status.get("finished"))
    moments = {
        "started": finite_number(run.status.get("started")),
        "ended" if finished else "last sign of life": finished or finite_number(run.status.get("heartbeat")),
    }
    rows = [(name, page.moment(moment)) for name, moment in moments.items() if moment]
    if spent:
        rows.append(("time spent training", page.duration(spent)))
        if timesteps:
            rows.append(("timesteps per second, everything counted", page.number(timesteps / spent)))
            rows.append(("time for a million timesteps", page.duration(1e6 * spent / timesteps)))
    if rows:
        return page.pairs(rows)
    return '<p class="nothing">Nothing has been recorded yet.</p>'


def _files(run: _ReportedRun) -> str:
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


def _again(run: _ReportedRun) -> str:
    # A repeated run does not belong to the group.
    alone = ("--set", "group=null") if run.experiment.get("group") else ()
    line = page.command("steppe", "train", "-f", "experiment.json", "-n", f"{run.name}-again", *alone)
    return f"<p>With a copy of this run's experiment.json beside you:</p>{line}"


def _seconds(run: _ReportedRun) -> float | None:
    """Training time over all starts, without pauses and without work that a resume repeated."""
    return finite_number(run.status.get("seconds")) or None


def _timesteps(run: _ReportedRun) -> float | None:
    return max((r["timestep"] for r in run.records if is_finite(r.get("timestep"))), default=None)


def _goal(run: _ReportedRun) -> float | None:
    return finite_number(run.experiment.get("stop_at_return"))


def _named(spec: Any) -> str:
    if isinstance(spec, dict):
        spec = spec.get("id") or spec.get("type") or spec.get("gym_id")
    return str(spec) if spec else ""


def _link(run: _ReportedRun, path: Path) -> str:
    # Without "./" a name with a colon would be read as a URL scheme.
    return escape("./" + quote(path.relative_to(run.folder).as_posix()) + "/" * path.is_dir())


def _bytes(path: Path) -> int:
    """The size of a file or a folder; a running experiment may remove files meanwhile."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _sentence(text: Any) -> str:
    words = str(text)
    return words[:1].upper() + words[1:].rstrip(".") + "."
