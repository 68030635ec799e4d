"""The bounded queue between those who receive batches and the one who learns from them."""

from __future__ import annotations

import threading
from collections import deque

from steppe.runners.asynchronous.batches import Batch


class Over(Exception):
    """There is no more learning; a clause says why."""


class Inbox:
    """Holds at most `size` batches; who comes when it is full waits in line, and gives up after `patience` seconds."""

    def __init__(self, size: int, patience: float) -> None:
        self.size, self.patience = size, patience
        self.dropped = 0
        """Batches for which there was no room in time."""
        self._waiting: deque[Batch] = deque()
        self._line: deque[Ticket] = deque()
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._reason: str | None = None

    def put(self, batch: Batch) -> bool:
        """Whether there was room in time; `Over` where nobody takes batches any more."""
        with self._lock:
            self._raise_if_over()
            if len(self._waiting) < self.size:
                self._waiting.append(batch)
                self._arrival.notify()
                return True
            ticket = Ticket(batch)
            self._line.append(ticket)
        ticket.called.wait(self.patience)
        with self._lock:
            if ticket.is_in:
                return True
            self._line.remove(ticket)
            self._raise_if_over()
            self.dropped += 1
            return False

    def take(self) -> Batch | None:
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
            for ticket in self._line:
                ticket.called.set()
            self._arrival.notify_all()

    def _raise_if_over(self) -> None:
        if self._reason is not None:
            raise Over(self._reason)


class Ticket:
    """A place in the line before a full inbox."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.called = threading.Event()
        self.is_in = False
