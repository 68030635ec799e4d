"""A parameter server: one shard of the parameters, with its optimisers and target parameters, but without networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from steppe.runners.engines.distributed.moments import Moments, NormalizerMoments, merged_moments
from steppe.runners.engines.shared_optimizers import Schedule, SharedOptimizer, UpdateRule
from steppe.specs.learning.optimizer import OptimizerSpec

State = dict[str, np.ndarray]
"""The whole state of a server, by name."""


@dataclass(frozen=True)
class Segment:
    """The parameters of a shard, start to stop, that one optimiser updates."""

    start: int
    stop: int
    optimizer: OptimizerSpec
    rate: Schedule


@dataclass(frozen=True)
class ShardConfig:
    """The configuration of one server."""

    segments: Sequence[Segment]
    max_staleness: int | None = None
    target_sync_frequency: int = 0
    """The number of updates between two moves of the targets; 0 without targets."""
    target_update_weight: float = 0.0


class Push(NamedTuple):
    """Gradients that a worker sends to one server."""

    worker: int
    sequence: int
    """Numbers the pushes of a worker, since the same push may arrive twice."""
    read: int
    """The version at which the first gradient was computed."""
    gradients: np.ndarray
    """[G, size]; each is computed after the worker's steps with the gradients before it."""
    known: int = -1
    """The version of this server's parameters that the worker has; -1 for none."""
    known_target: int = -1
    """The version of the targets that it has."""
    seen: NormalizerMoments | None = None
    """New statistics for the normalisers; for the first server only."""


class ServerAnswer(NamedTuple):
    """A server's answer to a pull or a push."""

    version: int
    """The number of updates that it has made."""
    params: np.ndarray | None
    """[size]; None if the worker has this version."""
    target: np.ndarray | None
    """[size]; None if there is none, or the worker has it."""
    target_version: int
    seen: NormalizerMoments | None
    """The statistics of all workers."""
    was_applied: bool
    staleness: int
    """How many updates were made between the pull and the push."""


class ParameterServer:
    """Handles one call after the other, so that its answers are always consistent."""

    def __init__(self, config: ShardConfig) -> None:
        self.config = config
        self._optimizers = [
            SharedOptimizer(UpdateRule(each.optimizer, each.rate), each.stop - each.start) for each in config.segments
        ]
        self.version = self.target_version = 0
        self.params = self.target = np.zeros(0, np.float32)
        self.seen: NormalizerMoments | None = None
        self._known: dict[int, tuple[int, bool]] = {}
        self._waiting: dict[int, Push] = {}
        self._round = 0

    def restore(self, state: State) -> int:
        """Restores a state of this or another server; returns the version."""
        self.version, self.target_version, self._round = (int(number) for number in state["counters"])
        # Copies, since the arrays that Ray delivers are read-only.
        self.params, self.target = state["params"].copy(), state["target"].copy()
        self._known = {int(worker): (int(sequence), bool(applied)) for worker, sequence, applied in state["known"]}
        self._waiting = {}
        self.seen = seen_in(state)
        for index, optimizer in enumerate(self._optimizers):
            prefix = f"optimizer/{index}/"
            arrays = {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
            if arrays:
                optimizer.restore(arrays)
        return self.version

    def state(self) -> State:
        """Everything that another server needs to continue from here."""
        known = [(worker, sequence, applied) for worker, (sequence, applied) in self._known.items()]
        state: State = {
            "counters": np.array([self.version, self.target_version, self._round], np.int64),
            "params": self.params.copy(),
            "target": self.target.copy(),
            "known": np.array(known, np.int64).reshape(-1, 3),
        }
        state |= _named(self.seen)
        for index, optimizer in enumerate(self._optimizers):
            state |= {f"optimizer/{index}/{name}": array for name, array in optimizer.arrays().items()}
        return state

    def pull(self, known: int, known_target: int) -> ServerAnswer:
        """The parameters, if they have changed since version `known`."""
        return self._answer(known, known_target, was_applied=True, staleness=0)

    def push(self, push: Push) -> ServerAnswer:
        """Steps at once, unless the gradients are too old or arrived before."""
        sequence, was_applied = self._known.get(push.worker, (-1, False))
        staleness = 0
        if push.sequence > sequence:
            # After a server was replaced there can be fewer updates than a worker has seen.
            staleness = max(self.version - push.read, 0)
            limit = self.config.max_staleness
            was_applied = limit is None or staleness <= limit
            if was_applied:
                self._step(push.gradients)
                self._take_in(push.seen)
            self._known[push.worker] = (push.sequence, was_applied)
        return self._answer(push.known, push.known_target, was_applied, staleness)

    def catch_up(self, version: int) -> State:
        """Skips to `version`, that of the other servers, without the updates in between; returns the state."""
        frequency = self.config.target_sync_frequency
        is_due = frequency and version // frequency > self.version // frequency
        self.version = max(self.version, version)
        if is_due:
            self._move_target()
        return self.state()

    def hold(self, push: Push) -> None:
        """Keeps gradients until `step_together`."""
        self._waiting[push.worker] = push

    def step_together(self, number: int, workers: Sequence[int]) -> int:
        """Steps with the mean gradients of these workers, once for each round `number`; returns the version."""
        if number > self._round:
            self._round = number
            pushes = [self._waiting[worker] for worker in workers if worker in self._waiting]
            for row in range(max((len(push.gradients) for push in pushes), default=0)):
                rows = [push.gradients[row] for push in pushes if row < len(push.gradients)]
                self._step([np.add.reduce(rows, dtype=np.float32) / np.float32(len(rows))])
            for push in pushes:
                self._take_in(push.seen)
        self._waiting.clear()
        return self.version

    def _step(self, gradients: Iterable[np.ndarray]) -> None:
        config = self.config
        for gradient in gradients:
            for segment, optimizer in zip(config.segments, self._optimizers, strict=True):
                part = slice(segment.start, segment.stop)
                optimizer.step(self.params[part], gradient[part])
            self.version += 1
            if config.target_sync_frequency and self.version % config.target_sync_frequency == 0:
                self._move_target()

    def _move_target(self) -> None:
        self.target += self.config.target_update_weight * (self.params - self.target)
        self.target_version = self.version

    def _take_in(self, seen: NormalizerMoments | None) -> None:
        if seen is not None and self.seen is not None:
            self.seen = merged_moments(self.seen, seen)

    def _answer(self, known: int, known_target: int, was_applied: bool, staleness: int) -> ServerAnswer:
        has_new_target = len(self.target) > 0 and self.target_version != known_target
        return ServerAnswer(
            version=self.version,
            params=None if known == self.version else self.params,
            target=self.target if has_new_target else None,
            target_version=self.target_version,
            seen=self.seen,
            was_applied=was_applied,
            staleness=staleness,
        )


def fresh_state(params: np.ndarray, target: np.ndarray, version: int, seen: NormalizerMoments | None) -> State:
    """The state of a server before its first step."""
    return {
        "counters": np.array([version, version, 0], np.int64),
        "params": params,
        "target": target,
        "known": np.zeros((0, 3), np.int64),
    } | _named(seen)


def answer_in(state: State) -> ServerAnswer:
    """The answer to a pull of a server with this state."""
    version, target_version, _ = (int(number) for number in state["counters"])
    return ServerAnswer(
        version, state["params"], state["target"], target_version, seen_in(state), was_applied=True, staleness=0
    )


def seen_in(state: State) -> NormalizerMoments | None:
    """The normalisers' statistics in a state, if there are any."""
    if "seen/observations/mean" not in state:
        return None
    kinds = [[np.array(state[f"seen/{kind}/{name}"]) for name in Moments._fields] for kind in NormalizerMoments._fields]
    return NormalizerMoments(*(Moments(*each) for each in kinds))


def _named(seen: NormalizerMoments | None) -> State:
    if seen is None:
        return {}
    return {
        f"seen/{kind}/{name}": np.asarray(value)
        for kind, each in seen._asdict().items()
        for name, value in each._asdict().items()
    }
