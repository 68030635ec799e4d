"""The bounded queue between those who receive batches and the one who learns from them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from steppe.runners.engines.asynchronous.wire.batches import WorkerBatch

WORD_SECONDS = 20.0
"""How often those who stand in line hear that they are not forgotten."""
LEAST_SECONDS = 0.1


class Over(Exception):
    """There is no more learning; a clause says why."""


class Inbox:
    """Holds at most `size` batches; who comes when it is full waits in line, and gives up after `patience` seconds."""

    def __init__(self, size: int, patience: float) -> None:
        self.size, self.patience = size, patience
        self.dropped = 0
        """Batches for which there was no room in time."""
        self.left = 0
        """Batches that stood in line, or came, when nobody took any more."""
        self._waiting: deque[WorkerBatch] = deque()
        self._line: deque[Ticket] = deque()
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._reason: str | None = None
        self._paused = 0.0
        self._paused_since: float | None = None

    def put(self, batch: WorkerBatch, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Whether there was room in time; `Over` where nobody takes batches any more.

        While it stands in line for long, `meanwhile` is called now and then.
        """
        with self._lock:
            if self._reason is not None:
                self.left += 1
                raise Over(self._reason)
            if len(self._waiting) < self.size:
                self._waiting.append(batch)
                self._arrival.notify()
                return True
            ticket = Ticket(batch)
            self._line.append(ticket)
        self._stand_in_line(ticket, meanwhile)
        with self._lock:
            if ticket.is_in:
                return True
            if self._reason is not None:
                raise Over(self._reason)
            self._line.remove(ticket)
            self.dropped += 1
            return False

    def take(self) -> WorkerBatch | None:
        """The oldest batch, where there is one; the first in line moves up."""
        with self._lock:
            if not self._waiting:
                return None
            batch = self._waiting.popleft()
            if self._line:
                ticket = self._line.popleft()
                self._waiting.append(ticket.batch)
                ticket.is_in = True
                ticket.called.set()
            return batch

    def wait(self, seconds: float) -> bool:
        """Waits until there is a batch, but not longer than that; whether there is one."""
        with self._arrival:
            return self._arrival.wait_for(lambda: bool(self._waiting) or self._reason is not None, max(0.0, seconds))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the timeouts of waiting workers while the learner does something else, such as saving."""
        with self._lock:
            self._paused_since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._paused, self._paused_since = self._seconds_paused(time.monotonic()), None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> int:
        """How many batches wait, in the queue and in the line before it: at most `size` and one for each worker."""
        return len(self._waiting) + len(self._line)

    def close(self, reason: str) -> None:
        """Whoever stands in line gives up; may be called again."""
        with self._lock:
            self._reason = self._reason or reason
            self.left += len(self._line)
            for ticket in self._line:
                ticket.called.set()
            self._line.clear()
            self._arrival.notify_all()

    def _stand_in_line(self, ticket: Ticket, meanwhile: Callable[[], None]) -> None:
        """Until it is called, or has waited for so long as its patience lasts."""
        with self._lock:
            # Of the same moment: a thread that is kept from going on in between has not waited meanwhile.
            begun = heard = time.monotonic()
            paused = self._seconds_paused(begun)
        left = self.patience
        while left > 0 and not ticket.called.wait(min(max(left, LEAST_SECONDS), WORD_SECONDS)):
            with self._lock:
                now = time.monotonic()
                left = self.patience - (now - begun) + self._seconds_paused(now) - paused
            if now - heard >= WORD_SECONDS:
                meanwhile()
                heard = now

    def _seconds_paused(self, now: float) -> float:
        """For how long timeouts have been stopped so far."""
        return self._paused + (0.0 if self._paused_since is None else now - self._paused_since)


class Ticket:
    """A place in the line before a full inbox."""

    def __init__(self, batch: WorkerBatch) -> None:
        self.batch = batch
        self.called = threading.Event()
        self.is_in = False
