"""The async engine: takes in what workers send, learns in between, and tells the training loop what happened."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from steppe.errors import CheckpointError, EnvironmentFault, UserError
from steppe.runners._base import Chunk, ChunkLimits, Engine
from steppe.runners.engines.asynchronous.cores._base import Core, Learned
from steppe.runners.engines.asynchronous.learner.worker_pool import WorkerPool
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer
from steppe.runners.engines.asynchronous.wire.access import LearnerAccess
from steppe.runners.episode_window import EpisodeWindow
from steppe.runners.play.episodes import EpisodeRules, play

EVALUATIONS = 20
"""How many greedy episodes the evaluation return is of."""
ADVANCE_SECONDS = 0.25
"""How long one call may last."""
LEARN_SECONDS = 0.05
"""How long is learned before the inbox is looked at again, and for how long it may be emptied before that."""
SWITCH_SECONDS = 0.001
"""For how long a thread that receives batches may keep the learner's from computing."""
POST_SECONDS, POST_SHARE = 0.1, 0.05
"""How often the newest policy is posted that nobody has asked for yet: no more often, nor for more of the time."""
RATE_SECONDS = 5.0
"""Over how long updates per second and utilisation are measured."""


class AsyncEngine(Engine):
    """One learner in this process; its workers are elsewhere."""

    resume_notice = (
        "workers start new episodes, and whose batch comes first is up to them; parameters, optimiser, replay memory "
        "and counts go on as they were"
    )
    least_iterations = 64
    """A call is bounded by time: so many batches may always come."""

    def __init__(
        self,
        core: Core,
        open_server: Callable[[str], tuple[WorkerServer, LearnerAccess]],
        crew: WorkerPool,
        rules: EpisodeRules | None = None,
        num_envs: int = 1,
    ) -> None:
        """`open_server` takes the host to listen at; `rules` are for evaluations here, where they are possible."""
        self.agent = core.agent
        self.core = core
        if rules is not None:
            # Whoever joins plays by what was found out of the environment here.
            core.task = replace(core.task, max_timesteps=rules.max_timesteps, repeat_actions=rules.repeat_actions)
        self.timesteps_per_iteration = core.task.rows_for(num_envs)[1] * num_envs
        self._open_server, self._crew, self._rules = open_server, crew, rules
        self._server: WorkerServer | None = None
        self._window = EpisodeWindow()
        self._evaluations: deque[tuple[float, int]] = deque(maxlen=EVALUATIONS)
        self._lag = 0.0
        self._metrics: dict[str, float] = {}
        self._meter = Meter()
        self._starts = self._dropped = self._timestep = 0
        self._saved: list[int] = []
        self._post_again = 0.0
        self._switching = sys.getswitchinterval()

    def begin(self, seed: int) -> None:
        """Fresh parameters; workers are welcome when everything is compiled."""
        server = self._open(seed)
        self.core.begin(seed)
        self._welcome(server)

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Everything but the environments, which start new episodes."""
        if "async/counts" not in arrays:
            raise CheckpointError(
                "the checkpoint was made in another run mode, and has not what async needs; resume it in that one"
            )
        arrays = dict(arrays)
        self._window.record(arrays.pop("async/returns").tolist(), arrays.pop("async/lengths").tolist())
        self._evaluations.extend((score, int(length)) for score, length in arrays.pop("async/evaluations").tolist())
        counts = (int(each) for each in arrays.pop("async/counts"))
        numbers, self._dropped, lost, starts, self._timestep = counts
        self._starts = starts + 1
        server = self._open(seed)
        server.membership.resume(numbers, lost)
        self.core.restore(arrays, seed)
        self._welcome(server)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The learner with its memory, the window of episodes, and what was counted."""
        self._saved = counts = self._counts()
        return self.core.snapshot() | {
            "async/returns": _stored(self._window.returns, np.float32),
            "async/lengths": _stored(self._window.lengths, np.int32),
            "async/evaluations": _stored(chain.from_iterable(self._evaluations), np.float32).reshape(-1, 2),
            "async/counts": _stored(counts, np.int64),
        }

    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """Takes in at most `iterations` batches and learns, for about a quarter of a second."""
        core, self._timestep = self.core, timestep
        deadline = time.monotonic() + ADVANCE_SECONDS
        rows: list[dict[str, float]] = []
        updates, fault, learned = 0, None, Learned()
        while True:
            fault = self._crew.tend()
            before = len(rows)
            self._take_in(rows, iterations, limits)
            is_full = self._is_full(rows, iterations, limits)
            if core.can_learn:
                started = time.perf_counter()
                # In full, however long it took to take in what came: where much comes, learning must not starve.
                learned = core.learn(LEARN_SECONDS)
                self._meter.add(time.perf_counter() - started, learned.updates)
                updates += learned.updates
                self._metrics = learned.metrics
            elif len(rows) == before and not is_full:
                self._opened.inbox.wait(min(LEARN_SECONDS, deadline - time.monotonic()))
            self._publish()
            is_over = self._window.has_reached(limits.stop_at_return) or not learned.is_healthy or fault is not None
            # What is owed for the batches that were taken in is learned first, as far as the time allows.
            if is_over or (is_full and core.wants_data) or time.monotonic() >= deadline:
                break
        return self._chunk(rows, updates, self._window.has_reached(limits.stop_at_return), learned.is_healthy, fault)

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in environments of this process; workers meanwhile go on."""
        if self._rules is None:
            raise UserError("this learner has no environment of its own to evaluate in; its workers evaluate")
        return play(self.policy(0), self._rules, min(episodes, 8), episodes, greedy, seed)

    def policy(self, timestep: int) -> Any:
        """The policy as of the last update."""
        return self.core.policy(timestep)

    @property
    def dropped(self) -> int:
        """How many batches came when there was no room, over all starts of this run."""
        return self._dropped + self._opened.inbox.dropped

    def paused(self) -> AbstractContextManager[None]:
        """Workers whose batch waits do not time out meanwhile."""
        return self._opened.inbox.paused()

    def finish(self) -> bool:
        """Sends all workers home, with the work done; whether the last snapshot has not counted all that is lost now.

        Whoever stood in line will not come again, as it would to a learner that was killed.
        """
        self._opened.close("the run has ended")
        return self._counts() != self._saved

    def close(self) -> None:
        """Sends all workers home; may be called again."""
        try:
            if self._server is not None:
                self._server.close("the run has ended")
        finally:
            sys.setswitchinterval(self._switching)
            self._crew.close()

    def _counts(self) -> list[int]:
        """As a checkpoint has them; what still waits is in none, so that a run that goes on from one has dropped it."""
        server = self._opened
        waiting = len(server.inbox) + server.inbox.left + self.core.unsaved
        members = server.membership
        return [members.next_number, self.dropped + waiting, members.lost, self._starts, self._timestep]

    @property
    def _opened(self) -> WorkerServer:
        assert self._server is not None
        return self._server

    def _open(self, seed: int) -> WorkerServer:
        """The door, and workers on their way to it."""
        sys.setswitchinterval(SWITCH_SECONDS)
        host = self._crew.open()
        self._server, access = self._open_server(host)
        self._server.seed, self._server.starts = seed, self._starts
        self._crew.start(self._server, access.token)
        return self._server

    def _welcome(self, server: WorkerServer) -> None:
        server.board.post(self.core.weights(), self.core.updates)
        server.board.note(self._timestep, self.core.exploration(self._timestep))
        server.board.offer(self.core.task, self.core.spaces)

    def _take_in(self, rows: list[dict[str, float]], iterations: int, limits: ChunkLimits) -> None:
        """The batches that wait, as long as the learner wants them and the time allows; one row each."""
        core, inbox = self.core, self._opened.inbox
        until = time.monotonic() + LEARN_SECONDS
        while core.wants_data and not self._is_full(rows, iterations, limits) and time.monotonic() < until:
            if (batch := inbox.take()) is None:
                return
            started = time.perf_counter()
            self._lag += 0.1 * (max(0, core.updates - batch.version) - self._lag)
            core.take_in(batch)
            self._meter.add(time.perf_counter() - started)
            self._timestep += batch.timesteps
            rows.append(self._row(batch))

    def _is_full(self, rows: list[dict[str, float]], iterations: int, limits: ChunkLimits) -> bool:
        """Whether no further batch may be taken in by this call."""
        episodes = sum(row["episodes"] for row in rows)
        is_enough = limits.episodes is not None and episodes >= limits.episodes
        return is_enough or len(rows) >= iterations or self._window.has_reached(limits.stop_at_return)

    def _publish(self) -> None:
        """How much to explore, always; the newest policy where the last one was taken, or is no longer new."""
        board = self._opened.board
        board.note(self._timestep, self.core.exploration(self._timestep))
        now = time.monotonic()
        if board.version == self.core.updates or not (board.is_wanted or now >= self._post_again):
            return
        board.post(self.core.weights(), self.core.updates)
        done = time.monotonic()
        self._post_again = done + max(POST_SECONDS, (done - now) / POST_SHARE)

    def _row(self, batch: Any) -> dict[str, float]:
        self._window.record(batch.returns, batch.lengths)
        self._evaluations.extend(batch.evaluations)
        return {
            "timesteps": batch.timesteps,
            "episodes": len(batch.returns),
            "mean_return": self._window.mean_return,
            "mean_length": self._window.mean_length,
        }

    def _chunk(
        self, rows: list[dict[str, float]], updates: int, reached: bool, healthy: bool, fault: EnvironmentFault | None
    ) -> Chunk:
        if updates and not rows:
            means = {"mean_return": self._window.mean_return, "mean_length": self._window.mean_length}
            rows = [{"timesteps": 0, "episodes": 0, **means}]
        columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        figures = self._figures()
        if rows:
            # The updates belong to all batches of this call alike.
            columns["updates"] = np.diff(np.arange(len(rows) + 1) * updates // len(rows))
            columns |= {name: np.full(len(rows), value) for name, value in (self._metrics | figures).items()}
        return Chunk(len(rows), columns, reached, healthy, fault, figures)

    def _figures(self) -> dict[str, float]:
        """What a parallel run shows beside its losses."""
        server = self._opened
        busy, updates = self._meter.rates()
        figures: dict[str, float] = {
            "workers": server.membership.here,
            "updates_per_second": updates,
            "policy_lag": self._lag,
            "waiting": server.inbox.waiting,
            "dropped": self.dropped,
            "lost": server.membership.lost,
            "learner_utilisation": busy,
        }
        if self._evaluations:
            scores, lengths = zip(*self._evaluations, strict=True)
            figures |= {"evaluation_return": float(np.mean(scores)), "evaluation_length": float(np.mean(lengths))}
        return figures


class Meter:
    """How busy the learner was lately, and how many updates it took a second."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float, int]] = deque()
        self._begun = time.monotonic()

    def add(self, seconds: float, updates: int = 0) -> None:
        """So long was worked until now."""
        self._marks.append((time.monotonic(), seconds, updates))

    def rates(self) -> tuple[float, float]:
        """(the share of time spent working, updates per second)."""
        now = time.monotonic()
        while self._marks and self._marks[0][0] < now - RATE_SECONDS:
            self._marks.popleft()
        span = max(min(RATE_SECONDS, now - self._begun), 1e-9)
        busy = sum(mark[1] for mark in self._marks) / span
        return min(1.0, busy), sum(mark[2] for mark in self._marks) / span


def _stored(values: Iterable[float], dtype: type[np.float32 | np.int32 | np.int64]) -> np.ndarray:
    """The numbers for a checkpoint; one that its type cannot hold is stored as the nearest one, or as 0 if it is NaN.

    No single figure may keep a checkpoint from being written.
    """
    low: float
    high: float
    if issubclass(dtype, np.floating):
        low, high = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([0 if math.isnan(value) else min(max(value, low), high) for value in values], dtype)
