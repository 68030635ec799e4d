"""What a ledger keeps: every decision, every reward once, and what the arms learned from them.

One thread writes, in batches that are on the disk as a whole or not at all.
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
"""How long the lines may be that one statement reads. They are copied while it holds the interpreter, but around each
statement the interpreter changes hands several times, which costs answers more."""

Step = tuple[str, str]
"""(a node's name, the name of the branch that was taken there); a policy's own step has no branch: (name, "")."""
Arms = dict[Step, Arm]


class LedgerAway(Unavailable):
    """The database does not answer; what was to be written is not."""


class Decision(NamedTuple):
    """A route that was chosen, for an episode or for a request without one."""

    key: str
    """Its own name, never used before."""
    sequence: str | None
    made: float
    """When, in seconds since 1970."""
    policy: str
    version: str
    propensity: float
    steps: tuple[Step, ...]
    is_routed: bool
    """Whether the whole graph was asked, and not a part of it by name."""


class NamedRequest(NamedTuple):
    """A request that its sender gave a name to."""

    request: str
    key: str
    """The decision it belongs to."""


class EpisodeEnd(NamedTuple):
    """An episode that is over, apart from rewards that come late."""

    key: str
    made: float
    how: str
    """ended or expired."""


class ShadowDifference(NamedTuple):
    """How far the answer of a policy in the shadow was from the one that was given; None where it had none."""

    step: Step
    value: float | None


class Reward(NamedTuple):
    """What is to be added to a decision's return, found by its key, its request or its episode."""

    reward: float
    made: float
    key: str | None = None
    request: str | None = None
    sequence: str | None = None
    is_end: bool = False
    feedback_id: str | None = None
    truth: str | None = None


class RewardOutcome(NamedTuple):
    """What became of a reward."""

    applied: bool
    key: str
    sequence: str | None
    policy: str
    steps: tuple[Step, ...]
    total: float
    """The decision's return so far."""


Record = Decision | NamedRequest | EpisodeEnd | ShadowDifference | tuple[Step, ...]
"""What an answer leaves; the last one says only on which way a request was answered."""
RECORDS: dict[str, type[Decision | NamedRequest | EpisodeEnd | ShadowDifference]] = {
    "decision": Decision,
    "named": NamedRequest,
    "ended": EpisodeEnd,
    "difference": ShadowDifference,
}
"""Kind, as it stands in a journal -> record."""
_KINDS = {record: kind for kind, record in RECORDS.items()}
ANSWERED = "answered"
"""The kind of a record that only says on which way a request was answered."""
FIRST_FIELD = 2
"""Where the fields of a record begin in its line."""


class JsonLines:
    """Many records of one kind, each as the array that `line_of` made of it: the database reads them by itself."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[bytearray] = []
        """JSON arrays of lines, each without its closing bracket."""

    def add(self, line: bytes) -> None:
        """Copies one more line: to keep the object that orjson returned would take ten times as long, since orjson
        reserves more bytes than it needs and memory is slow to take back the rest of each."""
        if not self.pieces or len(self.pieces[-1]) > PIECE_BYTES:
            self.pieces.append(bytearray(b"["))
        else:
            self.pieces[-1] += b","
        self.pieces[-1] += line


@dataclass(slots=True)
class LedgerBatch:
    """What is written together.

    It is made record by record as answers are given, so that nothing is left to do for each of thousands of records
    when it is written: the thread that writes would hold the interpreter meanwhile, and answers would wait for it.
    """

    writer: str = ""
    """Who writes it, in this life."""
    number: int = 0
    """How many records its writer had with this batch: what was written already, though nobody was told, is not
    written again."""
    size: int = 0
    """How many records it has."""
    decisions: JsonLines = field(default_factory=JsonLines)
    chosen: dict[tuple[Step, ...], int] = field(default_factory=dict)
    """How many of the decisions were for each way."""
    named: JsonLines = field(default_factory=JsonLines)
    requests: dict[tuple[Step, ...], int] = field(default_factory=dict)
    """How many requests were answered on which way."""
    differences: list[ShadowDifference] = field(default_factory=list)
    ended: list[EpisodeEnd] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)

    def add(self, number: int, record: Record, line: bytes) -> None:
        """Takes the next record of the writer, which has that number, and its line."""
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
        """Takes a decision without counting a request."""
        self.decisions.add(line)
        self.chosen[decision.steps] = self.chosen.get(decision.steps, 0) + 1


class BatchResult(NamedTuple):
    """What a batch came to."""

    outcomes: list[RewardOutcome | UserError]
    """One for each reward: UserError where there is no such decision."""
    arms: Arms
    """All arms as they now are."""


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
    """A decision and what came of it, for comparisons off-line."""

    policy: str
    version: str
    propensity: float
    is_routed: bool
    is_over: bool
    feedback: int
    """How many rewards it got."""
    total: float
    """Their sum."""


class Ledger(ABC):
    """One endpoint's part of a database; used by one thread at a time."""

    is_shared = False
    """Whether other replicas may write into it too."""

    @abstractmethod
    def open(self) -> None:
        """Connects, and makes the tables where there are none; LedgerAway where there is no database."""

    @abstractmethod
    def hold(self, address: str) -> None:
        """Keeps it for one server, which listens at an address, until `release`; UserError if another one has it.

        A ledger that may be shared is not kept from anybody.
        """

    @abstractmethod
    def release(self) -> None:
        """Lets another server have it; may be called again."""

    @abstractmethod
    def close(self) -> None:
        """Disconnects; whatever is asked next connects again."""

    @abstractmethod
    def write(self, batch: LedgerBatch) -> BatchResult:
        """Writes all of it, or nothing: LedgerAway. If the database fell silent at the very end, who knows.

        A batch with the number of one that was written is only looked through for rewards, of which each counts once.
        """

    @abstractmethod
    def written_by(self, writer: str) -> int:
        """How many records of a writer are in it, as the number of its last batch says; 0 for an unknown one."""

    @abstractmethod
    def prune(self, before: float, now: float) -> int:
        """Forgets decisions that were over before a time, with their rewards; how many, and 0 when none is left.

        At most so many at once that nobody who writes waits for long. Arms keep what they learned. An episode that
        was begun before that time and never ended is taken to be over `now`.
        """

    @abstractmethod
    def arms(self) -> Arms:
        """All arms as they now are."""

    @abstractmethod
    def open_episodes(self, limit: int) -> list[OpenEpisode]:
        """The newest episodes that have not ended, the oldest first."""

    @abstractmethod
    def find_episode(self, sequence: str) -> OpenEpisode | None:
        """The newest episode of that name, if it has not ended."""

    @abstractmethod
    def decisions(self) -> Iterator[LoggedDecision]:
        """Everything that was ever decided, in order."""


def line_of(number: int, record: Record, dumps: Callable[[Any], bytes]) -> bytes:
    """A record as JSON in one line: [its number, its kind, its fields]."""
    kind = _KINDS.get(type(record))  # type: ignore[arg-type]
    return dumps((number, ANSWERED, record) if kind is None else (number, kind, *record))


def batch_of(records: list[tuple[int, Record]], writer: str) -> LedgerBatch:
    """What a writer had numbered, to be written together."""
    batch = LedgerBatch(writer)
    for number, record in records:
        batch.add(number, record, line_of(number, record, lambda values: json.dumps(values).encode()))
    return batch
