"""The thread that keeps the copy of a run in object storage up to date, beside the training in its Pod."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from steppe.errors import SteppeError
from steppe.platforms.kubernetes.storage.object_store import StoreError
from steppe.platforms.kubernetes.storage.result_sync import LOOK_SECONDS, Interrupted, ResultSync, Superseded, pause

EVERY_SECONDS = 20.0
"""How often the copy is updated without a new checkpoint; well below SILENT_SECONDS of the sync."""
LONGEST_PAUSE = 60.0


class SyncThread:
    """Synchronises a run folder at each checkpoint and every few seconds, from `begin` to `finish`."""

    def __init__(self, sync: ResultSync, on_superseded: Callable[[], None], seconds: float = EVERY_SECONDS) -> None:
        """`on_superseded` is called if another Pod has taken over."""
        self.sync, self._on_superseded, self._seconds = sync, on_superseded, seconds
        self.trouble = ""
        """Why the copy is not up to date; empty while it is."""
        self.phase = ""
        """The phase before and after the training; empty during it."""
        self._is_superseded = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="result-sync", daemon=True)

    def begin(self, is_ending: Callable[[], bool] = lambda: False) -> None:
        """Fetches the stored run, waiting for a store that is away; Interrupted if this Pod `is_ending`."""
        self.phase = f"fetching what is stored in {self.sync.store.url}"
        self._until_done(lambda: self.sync.claim(is_ending), is_ending, gives_up=True)
        try:
            self._until_done(self.sync.fetch, is_ending, gives_up=True)
        except BaseException:
            # So that the next Pod does not wait for this one.
            with contextlib.suppress(SteppeError):
                self.sync.release()
            raise
        self.phase = ""
        self._thread.start()

    def finish(self) -> None:
        """Stores the rest, and returns once everything is stored; Superseded if another Pod writes."""
        self.phase = f"storing the results in {self.sync.store.url}"
        self._over.set()
        self._thread.join()
        if self._is_superseded:
            raise Superseded
        self._until_done(self.sync.settle, lambda: False)
        self.phase = ""

    def _run(self) -> None:
        next_time, seconds, stored = 0.0, self._seconds, self._checkpoints()
        while not self._over.wait(LOOK_SECONDS):
            found = self._checkpoints()
            if time.monotonic() < next_time and (found == stored or self.trouble):
                continue
            try:
                self.sync.sync()
            except Superseded:
                self._is_superseded = True
                self._on_superseded()
                return
            except Exception as error:
                self._note_failure(error)
                seconds = min(2 * seconds, LONGEST_PAUSE)
            else:
                self._note_success()
                seconds, stored = self._seconds, found
            next_time = time.monotonic() + seconds

    def _until_done(self, step: Callable[[], None], is_ending: Callable[[], bool], gives_up: bool = False) -> None:
        """Repeats a step until it succeeds; with `gives_up` a final error ends that."""
        seconds = 1.0
        while True:
            try:
                step()
                self._note_success()
                return
            except (Superseded, Interrupted):
                raise
            except Exception as error:
                if gives_up and (not isinstance(error, StoreError) or error.is_final):
                    raise
                self._note_failure(error)
            pause(seconds, is_ending)
            seconds = min(2 * seconds, LONGEST_PAUSE)

    def _note_failure(self, error: Exception) -> None:
        sentence = f"the results are not stored: {error or type(error).__name__}; this is tried again"
        if not self.trouble:
            self.sync.tell(sentence)
        self.trouble = sentence

    def _note_success(self) -> None:
        if self.trouble:
            self.trouble = ""
            self.sync.tell("the results are stored again")

    def _checkpoints(self) -> list[str]:
        try:
            return sorted(each.name for each in (self.sync.folder / "checkpoints").iterdir() if each.name.isdecimal())
        except OSError:
            return []
