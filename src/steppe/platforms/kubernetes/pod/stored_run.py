"""A driver's run whose results are in object storage: fetched before the training, stored until after it."""

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
from steppe.platforms.kubernetes.storage.result_sync import Interrupted, Mirror, Superseded
from steppe.platforms.kubernetes.storage.sync_thread import Keeper

Json = dict[str, Any]


class StoredRun:
    """Around the training: `begin`, train, `finish`."""

    def __init__(self, url: str, folder: Path, session: str, end_training: Callable[[], None]) -> None:
        """`end_training` is called where another Pod has taken over."""
        self.url, self.folder = url, folder
        self._session, self._end_training = session, end_training
        self._keeper: Keeper | None = None
        self._is_training = False
        self._is_ending = False
        self._unlogged: list[str] = []
        self._saying = threading.Lock()

    def begin(self) -> bool:
        """Brings back what is stored; False where this Pod is to end. An error is one for good, and shown as such."""
        try:
            mirror = Mirror(ObjectStore(self.url), self.folder, self._session, self._say)
            self._keeper = Keeper(mirror, self._end_training)
            self._say(f"the results are kept in {self.url}")
            self._keeper.begin(lambda: self._is_ending)
        except (Interrupted, Superseded):
            return False
        except SteppeError as error:
            self._keeper = None
            print(f"error: {error}", file=sys.stderr, flush=True)
            self._fail(str(error))
            raise
        self._is_training = True
        return True

    def hand_over(self) -> None:
        """This Pod is to end: nothing is waited for before the training, and all is stored after it."""
        self._is_ending = True

    def finish(self) -> bool:
        """Comes back when everything is stored; False where another Pod has taken over."""
        assert self._keeper is not None
        self._say()
        try:
            self._keeper.finish()
        except Superseded:
            return False
        return True

    def shown(self) -> Json | None:
        """The run's own status, and how its copy in the store is doing."""
        status, keeper = read_status(self.folder), self._keeper
        if keeper is None:
            return status
        news = [*keeper.mirror.damaged, *([keeper.trouble] if keeper.trouble else [])]
        if news:
            status = (status or {}) | {"notices": [*((status or {}).get("notices") or ()), *news]}
        if keeper.phase:
            # A run is not over before its results are safe.
            ending = "pausing" if (status or {}).get("state") == "paused" else "running"
            state = ending if self._is_training else "starting"
            status = (status or {}) | {"state": state, "phase": keeper.phase}
        return status

    def _fail(self, reason: str) -> None:
        """Only here: the store stays as it is."""
        status = read_status(self.folder) or {}
        status |= {"state": "failed", "reason": reason, "finished": time.time(), "phase": ""}
        with contextlib.suppress(SteppeError, OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / STATUS_FILE, json.dumps(status) + "\n")

    def _say(self, sentence: str = "") -> None:
        """To whoever reads the Pod's output, and, as soon as there is one, into the run's log."""
        if sentence:
            print(sentence, file=sys.stderr, flush=True)
            now = f"{time.strftime('%Y-%m-%d %H:%M:%S')},{int(time.time() % 1 * 1000):03d}"
            self._unlogged.append(f"{now} WARNING steppe.storage: {sentence}\n")
        with self._saying:
            # Before there is an experiment, a file of its own would be taken for a stranger's.
            if self._unlogged and (self.folder / SPEC_KEY).exists():
                with contextlib.suppress(OSError), (self.folder / LOG_FILE).open("a", encoding="utf-8") as log:
                    log.writelines(self._unlogged)
                    self._unlogged.clear()
