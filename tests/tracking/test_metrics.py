"""Metrics: lines any program can read, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steppe.errors import StorageError
from steppe.tracking.metrics import MetricsWriter, read_metrics, tag


def crc32c(data: bytes) -> int:
    """RFC 3720's checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder: Path) -> list[Any]:
    """The events of a run as TensorBoard reads them: file by file in the order of names, each record checked."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            body = data[at + 12 : at + 12 + length]
            assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body)
            found.append(Event.FromString(body))
            at += 16 + length
        assert at == len(data)
    return found


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    return [(e.step, v.tag, v.simple_value) for e in events(folder) for v in e.summary.value]


def write(folder: Path, *timesteps: int, resume_from: int | None = None) -> None:
    with MetricsWriter(folder, resume_from) as writer:
        for timestep in timesteps:
            writer.write({"timestep": timestep, "mean_return": timestep / 2})


def test_a_record_is_one_compact_line_with_the_time(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write({"time": 12.5, "timestep": np.int32(5), "mean_return": np.float32(0.5), "loss": np.array(2.0)})
        writer.write({"timestep": 6})
        # Read before closing: each record is in the file when `write` returns.
        first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert first == '{"time":12.5,"timestep":5,"mean_return":0.5,"loss":2.0}'
    assert json.loads(second)["time"] > 1e9


def test_nan_and_infinity_are_written_as_null_everywhere(tmp_path: Path) -> None:
    bad = {"loss": float("nan"), "kl": np.float32("inf"), "more": {"deep": [float("-inf"), 1]}, "time": float("nan")}
    with MetricsWriter(tmp_path) as writer:
        writer.write({"timestep": 1, **bad, "entropy": 0.5})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    record = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (record["loss"], record["kl"], record["more"]) == (None, None, {"deep": [None, 1]})
    assert record["time"] > 1e9
    assert scalars(tmp_path) == [(1, "policy/entropy", 0.5)]


def test_tensorboard_files_hold_the_same_numbers_at_the_same_timestep(tmp_path: Path) -> None:
    record = {
        "time": 99.5,
        "timestep": 640,
        "episode": 3,
        "update": 7,
        "worker": 0,
        "mean_return": 21.5,
        "steps_per_second": 98000.0,
        "policy_loss": -0.25,
        "evaluation_return": 30.0,
        "something_new": 4.0,
        "note": "text",
        "flag": True,
    }
    with MetricsWriter(tmp_path) as writer:
        writer.write(record)
        found = events(tmp_path)
    assert found[0].file_version == "brain.Event:2"
    assert found[1].wall_time == 99.5
    assert scalars(tmp_path) == [
        (640, "progress/episode", 3.0),
        (640, "progress/update", 7.0),
        (640, "episode/mean_return", 21.5),
        (640, "speed/steps_per_second", 98000.0),
        (640, "loss/policy_loss", -0.25),
        (640, "evaluation/evaluation_return", 30.0),
        (640, "train/something_new", 4.0),
    ]


def test_tensorboard_shows_a_resumed_run_without_superseded_values(tmp_path: Path) -> None:
    # TensorBoard 2.21 needs pkg_resources, whose import warns on newer setuptools.
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", exc_type=ImportError)
    write(tmp_path, 10, 20, 30)
    write(tmp_path, 25, resume_from=20)
    reader = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    assert [(e.step, e.value) for e in reader.Scalars("episode/mean_return")] == [(10, 5.0), (20, 10.0), (25, 12.5)]


def test_groups_are_found_by_name() -> None:
    assert tag("loss") == "loss/loss"
    assert tag("value_loss") == "loss/value_loss"
    assert tag("mean_length") == "episode/mean_length"
    assert tag("replay_size") == "train/replay_size"


def test_records_superseded_by_a_resume_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, 10, 20, 30, 40)
    write(tmp_path, 25, 35, resume_from=20)
    write(tmp_path, 32, resume_from=25)
    assert [r["timestep"] for r in read_metrics(tmp_path)] == [10, 20, 25, 32]
    marks = [r for r in read_metrics(tmp_path, events=True) if "event" in r]
    assert [(r["event"], r["timestep"]) for r in marks] == [("resumed", 20), ("resumed", 25)]
    assert all("time" in r for r in marks)


def test_a_resume_within_the_same_second_starts_its_own_event_file(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20, resume_from=10)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    starts = [e.step for e in events(tmp_path) if e.HasField("session_log")]
    assert starts == [11]
    assert [step for step, _, _ in scalars(tmp_path)] == [10, 20]


def test_a_torn_last_line_is_ignored_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert [r["timestep"] for r in read_metrics(tmp_path)] == [10]
    write(tmp_path, 30)
    assert [r["timestep"] for r in read_metrics(tmp_path)] == [10, 30]


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


@given(garbage=st.binary(max_size=200))
def test_invalid_lines_do_not_affect_other_lines(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    (folder / "metrics.jsonl").write_bytes(b'{"timestep":1}\n' + garbage + b'\n{"timestep":2}\n')
    read = [r["timestep"] for r in read_metrics(folder) if r.get("timestep") in (1, 2)]
    assert read[0] == 1
    assert read[-1] == 2


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "1" * 10_000, "NaN", '"text"', '{"event":"resumed"}', '{"event":3}', "\x00"]
)
def test_lines_that_are_not_records_are_skipped(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"timestep":5}}\n{line}\n{{"timestep":NaN}}\n')
    assert read_metrics(tmp_path) == [{"timestep": 5}, {"timestep": None}]


def test_nothing_large_is_imported_to_write_metrics(tmp_path: Path) -> None:
    code = (
        "import sys; from steppe.tracking.metrics import MetricsWriter\n"
        f"w = MetricsWriter({str(tmp_path)!r}); w.write({{'timestep': 4, 'loss': 1.0}}); w.close()\n"
        "assert not {'tensorboardX', 'google.protobuf', 'boto3', 'jax', 'gymnasium'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_events_hold_names_in_any_script_large_steps_and_values_beyond_32_bits(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write({"timestep": 2**62, "größe": 1e300, "tiny": -1e300, "third": 1 / 3, "long" * 100: 2})
    assert scalars(tmp_path) == [
        (2**62, "train/größe", math.inf),
        (2**62, "train/tiny", -math.inf),
        (2**62, "train/third", pytest.approx(1 / 3)),
        (2**62, "train/" + "long" * 100, 2.0),
    ]


@pytest.mark.faults
def test_a_full_disk_is_an_error_and_later_records_are_intact(mount: Callable[[str], Path]) -> None:
    folder = mount("size=64k")
    writer = MetricsWriter(folder)
    writer.write({"timestep": 1})
    with pytest.raises(StorageError, match=r"metrics\.jsonl: the disk is full"):
        writer.write({"timestep": 2, "note": "x" * 100_000})
    mount("size=1m")
    writer.write({"timestep": 3})
    writer.close()
    assert [r["timestep"] for r in read_metrics(folder)] == [1, 3]
