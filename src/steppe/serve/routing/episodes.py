"""Open episodes: the route of each, and the state of recurrent policies."""

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
"""Largest array, in bytes, of which a kept answer may be a view."""


@dataclass(slots=True, eq=False)
class RoutedEpisode:
    """One open episode, or one request without an episode."""

    key: str
    """The name of its decision in the ledger."""
    sequence: str | None
    path: GraphPath
    version: Version
    propensity: float
    label: str = ""
    """Prefix of its requests' numbers if an earlier process or another replica numbered some too."""
    requests: int = 0
    rows: int = 0
    """Observations in each of its questions; 0 before the first."""
    states: dict[str, State] = field(default_factory=dict)
    """State of recurrent policies by name: of the policy that answers and of its shadows."""
    last: tuple[tuple[Any, ...], PolicyAnswer] | None = None
    """(fingerprint of the last question, its answer); None if the question had no id."""
    touched: float = 0.0
    size: int = 0
    """Bytes of `states` and `last` at the last `touch`."""


class OpenEpisodes:
    """Open episodes by sequence_id, bounded in number and memory; the one silent for longest makes room."""

    def __init__(self, limit: int, idle_seconds: float, most_bytes: int) -> None:
        self.expired = 0
        """Episodes that expired for lack of room or after a long silence."""
        self.bytes = 0
        """Bytes of all states and answers."""
        self._limit, self._most_bytes = limit, most_bytes
        self._idle_seconds = idle_seconds
        self._episodes: OrderedDict[str, RoutedEpisode] = OrderedDict()

    def __len__(self) -> int:
        return len(self._episodes)

    def get(self, sequence: str) -> RoutedEpisode | None:
        """The open episode of that name."""
        return self._episodes.get(sequence)

    def answered(self, question: Question) -> PolicyAnswer | None:
        """The answer to the last question of the episode if the same question comes again."""
        if question.id is None or question.sequence_id is None:
            return None
        episode = self._episodes.get(question.sequence_id)
        if episode is None or episode.last is None or episode.last[0][0] != question.id:
            return None
        if episode.last[0] != _fingerprint(question):
            return None
        self.touch(episode)
        return episode.last[1]

    def remember(self, episode: RoutedEpisode, question: Question, answer: PolicyAnswer) -> None:
        """Keeps the last answer, in case its question comes again."""
        episode.last = None if question.id is None else (_fingerprint(question), _without_batch(answer))

    def touch(self, episode: RoutedEpisode) -> list[RoutedEpisode]:
        """Notes a question of an episode, opening it if it is new; returns the episodes that expired to make room."""
        assert episode.sequence is not None
        episode.touched = time.monotonic()
        before = self._episodes.get(episode.sequence)
        self.bytes -= 0 if before is None else before.size
        episode.size = _size(episode)
        self.bytes += episode.size
        self._episodes[episode.sequence] = episode
        self._episodes.move_to_end(episode.sequence)
        gone = []
        # The newest episode stays, however large: a question's rows are limited too.
        while len(self._episodes) > self._limit or (self.bytes > self._most_bytes and len(self._episodes) > 1):
            gone.append(self._forget_first())
        self.expired += len(gone)
        return gone

    def close(self, sequence: str, key: str) -> None:
        """Forgets the episode, unless its name belongs to another one by now."""
        episode = self._episodes.get(sequence)
        if episode is not None and episode.key == key:
            self.bytes -= episode.size
            del self._episodes[sequence]

    def expire(self) -> list[RoutedEpisode]:
        """Forgets and returns episodes that have been silent for too long."""
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
    """Bytes of the arrays that an episode keeps."""
    size = 0
    for state in episode.states.values():
        size += sum([each.nbytes for each in state.values()])
    if episode.last is not None:
        answer = episode.last[1]
        size += answer.actions.nbytes + (0 if answer.outputs is None else answer.outputs.nbytes)
    return size


def _without_batch(answer: PolicyAnswer) -> PolicyAnswer:
    """The answer without the arrays of the whole batch, of which its own may be views."""
    arrays = [each for each in (answer.actions, answer.outputs) if each is not None]
    if all(each.base is None or each.base.nbytes <= SMALL_BASE for each in arrays):
        return answer
    outputs = None if answer.outputs is None else answer.outputs.copy()
    return replace(answer, actions=answer.actions.copy(), outputs=outputs)


def _fingerprint(question: Question) -> tuple[Any, ...]:
    """A fingerprint of a question; its id alone is not enough, as some clients give all the same."""
    # A hash instead of the observations, since thousands of episodes may be open.
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
