"""Metrics: one JSON object a line in `metrics.jsonl`, and the same numbers as TensorBoard files in `tensorboard/`."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from steppe.files.durable import storing, write_all
from steppe.tracking.tensorboard import EventFile

FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"

# The coordinates of a record, which are axes of charts and get no chart of their own.
_AXES = frozenset({"time", "timestep", "worker", "event"})
_GROUPS = {
    "mean_return": "episode",
    "mean_length": "episode",
    "episode": "progress",
    "update": "progress",
    "steps_per_second": "speed",
    "updates_per_second": "speed",
    "entropy": "policy",
    "approximate_kl": "policy",
    "clip_fraction": "policy",
    "kl": "policy",
    "temperature": "policy",
    "epsilon": "policy",
    "learning_rate": "optimizer",
    "gradient_norm": "optimizer",
}


class MetricsWriter:
    """Appends the metrics of one run to the files of its folder, unbuffered."""

    def __init__(self, folder: str | os.PathLike[str], resume_from: int | None = None) -> None:
        """Continue the files in `folder`; records after the timestep `resume_from` are superseded."""
        self._folder, self._path = folder, Path(folder) / FILE
        self._resume_from = resume_from
        self._events: EventFile | None = None
        with storing(self._path):
            self._torn = _ends_within_a_line(self._path)
            self._file = self._path.open("ab", buffering=0)
        if resume_from is None and self._file.tell():
            self._append({"event": "started", "timestep": 0, "time": time.time()})
        if resume_from is not None:
            self._append({"event": "resumed", "timestep": int(resume_from), "time": time.time()})

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record, with the time if it has none; NaN and infinities are written as null."""
        plain = {"time": None, **_plain(record)}
        if not _is_number(plain["time"]):
            plain["time"] = time.time()
        self._append(plain)
        scalars = {tag(name): value for name, value in plain.items() if name not in _AXES and _is_number(value)}
        if scalars and _is_number(plain.get("timestep")):
            if self._events is None:
                self._events = EventFile(Path(self._folder) / TENSORBOARD, self._resume_from)
            self._events.write(scalars, int(plain["timestep"]), plain["time"])

    def close(self) -> None:
        """Close the files; nothing can be written afterwards."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with storing(self._path):
            # A line that a kill or a full disk cut short is ended first.
            data = b"\n" + line if self._torn else line
            self._torn = True
            write_all(self._file, data)
            self._torn = False


def read_metrics(folder: str | os.PathLike[str], events: bool = False) -> list[dict[str, Any]]:
    """The records of a run, oldest first, without those that a resume has superseded and without invalid lines.

    With `events`, the lines that mark a resume, or another start in the same file, are included, as
    `{"event": "resumed", "timestep": ..., "time": ...}` and `{"event": "started", ...}`.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return []
    records: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n"):
        record = _parse(line)
        if record is None:
            continue
        if "event" in record:
            resumed = record.get("timestep")
            if record["event"] == "resumed" and _is_number(resumed):
                records = [r for r in records if not (_is_number(r.get("timestep")) and r["timestep"] > resumed)]
            if not events:
                continue
        records.append(record)
    return records


def tag(name: str) -> str:
    """The TensorBoard tag of a metric: its name within a group, as in "loss/policy_loss"."""
    group = _GROUPS.get(name)
    if group is None:
        if name == "loss" or name.endswith("_loss"):
            group = "loss"
        elif name.startswith("evaluation_"):
            group = "evaluation"
        else:
            group = "train"
    return f"{group}/{name}"


def _ends_within_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    if type(value) is float:  # the common case
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        # Subclasses such as numpy.float64 print differently in some versions.
        number = int(value) if isinstance(value, int) else float(value)
        return number if math.isfinite(number) else None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
