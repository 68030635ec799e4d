"""Run folders on disk: the spec, the status and its one owner, the requests to that owner."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from steppe.errors import OwnedError, SpecError, StateError, StorageError
from steppe.experiments.hints import CALLS, Ways, commands
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.states import Event, State, advance
from steppe.experiments.run_folder.status import UNREADABLE, Status, read_object, read_status_file
from steppe.files.durable import storing, sync_folder, write_atomically, write_synced
from steppe.files.held_folder import FolderGone
from steppe.files.run_files import (
    CHECKPOINTS_FOLDER,
    LOG_FILE,
    METRICS_FILE,
    POLICY_FOLDER,
    REQUEST_FILE,
    SPEC_FILE,
    STATUS_FILE,
)
from steppe.specs.loading import limited_reading
from steppe.specs.loading.files import EFFECTIVE
from steppe.tensorforce import client_files

if TYPE_CHECKING:
    from steppe.specs.experiment import ExperimentSpec

RESERVE_FILE, RESERVE_BYTES = ".room", 16_384
RESULTS = (CHECKPOINTS_FOLDER, METRICS_FILE, POLICY_FOLDER)
"""The first results of a training."""
SILENT_SECONDS = 60.0
DIED = "the process ended without a word (killed or out of memory?)"
NOT_RESUMED = "the last resume could not begin"


class RunFolder:
    """One experiment's folder; the experiment's name is the folder's name."""

    def __init__(self, path: Path, ways: Ways | None = None) -> None:
        self.path = Path(path).absolute()
        self.ways = ways or commands(shlex.quote(self.name))
        self._lock: int | None = None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.path.name

    @property
    def exists(self) -> bool:
        """Whether there is an experiment here; a folder that cannot be read counts as one."""
        try:
            return (self.path / SPEC_FILE).is_file()
        except OSError:
            return True

    @property
    def is_trained(self) -> bool:
        """Whether training has left anything here."""
        return any(limited_reading.exists(self.path / name) for name in RESULTS)

    @property
    def log(self) -> Path:
        """The run's log file."""
        return self.path / LOG_FILE

    def files(self) -> list[Path]:
        """All files but locks and unfinished ones."""
        found = []
        # Path.rglob fails if a running experiment removes a checkpoint meanwhile.
        for folder, inner, names in os.walk(self.path):
            inner[:] = [name for name in inner if not name.startswith(".")]
            found += [Path(folder, name) for name in names if not name.startswith(".")]
        return sorted(path for path in found if path.is_file())

    def create(self, spec: ExperimentSpec, *, force: bool = False) -> None:
        """Writes experiment.json and the first status; an existing experiment is refused, or with `force` set aside."""
        self._check_free(force)
        _make_folder(self.path)
        with self.lock("renew") as status:
            # Again, now that no other process can make it.
            self._check_free(force)
            self.set_aside(status)
            self.write_spec(spec)
            self.write_status(Status(created=time.time()))

    def write_spec(self, spec: ExperimentSpec) -> None:
        """The full spec with every sub-spec inlined."""
        write_atomically(self.path / SPEC_FILE, spec.model_dump_json(indent=2) + "\n")

    def write_effective(self, settings: Mapping[str, Any]) -> None:
        """Adds all settings of the run, defaults too, to experiment.json, for readers only."""
        data = {**self.spec_data(), EFFECTIVE: settings}
        write_atomically(self.path / SPEC_FILE, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def spec(self) -> ExperimentSpec:
        """The validated experiment.json."""
        from steppe.spec_files import read_experiment
        from steppe.specs.loading.files import read_spec_file

        return read_experiment(read_spec_file(self.path / SPEC_FILE), str(self.path / SPEC_FILE))

    def spec_data(self) -> dict[str, Any]:
        """experiment.json without validation, which is quick; that of the old tfcli is translated."""
        data = read_object(self.path / SPEC_FILE)
        return self.spec().model_dump(mode="json") if client_files.is_old(data) else data

    def local_status(self) -> Status:
        """The status of a run on this machine; a run whose owner has died is recorded as failed."""
        status = self.read_status()
        return status if not status.is_live or self._has_owner(status) else self._mark_dead()

    def read_status(self) -> Status:
        """status.json; if it is missing or damaged after training, a failed status that says so."""
        path = self.path / STATUS_FILE
        if not limited_reading.exists(path):
            return self._unreadable(f"{path} is missing") if self.is_trained else Status()
        try:
            return read_status_file(path)
        except SpecError as error:
            return self._unreadable(str(error))

    def write_status(self, status: Status) -> None:
        """Replaces status.json in one step; only for the holder of the lock."""
        write_atomically(self.path / STATUS_FILE, _as_json(status))

    def reserve_disk(self) -> None:
        """Reserves disk for the last status, before the disk can be full; only for the holder of the lock."""
        self.free_reserve()
        with contextlib.suppress(OSError):
            write_synced(self.path / RESERVE_FILE, bytes(RESERVE_BYTES))

    def free_reserve(self) -> None:
        """Frees the disk that `reserve_disk` took."""
        with contextlib.suppress(OSError):
            (self.path / RESERVE_FILE).unlink(missing_ok=True)

    def write_last_status(self, status: Status) -> None:
        """As `write_status`, on a full disk into the reserved file, so that the reason of a failure is not lost."""
        try:
            self.write_status(status)
        except StorageError:
            if not self._write_into_reserve(_as_json(status).encode()):
                raise

    def advance(self, state: State, event: Event) -> State:
        """The state after `event`; its StateError names this experiment."""
        return advance(state, event, self.name, self.ways)

    def withdrawn(self, status: Status, reason: str) -> Status:
        """The status of a completed experiment whose resume could not begin: as before, with a notice that says why."""
        assert status.before is not None
        state = self.advance(status.state, "withdraw")
        before = Status.from_data(status.before)
        notices = [notice for notice in before.notices if not notice.startswith(NOT_RESUMED)]
        return dataclasses.replace(before, state=state, notices=(*notices, f"{NOT_RESUMED}: {reason}"))

    @contextlib.contextmanager
    def lock(self, event: Event) -> Iterator[Status]:
        """Takes the folder's lock for `event`, yields the status; OwnedError if a process owns the folder already."""
        # Readers hold the lock for a moment, less than half a second.
        descriptor = locks.acquire(self.path, patience=0.5)
        if descriptor is None:
            self._refuse(event)
        self._lock = descriptor
        try:
            status = self.read_status()
            if status.is_live and status.host not in (None, socket.gethostname()) and self._has_owner(status):
                self._refuse(event)
            yield self._after_death(status)
        finally:
            locks.release(self._lock)
            self._lock = None

    def keep_lock(self) -> None:
        """Takes the lock again if its file was deleted; FolderGone if the experiment is, or another process has it."""
        if self._lock is None or locks.is_still_there(self._lock, self.path / locks.LOCK_FILE):
            return
        again = locks.acquire(self.path) if limited_reading.exists(self.path / SPEC_FILE) else None
        if again is None:
            raise FolderGone(f"the experiment in {self.path} was deleted while it trained; nothing more is written")
        locks.release(self._lock)
        self._lock = again

    def move_to(self, path: Path) -> None:
        """Sets the path of the folder after it was moved."""
        self.path = path
        if self.ways is not CALLS:
            self.ways = commands(shlex.quote(str(path)))

    def remove_traces(self) -> None:
        """Removes the files that the owner wrote into a folder while it was deleted; other files stay."""
        with contextlib.suppress(OSError):
            (self.path / STATUS_FILE).unlink(missing_ok=True)
            (self.path / RESERVE_FILE).unlink(missing_ok=True)
            self.path.rmdir()

    def is_left(self, silent: Status | None) -> bool:
        """Whether no process owns it; a run whose owner has died is recorded as failed.

        An owner on another machine counts as alive while its status changes: `silent` is a status that has not changed
        for long enough, by the caller's clock.
        """
        # An owned folder has a lock file; one without came from object storage, and nobody else writes to it.
        is_copy = not (self.path / locks.LOCK_FILE).exists()
        descriptor = locks.acquire(self.path)
        if descriptor is None:
            return False
        try:
            found = self.read_status()
            is_elsewhere = found.is_live and found.host not in (None, socket.gethostname())
            if is_elsewhere and found != silent and not is_copy:
                return False
            self._write_death(found)
            return True
        finally:
            locks.release(descriptor)

    def set_aside(self, status: Status, *keep: str) -> Path | None:
        """Moves the results of an earlier run, except `keep`, to a dated folder; only for the holder of the lock."""
        kept = {SPEC_FILE, STATUS_FILE, REQUEST_FILE, *keep}
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
            if (self.path / SPEC_FILE).exists():
                shutil.copy2(self.path / SPEC_FILE, aside / SPEC_FILE)
            # Renamed, since a damaged one may be a huge file or no file at all.
            if limited_reading.exists(self.path / STATUS_FILE):
                (self.path / STATUS_FILE).rename(aside / STATUS_FILE)
        return aside

    def ask(self, action: str) -> None:
        """Leaves a request ("pause" or "stop") for the owner, who looks for it after each chunk of training."""
        write_atomically(self.path / REQUEST_FILE, json.dumps({"action": action, "time": time.time()}) + "\n")

    def asked(self) -> str | None:
        """The request that the owner has not followed yet, if any."""
        path = self.path / REQUEST_FILE
        if not path.exists():
            return None
        try:
            action = json.loads(limited_reading.read_small(path, RESERVE_BYTES)).get("action")
        except (OSError, ValueError, AttributeError, RecursionError):
            return None
        return next((known for known in ("pause", "stop") if action == known), None)

    def forget_requests(self) -> None:
        """Removes requests to an earlier owner."""
        path = self.path / REQUEST_FILE
        if path.exists():
            with storing(path):
                path.unlink(missing_ok=True)

    def _check_free(self, force: bool) -> None:
        if self.exists:
            if not force:
                raise StateError(
                    f'experiment "{self.name}" exists already in {self.path.parent}; {self.ways.replace} '
                    "(its old results are kept beside)"
                )
        elif self.path.is_dir() and any(not is_own(entry.name) for entry in self.path.iterdir()):
            raise StateError(f"{self.path} holds files that are no experiment's; choose a new or an empty folder")

    def _unreadable(self, why: str) -> Status:
        from steppe.records.checkpoints import list_checkpoints

        try:
            timestep = (list_checkpoints(self.path) or [0])[-1]
        except OSError:
            timestep = 0
        return Status(state="failed", reason=f"{UNREADABLE}: {why}", timestep=timestep)

    def _write_into_reserve(self, data: bytes) -> bool:
        room = self.path / RESERVE_FILE
        try:
            # In place: freed disk space may be taken at once by the process that fills the disk.
            with room.open("r+b") as file:
                file.write(data)
                file.truncate()
                os.fsync(file.fileno())
            room.replace(self.path / STATUS_FILE)
            sync_folder(self.path)
        except OSError:
            return False
        return True

    def _has_owner(self, status: Status) -> bool:
        is_heard = time.time() - (status.heartbeat or 0.0) < SILENT_SECONDS
        if status.host not in (None, socket.gethostname()):
            return is_heard
        try:
            descriptor = locks.acquire(self.path)
        except StorageError:
            # The lock file of another user cannot be opened.
            return is_heard
        if descriptor is None:
            return True
        locks.release(descriptor)
        return False

    def _mark_dead(self) -> Status:
        """Records the death of the owner, unless another process took over meanwhile."""
        try:
            descriptor = locks.acquire(self.path)
        except StorageError:
            return self._after_death(self.read_status())
        if descriptor is None:
            return self.read_status()
        try:
            return self._write_death(self.read_status())
        finally:
            locks.release(descriptor)

    def _write_death(self, found: Status) -> Status:
        status = self._after_death(found)
        if status is not found:
            # The status of a read-only disk can be shown all the same.
            with contextlib.suppress(StorageError):
                self.write_status(status)
        return status

    def _after_death(self, status: Status) -> Status:
        """The status after the death of its owner."""
        if not status.is_live:
            return status
        if status.before is not None:
            return self.withdrawn(status, DIED)
        state = self.advance(status.state, "fail")
        return dataclasses.replace(status, state=state, reason=DIED, finished=status.heartbeat or time.time(), phase="")

    def _refuse(self, event: Event) -> NoReturn:
        status = self.read_status()
        if status.is_live:
            where = "" if status.host in (None, socket.gethostname()) else f" on {status.host}"
            if event in ("start", "resume"):
                raise OwnedError(
                    f'experiment "{self.name}" is {status.state} already (process {status.pid}{where}); '
                    f"stop it first: {self.ways.stop}"
                )
            try:
                self.advance(status.state, event)
            except StateError as error:
                raise OwnedError(str(error)) from None
        raise OwnedError(f'experiment "{self.name}" is being changed by another process; try again')


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
        # A hidden folder is being deleted, or its deletion was interrupted.
        entries = [entry for entry in sorted(self.path.iterdir()) if entry.is_dir() and entry.name[0] != "."]
        return [folder for folder in map(RunFolder, entries) if folder.exists]

    def entries(self) -> list[RunFolder]:
        """As `folders`, with folders that have results but no experiment.json, and broken links."""
        try:
            # Hidden ones are being deleted.
            found = sorted(entry for entry in self.path.iterdir() if entry.name[0] != ".")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read {self.path}: {error.strerror or error}") from error
        return [folder for folder in map(RunFolder, found) if _may_be_experiment(folder)]

    def new_folder(self, stem: str) -> RunFolder:
        """Makes the first of `stem-1`, `stem-2` ... that does not exist; made at once, so that nobody else takes it."""
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
            # Renamed first, so that a half-deleted experiment is not listed.
            doomed = folder.path.with_name(f".deleting-{folder.name}-{os.getpid()}")
            try:
                folder.path.rename(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                raise StorageError(f"cannot delete {folder.path}: {error.strerror or error}") from error


def _may_be_experiment(folder: RunFolder) -> bool:
    try:
        if not folder.path.is_dir():
            return folder.path.is_symlink()
    except OSError:
        return True
    return folder.is_trained or any(limited_reading.exists(folder.path / name) for name in (SPEC_FILE, STATUS_FILE))


def is_own(name: str) -> bool:
    """Whether an entry of a run folder is no result of its run: a lock, an unfinished file, an earlier result."""
    return name.startswith((".", "before-"))


def _make_folder(path: Path) -> None:
    with storing(path):
        path.mkdir(parents=True, exist_ok=True)


def _as_json(status: Status) -> str:
    return json.dumps(dataclasses.asdict(status), indent=1) + "\n"
