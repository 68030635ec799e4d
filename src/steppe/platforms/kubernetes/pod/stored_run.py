"""A driver's run with results in object storage: fetched before the training, stored during and after it."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steppe.errors import SteppeError
from steppe.files.durable import write_atomically
from steppe.platforms.kubernetes.agreement import SPEC_KEY
from steppe.platforms.kubernetes.pod.status_server import LOG_FILE, STATUS_FILE, read_status
from steppe.platforms.kubernetes.storage.object_store import ObjectStore
from steppe.platforms.kubernetes.storage.result_sync import Interrupted, ResultSync, Superseded
from steppe.platforms.kubernetes.storage.sync_thread import SyncThread

Json = dict[str, Any]


class StoredRun:
    """Surrounds the training: `begin`, train, `finish`."""

    def __init__(self, url: str, folder: Path, session: str, end_training: Callable[[], None]) -> None:
        """`end_training` is called if another Pod has taken over."""
        self.url, self.folder = url, folder
        self._session, self._end_training = session, end_training
        self._sync_thread: SyncThread | None = None
        self._is_training = False
        self._is_ending = False
        self._unlogged: list[str] = []
        self._log_lock = threading.Lock()

    def begin(self) -> bool:
        """Fetches the stored results; False if this Pod must end. Errors are final, and become the run's status."""
        try:
            sync = ResultSync(ObjectStore(self.url), self.folder, self._session, self._say)
            self._sync_thread = SyncThread(sync, self._end_training)
            self._say(f"the results are kept in {self.url}")
            self._sync_thread.begin(lambda: self._is_ending)
        except (Interrupted, Superseded):
            return False
        except SteppeError as error:
            self._sync_thread = None
            print(f"error: {error}", file=sys.stderr, flush=True)
            self._fail(str(error))
            raise
        self._is_training = True
        return True

    def hand_over(self) -> None:
        """This Pod must end: no store is waited for before the training; after it all results are still stored."""
        self._is_ending = True

    def finish(self) -> bool:
        """Waits until everything is stored; False if another Pod has taken over."""
        assert self._sync_thread is not None
        self._say()
        try:
            self._sync_thread.finish()
        except Superseded:
            return False
        return True

    def shown(self) -> Json | None:
        """The run's own status, with problems of its copy in object storage as notices."""
        status, thread = read_status(self.folder), self._sync_thread
        if thread is None:
            return status
        news = [*thread.sync.damaged, *([thread.trouble] if thread.trouble else [])]
        if news:
            status = (status or {}) | {"notices": [*((status or {}).get("notices") or ()), *news]}
        if thread.phase:
            # A run is not over before its results are stored.
            ending = "pausing" if (status or {}).get("state") == "paused" else "running"
            state = ending if self._is_training else "starting"
            status = (status or {}) | {"state": state, "phase": thread.phase}
        return status

    def _fail(self, reason: str) -> None:
        """Writes a failed status into this Pod's folder only; the store stays as it is."""
        status = read_status(self.folder) or {}
        status |= {"state": "failed", "reason": reason, "finished": time.time(), "phase": ""}
        with contextlib.suppress(SteppeError, OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / STATUS_FILE, json.dumps(status) + "\n")

    def _say(self, sentence: str = "") -> None:
        """Prints a sentence, and adds it to the run's log as soon as that exists."""
        if sentence:
            print(sentence, file=sys.stderr, flush=True)
            now = f"{time.strftime('%Y-%m-%d %H:%M:%S')},{int(time.time() % 1 * 1000):03d}"
            self._unlogged.append(f"{now} WARNING steppe.storage: {sentence}\n")
        with self._log_lock:
            # A log in a folder without an experiment would look like a file of another program.
            if self._unlogged and (self.folder / SPEC_KEY).exists():
                with contextlib.suppress(OSError), (self.folder / LOG_FILE).open("a", encoding="utf-8") as log:
                    log.writelines(self._unlogged)
                    self._unlogged.clear()
