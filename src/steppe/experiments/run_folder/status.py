"""status.json: its fields, and reading it safely, since anybody may have changed or damaged it."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import SpecError, StorageError
from steppe.experiments.run_folder.states import LIVE, STATES, State
from steppe.specs.loading.limited_reading import MEGABYTE, read_small

if TYPE_CHECKING:
    from steppe.runners import Progress

LARGEST = 8 * MEGABYTE
UNREADABLE = "its status cannot be read"
"""The beginning of the reason if status.json is missing or damaged."""


@dataclass(frozen=True)
class Status:
    """The contents of status.json; times are seconds since 1970."""

    state: State = "created"
    reason: str = ""
    pid: int | None = None
    host: str | None = None
    created: float | None = None
    started: float | None = None
    heartbeat: float | None = None
    finished: float | None = None
    timestep: int = 0
    episode: int = 0
    update: int = 0
    mean_return: float | None = None
    mean_length: float | None = None
    best_return: float | None = None
    evaluation: dict[str, Any] | None = None
    """The newest evaluation of the policy; `records.scores` reads it."""
    steps_per_second: float | None = None
    seconds: float = 0.0
    phase: str = ""
    notices: tuple[str, ...] = ()
    before: dict[str, Any] | None = None
    """The status of a completed experiment while a resume starts; restored if that fails."""

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Status:
        """The inverse of `dataclasses.asdict`; fields of later versions are ignored, wrong types raise a SpecError."""
        fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        known = {key: value for key, value in data.items() if key in fields}
        for name, value in known.items():
            if not _fits(value, fields[name]):
                raise SpecError(f'its "{name}" is of a wrong type')
            if isinstance(value, float) and fields[name] == "int":
                known[name] = int(value)
        status = cls(**known)
        if status.state not in STATES:
            raise SpecError(f'it has the unknown state "{status.state[:50]}"')
        if status.before is not None:
            cls.from_data({**status.before, "before": None})
        return dataclasses.replace(status, notices=tuple(status.notices or ()))

    @property
    def is_live(self) -> bool:
        """Whether a process should own it."""
        return self.state in LIVE

    @property
    def is_unreadable(self) -> bool:
        """Whether status.json is missing or damaged."""
        return self.reason.startswith(UNREADABLE)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a StorageError if it cannot be read, a SpecError if it is something else."""
    try:
        data = json.loads(read_small(path, LARGEST))
    except OSError as error:
        odd = (errno.EINVAL, errno.EFBIG, errno.EISDIR, errno.ELOOP, errno.ENXIO)
        kind = SpecError if error.errno in odd else StorageError
        raise kind(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError:
        raise SpecError(f"{path} is nested too deeply to be read") from None
    except ValueError as error:
        raise SpecError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold a JSON object")
    return data


def read_status_file(path: Path) -> Status:
    """The status in a file; a SpecError if it is not valid."""
    data = read_object(path)
    try:
        return Status.from_data(data)
    except SpecError as error:
        raise SpecError(f"{path} cannot be understood: {error}") from None


def progress_of(status: Status) -> Progress:
    """The status of a run in the form that displays take."""
    from steppe.runners import Progress

    return Progress(
        phase=status.phase,
        timestep=status.timestep,
        episode=status.episode,
        update=status.update,
        mean_return=status.mean_return,
        mean_length=status.mean_length,
        best_return=status.best_return,
        evaluation=status.evaluation,
        steps_per_second=status.steps_per_second or 0.0,
        seconds=status.seconds,
        notices=status.notices,
    )


_KINDS: dict[str, tuple[type, ...]] = {
    "State": (str,),
    "str": (str,),
    "int": (int, float),
    "float": (int, float),
    "dict[str, Any]": (dict,),
    "tuple[str, ...]": (list, tuple),
}
LARGEST_NUMBER = 1e15
"""The largest time or count: larger ones break dates and float arithmetic."""


def _fits(value: Any, kind: str) -> bool:
    if value is None:
        return kind.endswith("| None") or kind.startswith("tuple")
    kind = kind.removesuffix(" | None")
    if not isinstance(value, _KINDS[kind]) or isinstance(value, bool):
        return False
    if isinstance(value, list | tuple):
        return all(isinstance(item, str) for item in value)
    if isinstance(value, int):
        return abs(value) < LARGEST_NUMBER
    if isinstance(value, float) and kind == "int":
        # Earlier versions wrote counts such as 24.0.
        return value.is_integer() and abs(value) < LARGEST_NUMBER
    # A return may be infinite or NaN.
    return not (isinstance(value, float) and math.isfinite(value) and abs(value) > 1e300)
