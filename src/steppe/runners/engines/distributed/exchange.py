"""A worker's side of the parameter servers: splits gradients into shards, joins parameters, and pushes exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from steppe.runners.engines.distributed.moments import NormalizerMoments
from steppe.runners.engines.distributed.parameter_server import Push, ServerAnswer

Receive = Callable[[Sequence[Any], float], list[Any]]
"""(references, seconds) -> a `ServerAnswer` or an exception for each."""


class ServersLost(Exception):
    """Some servers did not answer; the pushes to them are kept for the servers that replace them."""

    def __init__(self, indices: list[int]) -> None:
        super().__init__(indices)
        self.indices = indices


class PushResult(NamedTuple):
    """The outcome of a push."""

    gradients: int
    """The number of gradients in the push."""
    was_applied: bool
    """Whether all servers applied it."""
    staleness: float
    """The mean over the servers, in updates."""


@dataclass
class _PendingPush:
    """A push that is not answered by all servers."""

    pushes: list[Push]
    """One for each server."""
    sent: list[Any]
    """Ray's reference for each; None if it must be sent (again)."""
    answers: list[ServerAnswer | None]


class Exchange:
    """The newest parameters that a worker knows, and its push that is under way."""

    def __init__(self, worker: int, borders: Sequence[int], receive: Receive, timeout: float) -> None:
        """`borders` are the starts of the shards, and the end of the last one."""
        self.worker = worker
        self._shards = [slice(start, stop) for start, stop in pairwise(borders)]
        self._receive, self._timeout = receive, timeout
        self._servers: list[Any] = [None] * len(self._shards)
        self.params = np.zeros(borders[-1], np.float32)
        self.target = np.zeros(0, np.float32)
        self.seen: NormalizerMoments | None = None
        self._versions = [-1] * len(self._shards)
        self._target_versions = [-1] * len(self._shards)
        self._sequence = 0
        self._flying: _PendingPush | None = None

    @property
    def versions(self) -> list[int]:
        """The number of updates in the parameters of each server."""
        return list(self._versions)

    @property
    def is_waiting(self) -> bool:
        """Whether a push is under way."""
        return self._flying is not None

    def connect(self, servers: Sequence[Any]) -> None:
        """Sets the servers; the parameters of new ones count as unknown."""
        for index, server in enumerate(servers):
            if server != self._servers[index]:
                self._versions[index] = self._target_versions[index] = -1
                if self._flying is not None and self._flying.answers[index] is None:
                    self._flying.sent[index] = None
                    self._flying.pushes[index] = self._flying.pushes[index]._replace(known=-1, known_target=-1)
        self._servers = list(servers)

    def pull(self) -> None:
        """Fetches the newest parameters; only changed shards are sent."""
        sent = [
            server.pull.remote(version, target)
            for server, version, target in zip(self._servers, self._versions, self._target_versions, strict=True)
        ]
        self._take_in(self._answered(sent))

    def push(self, gradients: np.ndarray, seen: NormalizerMoments | None, read: Sequence[int]) -> None:
        """Sends gradients [G, P] computed at the versions `read`; `settle` waits for the answers."""
        assert self._flying is None
        self._flying = self._prepared(gradients, seen, read)
        self._send(self._flying)

    def settle(self) -> PushResult:
        """Waits until every server has answered the push, and takes the parameters from the answers."""
        flying = self._flying
        assert flying is not None
        self._send(flying)
        missing = [index for index, answer in enumerate(flying.answers) if answer is None]
        lost = []
        for index, answer in zip(missing, self._receive([flying.sent[i] for i in missing], self._timeout), strict=True):
            if isinstance(answer, Exception):
                flying.sent[index] = None
                lost.append(index)
            else:
                flying.answers[index] = answer
        if lost:
            raise ServersLost(lost)
        answers = [answer for answer in flying.answers if answer is not None]
        self._take_in(answers)
        self._flying = None
        return PushResult(
            gradients=len(flying.pushes[0].gradients),
            was_applied=all(each.was_applied for each in answers),
            staleness=float(np.mean([each.staleness for each in answers])),
        )

    def hold(self, gradients: np.ndarray, seen: NormalizerMoments | None) -> None:
        """Sends gradients that the servers keep until all workers have sent theirs."""
        flying = self._prepared(gradients, seen, self._versions)
        sent = [server.hold.remote(push) for server, push in zip(self._servers, flying.pushes, strict=True)]
        self._answered(sent)

    def _prepared(self, gradients: np.ndarray, seen: NormalizerMoments | None, read: Sequence[int]) -> _PendingPush:
        self._sequence += 1
        pushes = [
            Push(
                worker=self.worker,
                sequence=self._sequence,
                read=read[index],
                gradients=np.ascontiguousarray(gradients[:, shard]),
                known=self._versions[index],
                known_target=self._target_versions[index],
                seen=seen if index == 0 else None,
            )
            for index, shard in enumerate(self._shards)
        ]
        return _PendingPush(pushes, [None] * len(pushes), [None] * len(pushes))

    def _send(self, flying: _PendingPush) -> None:
        for index, push in enumerate(flying.pushes):
            if flying.sent[index] is None and flying.answers[index] is None:
                flying.sent[index] = self._servers[index].push.remote(push)

    def _answered(self, sent: list[Any]) -> list[Any]:
        answers = self._receive(sent, self._timeout)
        if lost := [index for index, answer in enumerate(answers) if isinstance(answer, Exception)]:
            raise ServersLost(lost)
        return answers

    def _take_in(self, answers: list[ServerAnswer]) -> None:
        for index, (answer, shard) in enumerate(zip(answers, self._shards, strict=True)):
            self._versions[index], self._target_versions[index] = answer.version, answer.target_version
            if answer.params is not None:
                self.params[shard] = answer.params
            if answer.target is not None:
                if not len(self.target):
                    self.target = np.zeros_like(self.params)
                self.target[shard] = answer.target
        self.seen = answers[0].seen
