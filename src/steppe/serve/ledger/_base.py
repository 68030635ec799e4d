"""The interface of a ledger, which keeps every decision, every reward once, and the statistics of the arms.

One thread writes, in batches that are stored as a whole or not at all.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from steppe.errors import UserError
from steppe.serve.messages.exchange import Unavailable
from steppe.serve.routing.bandits import Arm

PIECE_BYTES = 1 << 19
"""Longest JSON that one statement reads. The database copies it while it holds the interpreter, but around each
statement the interpreter changes hands several times, which delays answers more."""

Step = tuple[str, str]
"""(a node's name, the name of the branch taken there); a policy's own step has no branch: (name, "")."""
Arms = dict[Step, Arm]


class LedgerAway(Unavailable):
    """The database does not answer; nothing was written."""


class Decision(NamedTuple):
    """A route that was chosen for an episode, or for a request without one."""

    key: str
    """A unique name."""
    sequence: str | None
    made: float
    """Seconds since 1970."""
    policy: str
    version: str
    propensity: float
    steps: tuple[Step, ...]
    is_routed: bool
    """Whether the whole graph was asked, and not one of its nodes by name."""


class NamedRequest(NamedTuple):
    """A request with an id of its sender."""

    request: str
    key: str
    """The decision it belongs to."""


class EpisodeEnd(NamedTuple):
    """The end of an episode; rewards may still come late."""

    key: str
    made: float
    how: str
    """"ended" or "expired"."""


class ShadowDifference(NamedTuple):
    """How far a shadow policy's actions were from the answer; None if it failed."""

    step: Step
    value: float | None


class Reward(NamedTuple):
    """A reward to add to a decision's return; the decision is found by its key, its request or its episode."""

    reward: float
    made: float
    key: str | None = None
    request: str | None = None
    sequence: str | None = None
    is_end: bool = False
    feedback_id: str | None = None
    truth: str | None = None


class RewardOutcome(NamedTuple):
    """The result of a reward."""

    applied: bool
    key: str
    sequence: str | None
    policy: str
    steps: tuple[Step, ...]
    total: float
    """The decision's return so far."""


Record = Decision | NamedRequest | EpisodeEnd | ShadowDifference | tuple[Step, ...]
"""A record of an answer; the last type only tells the path of a request that needs no other record."""
RECORDS: dict[str, type[Decision | NamedRequest | EpisodeEnd | ShadowDifference]] = {
    "decision": Decision,
    "named": NamedRequest,
    "ended": EpisodeEnd,
    "difference": ShadowDifference,
}
"""Kind in a journal -> record type."""
_KIND_OF = {record: kind for kind, record in RECORDS.items()}
ANSWERED = "answered"
"""The kind of a record that only tells the path of a request."""
FIRST_FIELD = 2
"""Position of a record's first field in its line."""


class JsonLines:
    """Many records of one kind as JSON, which the database reads by itself."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[bytearray] = []
        """JSON arrays of lines, each without its closing bracket."""

    def add(self, line: bytes) -> None:
        """Appends a line.

        Copies it: keeping the object that orjson returned would take ten times as long, since orjson reserves more
        bytes than it needs, and freeing the rest of each is slow.
        """
        if not self.pieces or len(self.pieces[-1]) > PIECE_BYTES:
            self.pieces.append(bytearray(b"["))
        else:
            self.pieces[-1] += b","
        self.pieces[-1] += line


@dataclass(slots=True)
class LedgerBatch:
    """Records that are written together.

    It grows record by record as answers are given, so that nothing is left to do for thousands of records when it is
    written: the writing thread would hold the interpreter, and answers would wait.
    """

    writer: str = ""
    """The writer's name, which is new in each process."""
    number: int = 0
    """Number of the writer's last record in this batch; a batch that was written before, though its writer never heard
    of it, is recognised by this number."""
    size: int = 0
    """Number of records."""
    decisions: JsonLines = field(default_factory=JsonLines)
    chosen: dict[tuple[Step, ...], int] = field(default_factory=dict)
    """Decisions for each path."""
    named: JsonLines = field(default_factory=JsonLines)
    requests: dict[tuple[Step, ...], int] = field(default_factory=dict)
    """Requests answered on each path."""
    differences: list[ShadowDifference] = field(default_factory=list)
    ended: list[EpisodeEnd] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)

    def add(self, number: int, record: Record, line: bytes) -> None:
        """Adds the writer's next record, with its number and its line."""
        self.number = number
        self.size += 1
        if isinstance(record, Decision):
            self.decide(record, line)
            self.requests[record.steps] = self.requests.get(record.steps, 0) + 1
        elif isinstance(record, NamedRequest):
            self.named.add(line)
        elif isinstance(record, EpisodeEnd):
            self.ended.append(record)
        elif isinstance(record, ShadowDifference):
            self.differences.append(record)
        else:
            self.requests[record] = self.requests.get(record, 0) + 1

    def decide(self, decision: Decision, line: bytes) -> None:
        """Adds a decision without counting a request."""
        self.decisions.add(line)
        self.chosen[decision.steps] = self.chosen.get(decision.steps, 0) + 1


class BatchResult(NamedTuple):
    """The result of writing a batch."""

    outcomes: list[RewardOutcome | UserError]
    """One for each reward; UserError if there is no such decision."""
    arms: Arms
    """The current statistics of all arms."""


class OpenEpisode(NamedTuple):
    """An episode that has not ended."""

    key: str
    sequence: str
    policy: str
    version: str
    propensity: float
    steps: tuple[Step, ...]
    is_routed: bool


class LoggedDecision(NamedTuple):
    """A decision and its rewards, for off-policy comparisons."""

    policy: str
    version: str
    propensity: float
    is_routed: bool
    is_over: bool
    feedback: int
    """Number of rewards."""
    total: float
    """Sum of rewards."""


class Ledger(ABC):
    """One endpoint's part of a database; used by one thread at a time."""

    is_shared = False
    """Whether other replicas may write into it too."""

    @abstractmethod
    def open(self) -> None:
        """Connects, and makes the tables if there are none; LedgerAway if there is no database."""

    @abstractmethod
    def hold(self, address: str) -> None:
        """Locks it for the server at an address, until `release`; UserError if another server has it.

        A shared ledger is never locked.
        """

    @abstractmethod
    def release(self) -> None:
        """Unlocks it; may be called again."""

    @abstractmethod
    def close(self) -> None:
        """Disconnects; the next call connects again."""

    @abstractmethod
    def write(self, batch: LedgerBatch) -> BatchResult:
        """Writes the whole batch, or raises LedgerAway. If the connection is lost during the commit, either is
        possible.

        Of a batch whose number was written before only the rewards are looked at, each of which counts once.
        """

    @abstractmethod
    def written_by(self, writer: str) -> int:
        """Number of the last record of a writer that was written; 0 for an unknown writer."""

    @abstractmethod
    def prune(self, before: float, now: float) -> int:
        """Forgets finished decisions from before a time, with their rewards; returns how many, 0 if none is left.

        Each call forgets a few, so that no writer waits for long. Arms keep what they learned. An episode that began
        before that time and never ended is ended at `now`.
        """

    @abstractmethod
    def arms(self) -> Arms:
        """The current statistics of all arms."""

    @abstractmethod
    def open_episodes(self, limit: int) -> list[OpenEpisode]:
        """The newest episodes that have not ended, oldest first."""

    @abstractmethod
    def find_episode(self, sequence: str) -> OpenEpisode | None:
        """The newest episode of that name, if it has not ended."""

    @abstractmethod
    def decisions(self) -> Iterator[LoggedDecision]:
        """Every decision ever made, in order."""


def line_of(number: int, record: Record, dumps: Callable[[Any], bytes]) -> bytes:
    """A record as one line of JSON: [number, kind, fields]."""
    kind = _KIND_OF.get(type(record))  # type: ignore[arg-type]
    return dumps((number, ANSWERED, record) if kind is None else (number, kind, *record))


def batch_of(records: list[tuple[int, Record]], writer: str) -> LedgerBatch:
    """A batch of a writer's numbered records."""
    batch = LedgerBatch(writer)
    for number, record in records:
        batch.add(number, record, line_of(number, record, lambda values: json.dumps(values).encode()))
    return batch
