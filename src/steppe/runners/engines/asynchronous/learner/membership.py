"""Counts the learner's workers: connected, gone as agreed, or vanished with a batch under way."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

REMEMBERED = 10_000
"""How many workers that are gone are still known by name."""


@dataclass
class JoinedWorker:
    """One worker, known by the name that it gave itself."""

    number: int
    """Seeds its randomness: no two workers of a run ever have the same."""
    sequence: int = 0
    """The newest batch that was received from it."""
    state: Literal["here", "gone", "vanished"] = "here"
    connection: int = 0
    """Counts its connections; messages about an older one are ignored."""


class Membership:
    """Thread-safe counts of workers and of their batches."""

    def __init__(self) -> None:
        self.next_number = 0
        self._lost = 0
        self._members: OrderedDict[str, JoinedWorker] = OrderedDict()
        self._lock = threading.Lock()
        self._hung: set[str] = set()
        self.batches = 0
        """How many were received."""
        self.complaint = ""
        """The error of the last worker that failed."""
        self.mistake = ""
        """The user's mistake that kept a worker from joining."""
        self._declined = 0

    def resume(self, next_number: int, lost: int) -> None:
        """Continues the counts of a checkpoint; workers that have already joined keep their numbers."""
        with self._lock:
            self.next_number = max(self.next_number, next_number)
            self._lost += lost

    @property
    def here(self) -> int:
        """How many are connected."""
        with self._lock:
            return sum(member.state == "here" for member in self._members.values())

    @property
    def lost(self) -> int:
        """How many batches were lost with a vanished worker: each had one under way."""
        with self._lock:
            return self._lost

    @property
    def declined(self) -> int:
        """How many workers have reported that they cannot join."""
        with self._lock:
            return self._declined

    def decline(self, sentence: str, is_mistake: bool) -> None:
        """Records why a worker cannot join."""
        with self._lock:
            self._declined += 1
            self.complaint = sentence
            if is_mistake:
                self.mistake = sentence

    def knows(self, name: str) -> bool:
        """Whether a worker has ever joined."""
        with self._lock:
            return name in self._members

    def join(self, name: str) -> tuple[int, int]:
        """Returns (its number, the number of this connection); a vanished worker that returns has lost nothing."""
        with self._lock:
            member = self._members.get(name)
            if member is None:
                member = self._members[name] = JoinedWorker(self.next_number)
                self.next_number += 1
            elif member.state == "vanished":
                self._lost -= 1
            member.state = "here"
            member.connection += 1
            self._members.move_to_end(name)
            self._forget_old()
            return member.number, member.connection

    def claim(self, name: str, sequence: int) -> bool:
        """Whether a batch is new: a worker sends a batch again if it was not answered."""
        with self._lock:
            member = self._members[name]
            is_new = sequence > member.sequence
            member.sequence = max(sequence, member.sequence)
            self.batches += is_new
            return is_new

    def leave(self, name: str, connection: int, vanished: bool) -> None:
        """Records the end of a connection, agreed or broken."""
        with self._lock:
            member = self._members[name]
            if member.connection != connection or member.state != "here":
                return
            member.state = "vanished" if vanished else "gone"
            self._lost += vanished

    def give_up(self, name: str) -> None:
        """Records that a worker has been silent for too long."""
        with self._lock:
            self._hung.add(name)

    def take_hung(self) -> set[str]:
        """Returns the workers given up since the last call."""
        with self._lock:
            hung, self._hung = self._hung, set()
            return hung

    def _forget_old(self) -> None:
        excess = len(self._members) - REMEMBERED
        if excess <= 0:
            return
        for name in list(self._members)[:excess]:
            if self._members[name].state != "here":
                del self._members[name]
