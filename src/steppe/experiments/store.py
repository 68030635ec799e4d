"""Run folders on disk: the spec, the status and its one owner, the requests to that owner."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import SpecError, StateError, StorageError
from steppe.experiments import locks
from steppe.experiments.states import LIVE, STATES, Event, State, advance
from steppe.records.durable import storing, write_atomically

if TYPE_CHECKING:
    from steppe.specs.experiment import ExperimentSpec

SPEC_FILE, STATUS_FILE, REQUEST_FILE, LOG_FILE = "experiment.json", "status.json", "request.json", "log.txt"
SILENT_SECONDS = 60.0
DIED = "the process ended without a word (killed or out of memory?)"


@dataclass(frozen=True)
class Status:
    """What status.json says; times are seconds since 1970."""

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
    steps_per_second: float | None = None
    seconds: float = 0.0
    phase: str = ""
    notices: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether a process should own it."""
        return self.state in LIVE


class RunFolder:
    """One experiment's folder; the experiment's name is the folder's name."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.path.name

    @property
    def exists(self) -> bool:
        """Whether there is an experiment here."""
        return (self.path / SPEC_FILE).is_file()

    @property
    def log(self) -> Path:
        """Where the run logs."""
        return self.path / LOG_FILE

    def create(self, spec: ExperimentSpec, *, force: bool = False) -> None:
        """Writes experiment.json and the first status; one that exists is refused, or kept beside with `force`."""
        if self.exists and not force:
            raise StateError(
                f'experiment "{self.name}" exists already in {self.path.parent}; '
                "choose another name with -n, or use --force (its old results are kept beside)"
            )
        _make_folder(self.path)
        with self.lock("renew") as status:
            self.set_aside(status)
            self.write_spec(spec)
            self.write_status(Status(created=time.time()))

    def write_spec(self, spec: ExperimentSpec) -> None:
        """The full spec with every sub-spec inlined."""
        write_atomically(self.path / SPEC_FILE, spec.model_dump_json(indent=2) + "\n")

    def spec(self) -> ExperimentSpec:
        """The validated experiment.json."""
        from steppe.specs.experiment import ExperimentSpec
        from steppe.specs.files import read_spec_file
        from steppe.specs.validation import Origins, validate

        origins = Origins(str(self.path / SPEC_FILE))
        spec = validate(ExperimentSpec, read_spec_file(self.path / SPEC_FILE), source=origins)
        spec.agent.written_in(origins.below("agent"))
        return spec

    def spec_data(self) -> dict[str, Any]:
        """experiment.json as it is written: quick, for lists."""
        return _read_object(self.path / SPEC_FILE)

    def status(self) -> Status:
        """The state of the experiment; a run that died without a word is found out and written down as failed."""
        status = self.read_status()
        return status if not status.is_live or self._has_owner(status) else self._bury()

    def read_status(self) -> Status:
        """status.json as it is written."""
        if not (self.path / STATUS_FILE).exists():
            return Status()
        data = _read_object(self.path / STATUS_FILE)
        known = {field.name for field in dataclasses.fields(Status)}
        status = Status(**{key: value for key, value in data.items() if key in known})
        if status.state not in STATES:
            raise StateError(f'{self.path / STATUS_FILE} has the unknown state "{status.state}"')
        return dataclasses.replace(status, notices=tuple(status.notices))

    def write_status(self, status: Status) -> None:
        """Replaces status.json in one step; only for the holder of the lock."""
        write_atomically(self.path / STATUS_FILE, json.dumps(dataclasses.asdict(status), indent=1) + "\n")

    @contextlib.contextmanager
    def lock(self, event: Event) -> Iterator[Status]:
        """Owns the folder for `event`; gives the status as it was. StateError if a process owns it already."""
        # Readers hold the lock for a moment while they look: half a second outlasts them.
        descriptor = locks.acquire(self.path, patience=0.5)
        if descriptor is None:
            self._refuse(event)
        try:
            status = self.read_status()
            if status.is_live:
                self._refuse_if_elsewhere(status, event)
                status = self._failed(status)
            yield status
        finally:
            if descriptor is not None:
                locks.release(descriptor)

    def set_aside(self, status: Status) -> Path | None:
        """Moves what an earlier run left into a dated folder inside this one; only for the holder of the lock."""
        kept = {SPEC_FILE, STATUS_FILE, REQUEST_FILE}
        left = [entry for entry in self.path.iterdir() if entry.name not in kept and not is_own(entry.name)]
        self.forget_requests()
        if not left and status.state == "created":
            return None
        stem = f"before-{datetime.now():%Y%m%d-%H%M%S}"
        names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
        aside = next(self.path / name for name in names if not (self.path / name).exists())
        with storing(aside):
            aside.mkdir()
            for entry in left:
                entry.rename(aside / entry.name)
            for name in (SPEC_FILE, STATUS_FILE):
                if (self.path / name).exists():
                    shutil.copy2(self.path / name, aside / name)
        return aside

    def ask(self, action: str) -> None:
        """Leaves a request ("pause" or "stop") for the owner, who looks for it after each chunk of training."""
        write_atomically(self.path / REQUEST_FILE, json.dumps({"action": action, "time": time.time()}) + "\n")

    def asked(self) -> str | None:
        """The request that waits for the owner, if any."""
        path = self.path / REQUEST_FILE
        if not path.exists():
            return None
        try:
            action = json.loads(path.read_text()).get("action")
        except (OSError, ValueError, AttributeError):
            return None
        return action if action in ("pause", "stop") else None

    def forget_requests(self) -> None:
        """Removes what was asked of an earlier owner."""
        path = self.path / REQUEST_FILE
        if path.exists():
            with storing(path):
                path.unlink(missing_ok=True)

    def _has_owner(self, status: Status) -> bool:
        if status.host not in (None, socket.gethostname()):
            return time.time() - (status.heartbeat or 0.0) < SILENT_SECONDS
        try:
            descriptor = locks.acquire(self.path)
        except StorageError:
            return False
        if descriptor is None:
            return True
        locks.release(descriptor)
        return False

    def _bury(self) -> Status:
        """Writes `failed` for an owner that is gone, unless another took over meanwhile."""
        try:
            descriptor = locks.acquire(self.path)
        except StorageError:
            return self._failed(self.read_status())
        if descriptor is None:
            return self.read_status()
        try:
            status = self.read_status()
            if status.is_live:
                status = self._failed(status)
                self.write_status(status)
            return status
        except StorageError:
            return status
        finally:
            locks.release(descriptor)

    def _failed(self, status: Status) -> Status:
        state = advance(status.state, "fail", self.name)
        return dataclasses.replace(status, state=state, reason=DIED, finished=status.heartbeat or time.time(), phase="")

    def _refuse_if_elsewhere(self, status: Status, event: Event) -> None:
        if status.host not in (None, socket.gethostname()) and self._has_owner(status):
            self._refuse(event)

    def _refuse(self, event: Event) -> None:
        status = self.read_status()
        if status.is_live:
            where = "" if status.host in (None, socket.gethostname()) else f" on {status.host}"
            if event in ("start", "resume"):
                raise StateError(
                    f'experiment "{self.name}" is {status.state} already (process {status.pid}{where}); '
                    f"stop it first: steppe experiment stop -e {self.name}"
                )
            advance(status.state, event, self.name)
        raise StateError(f'experiment "{self.name}" is being changed by another process; try again')


class Store:
    """The folder that holds run folders: `experiments/` of a project, or `steppe-runs/` outside one."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()

    def folder(self, name: str) -> RunFolder:
        """The run folder of that name, whether it exists or not."""
        from steppe.specs.experiment import valid_name

        return RunFolder(self.path / valid_name(name))

    def folders(self) -> list[RunFolder]:
        """Every experiment, by name."""
        if not self.path.is_dir():
            return []
        folders = (RunFolder(entry) for entry in sorted(self.path.iterdir()) if entry.is_dir())
        return [folder for folder in folders if folder.exists]

    def new_folder(self, stem: str) -> RunFolder:
        """A run folder that did not exist before, `stem-1`, `stem-2` ...; made at once so that no one else takes it."""
        _make_folder(self.path)
        taken = {entry.name for entry in self.path.iterdir()}
        number = 1
        while True:
            path = self.path / f"{stem}-{number}"
            if path.name not in taken:
                with storing(path), contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return RunFolder(path)
            number += 1

    def delete(self, folder: RunFolder) -> None:
        """Deletes a run folder that lies directly in this store and that nothing owns."""
        if folder.path.parent.resolve() != self.path.resolve() or folder.path.is_symlink() or not folder.exists:
            raise StateError(f"{folder.path} is not an experiment of {self.path}; delete it yourself if you mean it")
        with folder.lock("delete"):
            # Renamed first: a half-deleted experiment must not be listed.
            doomed = folder.path.with_name(f".deleting-{folder.name}-{os.getpid()}")
            try:
                folder.path.rename(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                raise StorageError(f"cannot delete {folder.path}: {error.strerror or error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise SpecError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold a JSON object")
    return data


def is_own(name: str) -> bool:
    """Whether this entry of a run folder is no result of its run: locks, unfinished files, results kept from before."""
    return name.startswith((".", "before-"))


def _make_folder(path: Path) -> None:
    with storing(path):
        path.mkdir(parents=True, exist_ok=True)
