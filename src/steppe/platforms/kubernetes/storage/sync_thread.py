"""Beside the training, in its Pod: keeps the copy of the run in object storage up to date."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from steppe.errors import SteppeError
from steppe.platforms.kubernetes.storage.object_store import StoreTrouble
from steppe.platforms.kubernetes.storage.result_sync import LOOK_SECONDS, Interrupted, Mirror, Superseded, pause

EVERY_SECONDS = 20.0
"""How often the copy is renewed, if no checkpoint comes before; well below what makes a writer seem gone."""
LONGEST_PAUSE = 60.0


class Keeper:
    """Mirrors a run folder at each checkpoint and every so often, from `begin` to `finish`."""

    def __init__(self, mirror: Mirror, on_superseded: Callable[[], None], seconds: float = EVERY_SECONDS) -> None:
        """`on_superseded` is called where another Pod has taken over."""
        self.mirror, self._on_superseded, self._seconds = mirror, on_superseded, seconds
        self.trouble = ""
        """Why the copy is not up to date; empty while it is."""
        self.phase = ""
        """What is done before and after the training."""
        self._is_superseded = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)

    def begin(self, is_ending: Callable[[], bool] = lambda: False) -> None:
        """Brings back what is stored, waiting for a store that is away; Interrupted where the Pod `is_ending`."""
        self.phase = f"fetching what is stored in {self.mirror.store.url}"
        self._until_done(lambda: self.mirror.claim(is_ending), is_ending, gives_up=True)
        try:
            self._until_done(self.mirror.fetch, is_ending, gives_up=True)
        except BaseException:
            # For the next Pod not to wait for this one.
            with contextlib.suppress(SteppeError):
                self.mirror.let_go()
            raise
        self.phase = ""
        self._thread.start()

    def finish(self) -> None:
        """Stores the rest: comes back only when all of it is there. Superseded where another Pod writes."""
        self.phase = f"storing the results in {self.mirror.store.url}"
        self._over.set()
        self._thread.join()
        if self._is_superseded:
            raise Superseded
        self._until_done(self.mirror.settle, lambda: False)
        self.phase = ""

    def _keep(self) -> None:
        next_time, seconds, stored = 0.0, self._seconds, self._checkpoints()
        while not self._over.wait(LOOK_SECONDS):
            found = self._checkpoints()
            if time.monotonic() < next_time and (found == stored or self.trouble):
                continue
            try:
                self.mirror.sync()
            except Superseded:
                self._is_superseded = True
                self._on_superseded()
                return
            except Exception as error:
                self._troubled(error)
                seconds = min(2 * seconds, LONGEST_PAUSE)
            else:
                self._recovered()
                seconds, stored = self._seconds, found
            next_time = time.monotonic() + seconds

    def _until_done(self, step: Callable[[], None], is_ending: Callable[[], bool], gives_up: bool = False) -> None:
        """Again and again; with `gives_up` an error ends it that waiting does not cure."""
        seconds = 1.0
        while True:
            try:
                step()
                self._recovered()
                return
            except (Superseded, Interrupted):
                raise
            except Exception as error:
                if gives_up and (not isinstance(error, StoreTrouble) or error.is_final):
                    raise
                self._troubled(error)
            pause(seconds, is_ending)
            seconds = min(2 * seconds, LONGEST_PAUSE)

    def _troubled(self, error: Exception) -> None:
        sentence = f"the results are not stored: {error or type(error).__name__}; this is tried again"
        if not self.trouble:
            self.mirror.tell(sentence)
        self.trouble = sentence

    def _recovered(self) -> None:
        if self.trouble:
            self.trouble = ""
            self.mirror.tell("the results are stored again")

    def _checkpoints(self) -> list[str]:
        try:
            return sorted(each.name for each in (self.mirror.folder / "checkpoints").iterdir() if each.name.isdecimal())
        except OSError:
            return []
