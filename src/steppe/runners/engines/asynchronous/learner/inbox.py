"""The bounded queue between the threads that receive batches and the one that learns."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from steppe.runners.engines.asynchronous.wire.batches import WorkerBatch

WORD_SECONDS = 20.0
"""How often a waiting worker is told that its learner is still there."""
LEAST_SECONDS = 0.1


class Over(Exception):
    """The run is over; the message says why."""


class Inbox:
    """Holds at most `size` batches; further ones wait in line, and are dropped after `patience` seconds."""

    def __init__(self, size: int, patience: float) -> None:
        self.size, self.patience = size, patience
        self.dropped = 0
        """How many batches were dropped."""
        self.left = 0
        """How many batches waited or arrived when the run was over."""
        self._waiting: deque[WorkerBatch] = deque()
        self._line: deque[Ticket] = deque()
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._reason: str | None = None
        self._paused = 0.0
        self._paused_since: float | None = None

    def put(self, batch: WorkerBatch, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Adds a batch; False if there was no room in time. Raises `Over` once the run is over.

        `meanwhile` is called every WORD_SECONDS while the batch waits.
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
        """The oldest batch, or None; the first waiting ticket moves into the inbox."""
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
        """Waits up to `seconds` for a batch; whether there is one."""
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
        """The number of batches in the inbox and in line before it: at most `size` plus one for each worker."""
        return len(self._waiting) + len(self._line)

    def close(self, reason: str) -> None:
        """Releases all waiting tickets without their batches; may be called again."""
        with self._lock:
            self._reason = self._reason or reason
            self.left += len(self._line)
            for ticket in self._line:
                ticket.called.set()
            self._line.clear()
            self._arrival.notify_all()

    def _stand_in_line(self, ticket: Ticket, meanwhile: Callable[[], None]) -> None:
        """Waits until the ticket is called or its patience is over."""
        with self._lock:
            # Read under one lock: time in which this thread is held up in between does not count as waiting.
            begun = last_word = time.monotonic()
            paused = self._seconds_paused(begun)
        left = self.patience
        while left > 0 and not ticket.called.wait(min(max(left, LEAST_SECONDS), WORD_SECONDS)):
            with self._lock:
                now = time.monotonic()
                left = self.patience - (now - begun) + self._seconds_paused(now) - paused
            if now - last_word >= WORD_SECONDS:
                meanwhile()
                last_word = now

    def _seconds_paused(self, now: float) -> float:
        """For how long timeouts have been stopped so far."""
        return self._paused + (0.0 if self._paused_since is None else now - self._paused_since)


class Ticket:
    """A batch that waits for room in the inbox."""

    def __init__(self, batch: WorkerBatch) -> None:
        self.batch = batch
        self.called = threading.Event()
        self.is_in = False
