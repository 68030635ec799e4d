"""Open episodes: which route each took, and what a recurrent policy remembers of it."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from steppe.policies.forward import State
from steppe.serve.messages.exchange import PolicyAnswer, Question
from steppe.serve.routing.graph import GraphPath
from steppe.serve.versions import Version

SMALL_BASE = 1 << 12
"""Up to so many bytes of other answers may be kept together with one."""


@dataclass(slots=True, eq=False)
class RoutedEpisode:
    """One open episode, or one request without an episode."""

    key: str
    """The decision's own name."""
    sequence: str | None
    path: GraphPath
    version: Version
    propensity: float
    label: str = ""
    """What stands before the numbers of its requests, where an earlier life or another replica gave some too."""
    requests: int = 0
    rows: int = 0
    """How many observations each of its questions has; 0 before the first."""
    states: dict[str, State] = field(default_factory=dict)
    """What recurrent policies remember, by policy: the one that answers and those in its shadow."""
    last: tuple[tuple[Any, ...], PolicyAnswer] | None = None
    """What tells its last question from others, and the answer; None where that had no id."""
    touched: float = 0.0
    size: int = 0
    """How many bytes `states` and `last` took when it was touched last."""


class OpenEpisodes:
    """A bounded number of them, by sequence_id, with a bounded memory; if there is no room, the one silent for longest
    goes."""

    def __init__(self, limit: int, idle_seconds: float, most_bytes: int) -> None:
        self.expired = 0
        """How many went for want of room or after a long silence."""
        self.bytes = 0
        """What all of them remember of states and answers."""
        self._limit, self._most_bytes = limit, most_bytes
        self._idle_seconds = idle_seconds
        self._episodes: OrderedDict[str, RoutedEpisode] = OrderedDict()

    def __len__(self) -> int:
        return len(self._episodes)

    def get(self, sequence: str) -> RoutedEpisode | None:
        """The open episode of that name."""
        return self._episodes.get(sequence)

    def answered(self, question: Question) -> PolicyAnswer | None:
        """The answer to the last question of its episode, if it is asked again: it was lost on the way."""
        if question.id is None or question.sequence_id is None:
            return None
        episode = self._episodes.get(question.sequence_id)
        if episode is None or episode.last is None or episode.last[0][0] != question.id:
            return None
        if episode.last[0] != _mark(question):
            return None
        self.touch(episode)
        return episode.last[1]

    def remember(self, episode: RoutedEpisode, question: Question, answer: PolicyAnswer) -> None:
        """Keeps what was answered last, for whoever asks again."""
        episode.last = None if question.id is None else (_mark(question), _by_itself(answer))

    def touch(self, episode: RoutedEpisode) -> list[RoutedEpisode]:
        """Counts a question to an episode, opening it where it is new; those that had to go for it."""
        assert episode.sequence is not None
        episode.touched = time.monotonic()
        before = self._episodes.get(episode.sequence)
        self.bytes -= 0 if before is None else before.size
        episode.size = _size(episode)
        self.bytes += episode.size
        self._episodes[episode.sequence] = episode
        self._episodes.move_to_end(episode.sequence)
        gone = []
        # The last one stays, however much it remembers: a question's rows are limited too.
        while len(self._episodes) > self._limit or (self.bytes > self._most_bytes and len(self._episodes) > 1):
            gone.append(self._forget_first())
        self.expired += len(gone)
        return gone

    def close(self, sequence: str, key: str) -> RoutedEpisode | None:
        """Forgets that episode, unless its name belongs to another one by now."""
        episode = self._episodes.get(sequence)
        if episode is None or episode.key != key:
            return None
        self.bytes -= episode.size
        return self._episodes.pop(sequence)

    def expire(self) -> list[RoutedEpisode]:
        """Forgets those that have been silent for too long."""
        earliest, gone = time.monotonic() - self._idle_seconds, []
        while self._episodes and next(iter(self._episodes.values())).touched < earliest:
            gone.append(self._forget_first())
        self.expired += len(gone)
        return gone

    def _forget_first(self) -> RoutedEpisode:
        episode = self._episodes.popitem(last=False)[1]
        self.bytes -= episode.size
        return episode


def _size(episode: RoutedEpisode) -> int:
    """How many bytes the arrays take that an episode remembers."""
    size = 0
    for state in episode.states.values():
        size += sum([each.nbytes for each in state.values()])
    if episode.last is not None:
        answer = episode.last[1]
        size += answer.actions.nbytes + (0 if answer.outputs is None else answer.outputs.nbytes)
    return size


def _by_itself(answer: PolicyAnswer) -> PolicyAnswer:
    """The answer without the others that were computed in the same batch, of which its arrays may be parts."""
    arrays = [each for each in (answer.actions, answer.outputs) if each is not None]
    if all(each.base is None or each.base.nbytes <= SMALL_BASE for each in arrays):
        return answer
    outputs = None if answer.outputs is None else answer.outputs.copy()
    return replace(answer, actions=answer.actions.copy(), outputs=outputs)


def _mark(question: Question) -> tuple[Any, ...]:
    """What tells a question from others; some clients give each the same id, so that alone is not enough."""
    # The hash of pictures, since thousands of episodes may be open.
    observations = question.observations
    return (
        question.id,
        question.sequence_start,
        question.sequence_end,
        question.deterministic,
        question.model,
        question.version,
        question.outputs,
        observations.shape,
        hash(observations.tobytes()),
    )
