"""Who works for the learner: who is here, who left, and who vanished with a batch on its way."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

REMEMBERED = 10_000
"""Workers that are gone and still known by name."""


@dataclass
class JoinedWorker:
    """One worker, by the name that it gave itself."""

    number: int
    """Its own in this run, for its randomness: no two workers ever have the same."""
    sequence: int = 0
    """The newest batch that was received from it."""
    state: Literal["here", "gone", "vanished"] = "here"
    connection: int = 0
    """Counts its connections: what an older one has to say no longer counts."""


class Membership:
    """Counts workers; may be asked by any thread."""

    def __init__(self) -> None:
        self.next_number = 0
        self._lost = 0
        self._members: OrderedDict[str, JoinedWorker] = OrderedDict()
        self._lock = threading.Lock()
        self._hung: set[str] = set()
        self.batches = 0
        """How many were received."""
        self.complaint = ""
        """What the last worker that failed has said."""
        self.mistake = ""
        """What a worker has said that could not join by a mistake of the user's."""
        self._declined = 0

    def resume(self, next_number: int, lost: int) -> None:
        """Counts on from where an earlier start of the run has ended; who has joined already keeps its number."""
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
        """How many batches were on their way when their worker vanished: each had one, begun or sent."""
        with self._lock:
            return self._lost

    @property
    def declined(self) -> int:
        """How many workers have said that they cannot join."""
        with self._lock:
            return self._declined

    def decline(self, sentence: str, is_mistake: bool) -> None:
        """A worker says why it cannot join."""
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
        """(its number, which of its connections this is); one who vanished and returns has lost nothing."""
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
        """Whether a batch comes for the first time: a worker sends again what was not answered."""
        with self._lock:
            member = self._members[name]
            is_new = sequence > member.sequence
            member.sequence = max(sequence, member.sequence)
            self.batches += is_new
            return is_new

    def leave(self, name: str, connection: int, vanished: bool) -> None:
        """A connection is over: as agreed on, or broken."""
        with self._lock:
            member = self._members[name]
            if member.connection != connection or member.state != "here":
                return
            member.state = "vanished" if vanished else "gone"
            self._lost += vanished

    def give_up(self, name: str) -> None:
        """A worker has said nothing for too long."""
        with self._lock:
            self._hung.add(name)

    def take_hung(self) -> set[str]:
        """Who was given up since the last time."""
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
