"""The report: one file with correct, escaped content for any run folder."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steppe.errors import StorageError
from steppe.records import charts, page
from steppe.records.report import write_report
from steppe.tracking.metrics import MetricsWriter

MOMENTS = {"started": 1e9 - 3, "heartbeat": 1e9 + 50, "finished": 1e9 + 50.5}
EVIL = '<script>alert("1")</script>&\'`'
VOID = {"meta", "img", "br", "line", "path", "circle", "rect", "link", "input", "hr"}


class Reader(HTMLParser):
    """Collects the visible text, and checks that elements are closed correctly."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text())
    reader.close()
    assert reader.open == []
    return reader


def a_run(folder: Path, name: str = "cartpole", **experiment: Any) -> Path:
    folder.mkdir(exist_ok=True)
    spec = {
        "name": name,
        "environment": {"id": "CartPole-v1", "settings": {}},
        "agent": {"type": "ppo", "discount": 0.99, "optimizer": {"type": "adam", "learning_rate": 0.00025}},
        "network": [{"type": "dense", "size": 64, "activation": "tanh"}],
        "total_timesteps": 100_000,
        "seed": 1234567,
        "cluster": None,
        **experiment,
    }
    (folder / "experiment.json").write_text(json.dumps(spec))
    (folder / "status.json").write_text(json.dumps({"state": "completed", "seconds": 50.0, **MOMENTS}))
    with MetricsWriter(folder) as writer:
        for index in range(1, 51):
            record = {"time": 1e9 + index, "timestep": index * 1000, "episode": index * 7, "update": index}
            record |= {"mean_return": 9.5 * index, "mean_length": 9.5 * index, "steps_per_second": 1000.0}
            record |= {"policy_loss": -0.01, "entropy": 0.69 - index / 100}
            if index % 10 == 0:
                record["evaluation_return"] = 10.0 * index
            writer.write(record)
    return folder


def test_the_report_has_the_headline_and_the_settings(tmp_path: Path) -> None:
    path = write_report(a_run(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    text = read(path).text
    for said in ("cartpole", "completed", "ppo on CartPole-v1", "475", "50,000", "350 episodes, 50 updates", "1,000"):
        assert said in text, said
    for name, value in (
        ("total timesteps", "100,000"),
        ("optimizer · learning rate", "0.00025"),
        ("layer\u00a01", "dense, size 64, activation tanh"),
        ("seed", "1234567"),
        ("started", "2001-09-09 01:46:37 UTC"),
        ("ended", "2001-09-09 01:47:30 UTC"),
        ("time spent training", "50.0 s"),
        ("timesteps per second, everything counted", "1,000"),
        ("time for a million timesteps", "16 min 40 s"),
    ):
        assert value in [after for before, after in pairwise(filter(None, text)) if before == name], name
    assert "All, also what is not set or does not apply" in text
    assert "steppe train -f experiment.json -n cartpole-again" in text


def test_settings_come_first_and_those_without_effect_are_folded(tmp_path: Path) -> None:
    effective = {"agent": {"type": "ppo", "learning_rate": 0.001, "clip": 0.2}, "given": ["agent.learning_rate"]}
    unset = {"kubernetes": {"image": None}, "asynchronous": {"patience": 10.0}, "run_mode": "single"}
    page_text = write_report(a_run(tmp_path / "run", effective=effective, **unset)).read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", page_text)
    assert titles[:2] == ["Settings", "Learning curve"]
    settings = page_text[page_text.index("<h2>Settings") : page_text.index("<h2>Learning curve")]
    outside, fold = settings.split("<details>")
    assert "<strong>0.001</strong>" in outside
    assert ">0.2<" in outside
    for name in ("<h3>kubernetes</h3>", "<h3>asynchronous</h3>", "not set"):
        assert name not in outside
        assert name in fold


@pytest.mark.parametrize(
    ("episodes", "title", "counted"),
    [
        (1, "Mean return, last episode", "1 episode, 1 update"),
        (7, "Mean return, last 7 episodes", "7 episodes, 1 update"),
        (350, "Mean return, last 100 episodes", "350 episodes, 1 update"),
    ],
)
def test_the_score_names_its_episodes(tmp_path: Path, episodes: int, title: str, counted: str) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write({"timestep": 1000, "episode": episodes, "update": 1, "mean_return": -18.0})
    text = read(write_report(tmp_path)).text
    assert title in text
    assert counted in text


def test_lists_in_lists_keep_their_brackets() -> None:
    assert page.setting([[1, 1], [1, 2]]) == "(1, 1), (1, 2)"
    assert page.setting([8, 4]) == "8, 4"


def test_the_page_makes_no_requests_and_runs_no_script(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "videos").mkdir()
    (run / "videos" / "final.gif").write_bytes(b"GIF89a")
    path = write_report(run)
    reader = read(path)
    assert not {"script", "link", "iframe", "object", "embed"} & {name for name, _ in reader.elements}
    for _, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "srcset", "xlink:href"):
            assert (attributes.get(name) or "./").startswith(("./", "data:image/gif;base64,"))
    assert not re.search(r"url\(|@import|https?:", path.read_text())


def test_the_curve_has_its_line_its_evaluations_its_goal_and_its_ticks(tmp_path: Path) -> None:
    reader = read(write_report(a_run(tmp_path / "run", stop_at_return=450)))
    curves = {str(a.get("class")): a["aria-label"] for a in reader.all("svg") if a.get("class") in ("large", "tall")}
    said = "mean return: from 9.5 at 1k timesteps to 475 at 50k timesteps; highest 475 at 50k timesteps"
    assert curves == {"large": said, "tall": said}
    assert len([a for a in reader.all("path") if a.get("class") == "mark"]) == 2 * 5 + 1  # and one in the legend
    for said in ("10k", "50k", "timesteps", "mean return", "goal 450", "goal 450: reached"):
        assert said in reader.text, said
    assert "policy loss" in reader.text
    assert "entropy" in reader.text


def test_the_report_has_the_state_its_reason_and_the_notices(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    status = {"state": "failed", "reason": "the disk is full; free some space", "notices": ["checkpoint 9 was skipped"]}
    (run / "status.json").write_text(json.dumps(status))
    reader = read(write_report(run))
    assert "The disk is full; free some space." in reader.text
    assert "Checkpoint 9 was skipped." in reader.text
    assert [a.get("class") for a in reader.all("p")][1:3] == ["bad", "wait"]


def test_the_default_network_comes_from_the_policy(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", network=None)
    (run / "policy").mkdir()
    (run / "policy" / "policy.json").write_text(json.dumps({"network": [{"type": "dense", "size": 32}]}))
    text = read(write_report(run)).text
    assert text[text.index("layer\u00a01") + 1] == "dense, size 32"


def test_the_table_has_every_evaluation_and_few_of_the_other_rows(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for index in range(1, 1001):
            evaluation = {"evaluation_return": 2.0} if index == 500 else {}
            writer.write({"timestep": index, "mean_return": 1.0} | evaluation)
    table = re.search(r"<details>.*?</details>", write_report(tmp_path).read_text(), re.DOTALL)
    assert table is not None
    shown = [int(cell.replace(",", "")) for cell in re.findall(r'<tr><td class="number">([\d,]+)', table[0])]
    assert 50 <= len(shown) <= 61
    assert shown == sorted(shown)
    assert {500, 1000} <= set(shown)


def test_everything_that_comes_from_a_file_is_escaped(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", name=EVIL, **{EVIL: EVIL, "agent": {"type": EVIL, EVIL: {EVIL: [EVIL]}}})
    (run / "status.json").write_text(json.dumps({"state": EVIL, "reason": EVIL, "seconds": EVIL, "started": EVIL}))
    with MetricsWriter(run) as writer:
        writer.write({"timestep": 99_000, EVIL: 1.0})
    (run / "videos").mkdir()
    (run / "videos" / 'a"onload="b<i>.gif').write_bytes(b"GIF89a")
    reader = read(write_report(run))
    assert not {"script", "i"} & {name for name, _ in reader.elements}
    assert not [a for _, a in reader.elements if "onload" in a]
    assert EVIL in reader.text


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\x00 not json\n[1]\n", b'{"timestep":1}\n', b'{"mean_return":1e999}\n']
)
def test_a_run_with_few_or_damaged_records_still_has_a_report(tmp_path: Path, content: bytes | None) -> None:
    for name in ("metrics.jsonl", "experiment.json", "status.json"):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    reader = read(write_report(tmp_path))
    assert "no episode has ended yet" in reader.text
    assert "No mean return has been recorded yet." in reader.text


def test_a_missing_run_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"run folder .*gone does not exist"):
        write_report(tmp_path / "gone")


def test_the_time_of_training_is_that_of_the_status_and_resumes_are_counted(tmp_path: Path) -> None:
    lines = [
        {"time": 1000.0, "timestep": 100},
        {"event": "resumed", "time": 9000.0, "timestep": 100},
        {"time": 9005.0, "timestep": 500},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "status.json").write_text(json.dumps({"state": "running", "seconds": 45.0, "heartbeat": 9005.0}))
    text = read(write_report(tmp_path)).text
    assert text[text.index("Training time") + 1 :][:2] == ["45.0 s", "resumed once"]
    assert text[text.index("last sign of life") + 1] == "1970-01-01 02:30:05 UTC"


def test_the_newest_small_video_is_embedded_and_a_large_one_is_linked(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    videos = run / "videos"
    videos.mkdir()
    (videos / "old.gif").write_bytes(b"GIF89a-old")
    (videos / "new.gif").write_bytes(b"GIF89a-new")
    (videos / "folder.gif").mkdir()
    os.utime(videos / "old.gif", (1, 1))
    (image,) = read(write_report(run)).all("img")
    assert base64.b64decode((image["src"] or "").removeprefix("data:image/gif;base64,")) == b"GIF89a-new"
    assert image["alt"]
    with (videos / "new.gif").open("r+b") as file:
        file.truncate(5_000_000)
    reader = read(write_report(run))
    assert reader.all("img") == []
    assert "./videos/new.gif" in [a["href"] for a in reader.all("a")]


def test_files_are_linked_relative_to_the_report(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "policy").mkdir()
    (run / "policy" / "policy.json").write_text("{}")
    links = [a["href"] for a in read(write_report(run)).all("a")]
    assert links == ["./experiment.json", "./status.json", "./metrics.jsonl", "./policy/", "./tensorboard/"]
    for link in links:
        assert (run / str(link)).exists()


@pytest.mark.parametrize(
    ("low", "high", "about", "expected"),
    [
        (0, 500, 5, [0, 100, 200, 300, 400, 500]),
        (9.5, 475, 5, [0, 100, 200, 300, 400, 500]),
        (0.1, 0.3, 4, [0.1, 0.15, 0.2, 0.25, 0.3]),
        (-1.2e-5, 0, 3, [-1.5e-5, -1e-5, -5e-6, 0]),
        (7, 7, 2, [6, 7, 8]),
    ],
)
def test_ticks_are_round_numbers_around_the_range(low: float, high: float, about: int, expected: list[float]) -> None:
    assert charts.ticks(low, high, about) == pytest.approx(expected)


@given(low=st.floats(-1e12, 1e12), span=st.floats(1e-6, 1e12), about=st.integers(1, 12))
def test_ticks_cover_any_range_and_are_few(low: float, span: float, about: int) -> None:
    # Below this share of its size, neighbours of a number have the same label on an axis.
    span = max(span, abs(low) * 1e-6)
    ticks = charts.ticks(low, low + span, about)
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= about + 3
    assert ticks[0] <= low + 1e-3 * span
    assert ticks[-1] >= low + span - 1e-3 * span


def test_numbers_are_readable() -> None:
    assert [charts.short(x) for x in (0, 50_000, 1.5e6, 0.25, -0.005, 1e-5, 2.5e-4, 3e9)] == [
        *("0", "50k", "1.5M", "0.25", "-0.005", "1e-5", "2.5e-4", "3B")
    ]
    assert [page.number(x) for x in (None, 487.23, 12345.6, 0.01234, 3, 1.5, 0)] == [
        *("–", "487.2", "12,346", "0.0123", "3", "1.50", "0")
    ]
    assert [page.duration(x) for x in (None, 0.85, 12.34, 60, 250, 7500, 90000)] == [
        *("–", "850 ms", "12.3 s", "1 min", "4 min 10 s", "2 h 5 min", "1 d 1 h")
    ]
    assert [page.words(x) for x in ("policy_loss", "approximate_kl", "td_error")] == [
        *("policy loss", "approximate KL", "TD error")
    ]
    assert [page.size(x) for x in (12, 1400, 3_200_000, 250_000)] == ["12 B", "1.4 kB", "3.2 MB", "250 kB"]


def test_thinning_keeps_the_ends_and_every_extreme() -> None:
    points = [(float(i), 0.0) for i in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[5678] = (5678.0, -99.0)
    thinned = charts.thin(points, 200)
    assert len(thinned) <= 200
    assert {points[0], points[-1], points[4321], points[5678]} <= set(thinned)
    assert thinned == sorted(thinned)


def test_a_chart_of_one_point_can_be_drawn() -> None:
    drawn = charts.draw(charts.Chart("loss", [(0.0, 0.0)], "timesteps", "loss"), charts.SMALL)
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert 'class="end"' in drawn


def test_files_that_vanish_while_they_are_counted_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "run")
    (run / "checkpoints" / "1000").mkdir(parents=True)
    for name in ("here", "gone"):
        (run / "checkpoints" / "1000" / name).write_bytes(b"x" * 300)
    walk = os.walk

    def walk_and_prune(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(top):
            if "gone" in found[2]:
                Path(found[0], "gone").unlink()
            yield found

    monkeypatch.setattr(os, "walk", walk_and_prune)
    text = [said for said in read(write_report(run)).text if said]
    assert text[text.index("checkpoints/") :][:3] == ["checkpoints/", "what a resume continues from", "300 B"]
